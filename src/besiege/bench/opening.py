"""The public function `open`: the results of a run folder. It does not import torch."""

from __future__ import annotations

import os
from pathlib import Path

from besiege.bench.evaluations import Evaluation, Evaluations, evaluation_of
from besiege.bench.overview import open_run
from besiege.bench.results import summarise
from besiege.core.errors import InputError, StoreError


def open(folder: Path | str) -> Evaluation | Evaluations:
    """Read a run folder again: what `besiege.evaluate` returned, without a model.

    Figures and rows come from the judged records. Nothing is computed by a model, torch is not
    imported, and an interrupted run can be read as far as it got (``complete`` is then False).

    Parameters
    ----------
    folder : path
        A run folder: ``--out`` of the command line, by default a folder in ``besiege-runs``, or
        ``out=`` in Python.

    Returns
    -------
    Evaluation or Evaluations
        One result, or a sequence with names where the run has several models or threats. Results
        that they replaced are in ``history`` of each.

    Examples
    --------
    >>> import besiege, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> found = besiege.evaluate(
    ...     "zoo:digits-natural",
    ...     "digits",
    ...     threat="linf:0.1",
    ...     attacks="fgsm",
    ...     count=20,
    ...     curve=False,
    ...     out=folder,
    ... )
    >>> again = besiege.open(folder)
    >>> again.robust == found.robust
    True
    >>> again.rows.count
    20
    """
    found = read_evaluations(folder)
    return found if len(found) + len(found.missing) > 1 else found[0]


def read_evaluations(folder: Path | str) -> Evaluations:
    """The current evaluations of a run folder, as a sequence also where there is one only."""
    if not isinstance(folder, (str, Path)):
        raise InputError(f"the run folder is a {type(folder).__name__}: give its path")
    store, run = open_run(os.path.expanduser(folder) if isinstance(folder, str) else folder)
    figures = summarise(store.folder)
    known = {one.name: one for one in figures.evaluations}
    plans = [plan for plan in run.current if plan.name in known]
    begun = [plan for plan in plans if known[plan.name].clean is not None]
    missing = [plan for plan in plans if known[plan.name].clean is None]
    if not begun:
        again = f": run its command again: {missing[0].request.command}" if missing else ""
        raise StoreError(f"{store.folder} has no result yet, no image was classified{again}")
    return Evaluations(
        [evaluation_of(figures, store.folder, plan) for plan in begun],
        missing=[known[plan.name].title for plan in missing],
    )

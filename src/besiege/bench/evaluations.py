"""The results of evaluations: what `besiege.evaluate` returns, and `besiege.open` reads again.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np

from besiege.bench.file_names import with_file_names
from besiege.bench.overview import open_run
from besiege.bench.plan import Plan
from besiege.bench.reading import gather
from besiege.bench.results import complete_figures
from besiege.bench.store import Store
from besiege.bench.summaries import summary_of
from besiege.bench.words import in_lines
from besiege.core.errors import Finding, InputError, UnknownNameError, VictimError, near
from besiege.core.examination import Examination
from besiege.core.text import check_whole
from besiege.metrics.cascade import fates, first_place
from besiege.metrics.distances import smallest
from besiege.metrics.evidence import Evidence
from besiege.metrics.intervals import Rate
from besiege.metrics.rejection import outcome_columns
from besiege.metrics.rows import Rows, filled_with
from besiege.metrics.stochastic import success_probabilities
from besiege.metrics.values import EvaluationFigures, RunFigures

if TYPE_CHECKING:
    from besiege.bench.compared import PairedComparison
    from besiege.bench.display import Grid

_LEADING = ("attack", "sample", "file", "label", "prediction", "success", "first", "access")
"""Columns that stand first in a table of rows."""


@dataclass(frozen=True, repr=False, eq=False)
class Evaluation:
    """The result of an evaluation, computed from judged records only.

    Attributes
    ----------
    clean, robust : Rate
        Accuracy on clean images, and accuracy under all attacks, each with a 95 % interval:
        ``value``, ``low``, ``high``, ``count``. Robust is over the samples that every attack was
        judged on, and None without such samples.
    by_attack : dict of str to Rate
        Accuracy under each attack, by its text; in a suite, under it and those before it. Failed
        attacks are left out. `by_sample` has the result of each sample.
    warnings : tuple of Finding
        Signs that a figure may be misleading.
    figures : EvaluationFigures
        All figures: curves, costs, the gallery. ``figures.plain()`` gives them as in
        ``figures.json``, in dictionaries and lists.
    folder : Path
        The run folder.
    paid : dict, optional
        For a black-box model ``(asked, sent)`` by account: queries, and images that were sent. The
        ledger answers images that were sent before; failed attempts count as sent.
    """

    clean: Rate
    robust: Rate | None
    by_attack: Mapping[str, Rate]
    warnings: tuple[Finding, ...]
    figures: EvaluationFigures
    folder: Path
    complete: bool
    _plan: Plan
    _run: RunFigures
    paid: Mapping[str, tuple[int, int]] | None = None
    _held: object = None
    """Keeps a temporary run folder."""

    @property
    def examination(self) -> Examination | None:
        """Whether the evaluation is strong enough, check by check; None if it was not examined."""
        return self.figures.examination

    @cached_property
    def rows(self) -> Rows:
        """One row per sample and attack: verdicts, distances, steps and costs.

        ``first`` says whether this attack was the first in the list to break the sample. Images
        from files have a column ``file``, relative to the folder of class folders.
        docs/results.md explains all columns.
        """
        evidence = self._evidence()
        samples, place = evidence.clean["sample"], first_place(evidence)
        tables = [
            trial.rows.having(
                attack=trial.text,
                access=trial.access,
                first=np.isin(trial.rows["sample"], samples[place == number]),
            )
            for number, trial in enumerate(evidence.trials)
        ]
        rows = self._with_files(Rows.joined(tables))
        return Rows({**{name: rows[name] for name in _LEADING if name in rows}, **rows})

    @cached_property
    def by_sample(self) -> Rows:
        """The result of each sample: the first attack that broke it, and the cost.

        ``fate`` is 'wrong' (misclassified when clean), 'broken', 'standing' or 'unknown';
        ``attack`` is the first that broke it, in the order of the list; ``queries``, ``forwards``
        and ``backwards`` are the cost up to then, earlier attacks included. Of a stochastic model,
        ``probability`` is that of a success in one draw of the sample's worst image, with its exact
        95 % interval, ``probability_low`` and ``probability_high``. Of a model that may reject
        images, ``outcome`` is the worst under all attacks, 'right', 'wrong', 'rejected' or
        'unknown', and ``rejected`` and ``suspicion`` are those of the clean image; a clean image
        that is rejected has the fate 'wrong'.
        """
        evidence = self._evidence()
        chances = success_probabilities(evidence, self.figures.model.draws)
        rejected = outcome_columns(evidence)
        return self._with_files(fates(evidence).having(**chances, **rejected))

    @cached_property
    def smallest(self) -> Rows:
        """The smallest perturbation found for each sample, and its size in every norm.

        ``distance`` is in the threat's norm: 0 where a sample was misclassified when clean,
        infinite where no attack succeeded. ``attack`` is the attack that found it. With a budget,
        the samples are those of the curve.
        """
        return self._with_files(smallest(self._evidence()))

    @cached_property
    def history(self) -> tuple[Evaluation, ...]:
        """Earlier evaluations of the same request in this folder, the newest first.

        They are results like this one, with figures and rows; ``figures.history`` has the
        difference to each. Those without any result are left out.
        """
        store, run = open_run(self.folder)
        mine, others = self._plan, [summary_of(store, plan) for plan in run.current]
        listed = [plan for plan in run.plans if plan.series == mine.series]
        names = [plan.name for plan in listed]
        before = listed[: names.index(mine.name)] if mine.name in names else listed
        found = []
        for plan in reversed(before):
            figures = complete_figures(summary_of(store, plan), others, run.short_names)
            if figures.clean is not None:
                alone = replace(self._run, evaluations=(figures,), complete=figures.complete)
                found.append(evaluation_of(alone, self.folder, plan, held=self._held))
        return tuple(found)

    def earlier(self, back: int = 1) -> Evaluation:
        """The result that this one replaced, or one further `back`; an error without one."""
        check_whole(back, "earlier")
        if back > len(self.history):
            name = self.figures.title
            there = f"{len(self.history)} earlier results" if self.history else "no earlier result"
            raise InputError(f"{name} has {there}, and earlier={back} was requested")
        return self.history[back - 1]

    def export(self, path: Path | str, *, attack: str | None = None, force: bool = False) -> Path:
        """Write the results into a file, of the kind that its suffix names.

        ``.csv``, ``.parquet`` and ``.json`` have a row for each sample and attack, ``.tex`` and
        ``.md`` the table of results, ``.npz`` the adversarial images.

        Parameters
        ----------
        path : path
            The file.
        attack : str, optional
            ``.npz``: take the images of this attack; by default those of the first attack that
            broke each sample, and without a budget the smallest perturbations.
        force : bool
            Replace an existing file.
        """
        from besiege.bench.exports import export

        return export([self], path, attack=attack, force=force)

    def compare(
        self, other: Comparable, *others: Comparable, common: bool = False
    ) -> PairedComparison:
        """Compare this result with others, sample by sample: which model is more robust?

        Parameters
        ----------
        other, others : Evaluation, Evaluations or path
            Results of the same threat on the same samples, or run folders with such results.
        common : bool
            Compare results on other samples of the same data, on the samples that all have.

        Returns
        -------
        PairedComparison
            Printed, it says the result in sentences; ``pairs`` has the differences with intervals
            and p-values, and the ids of the samples on which two models differ.

        Examples
        --------
        >>> import besiege
        >>> one, two = besiege.evaluate(
        ...     ["zoo:digits-natural", "zoo:digits-pgd-at"],
        ...     "digits",
        ...     threat="linf:0.15",
        ...     attacks="pgd",
        ...     count=50,
        ...     curve=False,
        ... )
        >>> (pair,) = one.compare(two).pairs
        >>> pair.first, pair.clear
        ('zoo:digits-pgd-at', True)
        """
        return _compared((self, other, *others), common)

    def _evidence(self) -> Evidence:
        return gather(Store(self.folder), self._plan).evidence

    def _with_files(self, rows: Rows) -> Rows:
        return with_file_names(rows, Store(self.folder), self._plan.data.digest)

    def page(self, path: Path | str | None = None) -> Path:
        """Write the HTML page of the run; by default into its folder."""
        from besiege.report import write_page

        return Path(write_page(self.folder, path))

    def __repr__(self) -> str:
        from besiege.report.answer import since

        return in_lines(self.figures, since(self.figures))

    def _repr_html_(self) -> str:
        from besiege.report import fragment

        return str(fragment(RunFigures.of(self.figures)))


class Evaluations(Sequence[Evaluation]):
    """The results of several models or threats, in the order in which they were requested.

    Parameters
    ----------
    evaluations : sequence of Evaluation
        The results, of one run folder.
    missing : sequence of str
        Evaluations that were requested and have no result yet.

    Examples
    --------
    >>> import besiege
    >>> found = besiege.evaluate(
    ...     ["zoo:digits-natural", "zoo:digits-pgd-at"],
    ...     "digits",
    ...     threat="linf:0.15",
    ...     attacks="fgsm",
    ...     count=20,
    ...     curve=False,
    ... )
    >>> found.names
    ['zoo:digits-natural', 'zoo:digits-pgd-at']
    >>> found["zoo:digits-pgd-at"].robust > found[0].robust  # doctest: +SKIP
    True
    """

    def __init__(self, evaluations: Sequence[Evaluation], missing: Iterable[str] = ()) -> None:
        self._evaluations = tuple(evaluations)
        self.missing = tuple(missing)

    @property
    def names(self) -> list[str]:
        """The model of each, with its threat where there are several threats."""
        return self._named([one.figures.model.title for one in self])

    def _named(self, models: Sequence[str]) -> list[str]:
        threats = [one.figures.threat.text for one in self]
        if len(set(threats)) == 1:
            return list(models)
        return [f"{one} against {threat}" for one, threat in zip(models, threats, strict=True)]

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self[0].folder

    @property
    def complete(self) -> bool:
        """Whether all their records exist."""
        return not self.missing and all(one.complete for one in self)

    @cached_property
    def rows(self) -> Rows:
        """The rows of all of them, with ``model``, ``data``, ``threat`` and ``evaluation``."""
        return labelled_rows(self)

    @overload
    def __getitem__(self, which: int | str) -> Evaluation: ...

    @overload
    def __getitem__(self, which: slice) -> Evaluations: ...

    def __getitem__(self, which: int | str | slice) -> Evaluation | Evaluations:
        if isinstance(which, slice):
            return Evaluations(self._evaluations[which])
        if isinstance(which, int):
            return self._evaluations[which]
        texts, names = self._named([one.figures.model.name for one in self]), self.names
        names = texts if which in texts else names
        if names.count(which) != 1:
            known = f"{near(which, names)}" if which not in names else "use a number instead"
            problem = "several evaluations are" if which in names else "no evaluation is"
            raise InputError(f"{problem} called {which!r}: {known}")
        return self._evaluations[names.index(which)]

    def __len__(self) -> int:
        return len(self._evaluations)

    def of(self, model: str | None = None, threat: str | None = None) -> Evaluations:
        """Those of one model, of one threat, or of both."""
        wanted = {"model": model, "threat": threat}
        found = list(self)
        for what, name in wanted.items():
            if name is not None and not any(_is_called(one, what, name) for one in self):
                names = [_named(one, what) for one in self]
                raise UnknownNameError(f"no {what} of this run is '{name}': {near(name, names)}")
            found = [one for one in found if name is None or _is_called(one, what, name)]
        if not found:
            raise UnknownNameError(
                f"the model '{model}' was not evaluated against '{threat}': it was against "
                + " and ".join(f"'{_named(one, 'threat')}'" for one in self.of(model))
            )
        return Evaluations(found)

    def compare(self, *others: Comparable, common: bool = False) -> PairedComparison:
        """Compare these results with each other, and with others (see `Evaluation.compare`)."""
        return _compared((self, *others), common)

    def export(
        self,
        path: Path | str,
        *,
        attack: str | None = None,
        force: bool = False,
        board: bool = False,
        table: Grid | None = None,
    ) -> Path:
        """Write the results into a file, of the kind that its suffix names.

        As `Evaluation.export`, with the results of all of them; ``.npz`` is for one only. With
        `board`, a row for each cell, model and attack of the run in place of rows for images; with
        `table`, that table.
        """
        from besiege.bench.exports import export

        return export(list(self), path, attack=attack, force=force, board=board, table=table)

    def page(self, path: Path | str | None = None) -> Path:
        """Write the HTML page of the run; by default into its folder."""
        return self[0].page(path)

    @property
    def figures(self) -> RunFigures:
        """The figures of all of them, as tables and pages take them."""
        every = tuple(one.figures for one in self)
        return replace(self[0]._run, evaluations=every, complete=self.complete)

    def __repr__(self) -> str:
        lines = [*map(repr, self), *(f"{name}: no result yet" for name in self.missing)]
        return "\n\n".join(lines)

    def _repr_html_(self) -> str:
        from besiege.report import fragment

        return str(fragment(self.figures))


Comparable = Evaluation | Evaluations | Path | str
"""A result, several, or the run folder of some."""


def _compared(results: Sequence[Comparable], common: bool) -> PairedComparison:
    from besiege.bench.comparable import Candidate, candidate_of, candidates_of
    from besiege.bench.comparison import compare

    candidates: list[Candidate] = []
    for number, result in enumerate(results):
        if isinstance(result, (Path, str)):
            candidates += candidates_of([result])
        elif isinstance(result, (Evaluation, Evaluations)):
            for one in [result] if isinstance(result, Evaluation) else result:
                candidates.append(candidate_of(one.folder, one._plan, one.figures, number))
        else:
            raise InputError(
                "results of besiege.evaluate and run folders can be compared, but not "
                f"{type(result).__name__}"
            )
    return compare(candidates, common=common)


def _named(evaluation: Evaluation, what: str) -> str:
    figures = evaluation.figures
    return figures.model.title if what == "model" else figures.threat.text


def _is_called(evaluation: Evaluation, what: str, name: str) -> bool:
    """Models are called by their names in the benchmark, and by their texts."""
    figures = evaluation.figures
    return figures.model.is_called(name) if what == "model" else name == figures.threat.text


def labelled_rows(evaluations: Sequence[Evaluation]) -> Rows:
    """The rows of evaluations, one below the other, with the columns that all of them have.

    Before these stand ``model``, ``data``, ``threat`` and ``evaluation``, a digest by which also
    evaluations of one model under one threat are told apart, such as those of other counts or
    seeds. Where only some have names of files, the others have empty ones; models that never reject
    have no suspicion.
    """
    named = any("file" in one.rows for one in evaluations)
    rejecting = any("rejected" in one.rows for one in evaluations)
    tables = []
    for one in evaluations:
        rows, figures = one.rows, one.figures
        about = {
            "model": figures.model.title,
            "data": figures.data.name,
            "threat": figures.threat.text,
            "evaluation": figures.name,
            **({"file": ""} if named else {}),
        }
        columns = {name: filled_with(text, rows.count) for name, text in about.items()}
        if rejecting and "rejected" not in rows:
            rows = rows.having(rejected=False, suspicion=np.nan)
        tables.append(Rows({**columns, **rows}))
    return tables[0] if len(tables) == 1 else Rows.joined(tables)


def evaluation_of(
    run: RunFigures,
    folder: Path,
    plan: Plan,
    counts: Mapping[str, tuple[int, int]] | None = None,
    held: object = None,
) -> Evaluation:
    """The result of a plan, from the figures of its run."""
    # Two requests may have the same answer: copied weights, the same images in another file, or
    # attacks written as presets and written out.
    about = plan.name, plan.model.name, plan.data.name, plan.threat
    titles = [spec.title for spec in plan.attacks]
    mine = next(
        one
        for one in run.evaluations
        if (one.name, one.model.name, one.data.name, one.threat.text) == about
        and [attack.text for attack in one.attacks][: len(titles)] == titles
    )
    if mine.clean is None:
        failed = next((one.seen for one in mine.warnings if one.id == "FAILED"), "")
        raise VictimError(f"the model failed on all clean images. {failed}")
    return Evaluation(
        mine.clean,
        mine.robust,
        {one.text: one.accuracy for one in mine.attacks if one.accuracy is not None},
        mine.warnings,
        mine,
        folder,
        mine.complete,
        plan,
        run,
        counts,
        held,
    )

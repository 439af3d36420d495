"""The smallest perturbations that attacks found: their sizes, and the sizes against cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from besiege.core.errors import InputError
from besiege.core.threat import Norm
from besiege.metrics.attack_values import AttackSizes, Descent, Distances, Sizes
from besiege.metrics.evidence import Evidence, Trial
from besiege.metrics.optimality import area, fall, local_optimality
from besiege.metrics.rows import Rows, places

BEST = "best_after_"
"""Prefix of the columns with the smallest distance claimed within a number of passes."""

IN_ALL = "best_in_all"
"""The column of the smallest distance claimed by the whole run."""

NORMS = tuple(sorted(map(str, Norm)))
Numbers = NDArray[np.float64]


def quantile(distances: ArrayLike, share: float = 0.5) -> float:
    """The smallest budget at which at least this share of the samples is broken.

    Parameters
    ----------
    distances : array
        ``[samples]``, infinite where no attack succeeded.
    share : float
        0.5 for the median.

    Returns
    -------
    float
        One of the distances, never a mean of two; infinite where fewer are broken at any size.

    Examples
    --------
    >>> quantile([0.4, 0.1, 0.2, np.inf]), quantile([0.4, 0.1, 0.2, np.inf], 0.9)
    (0.2, inf)
    """
    ordered = np.sort(np.asarray(distances, dtype=np.float64))
    if not len(ordered) or not 0 < share <= 1:
        raise InputError(f"the share {share!r} of {len(ordered)} distances is not known")
    return float(ordered[max(0, int(np.ceil(share * len(ordered) - 1e-9)) - 1)])


def against_cost(descent: ArrayLike, share: float = 0.5) -> Numbers:
    """The median of the best distances so far, for every recorded number of passes.

    Parameters
    ----------
    descent : array
        ``[samples, marks]``, as ``besiege.attack(...).descent``: the smallest distance found
        within each number of passes, infinite before the first success. The marks are
        ``besiege.core.record.COSTS``, and a last one for the whole run.
    share : float
        The quantile, 0.5 for the median.

    Returns
    -------
    array
        ``[marks]``, falling from left to right.

    Examples
    --------
    >>> against_cost([[np.inf, 0.5, 0.2], [0.3, 0.3, 0.3], [np.inf, np.inf, 0.4]]).tolist()
    [inf, 0.5, 0.3]
    """
    table = np.asarray(descent, dtype=np.float64)
    if table.ndim != 2:
        raise InputError(f"the descent has the shape {table.shape}, not [samples, marks]")
    return np.array([quantile(column, share) for column in table.T])


def smallest(evidence: Evidence) -> Rows:
    """The smallest perturbation found for every sample, and its size in every norm.

    ``distance`` is 0 where a sample was misclassified when clean, and infinite where no attack
    succeeded; ``attack`` is the first attack that found it. ``l0``, ``l1``, ``l2`` and ``linf`` are
    the sizes of that one image, not the smallest in each norm; ``record`` and ``row`` say where it
    is stored.
    """
    ids, ends = evidence.smallest()
    count = len(ids)
    sizes: dict[str, Any] = {norm: np.where(ends == 0, 0.0, np.inf) for norm in NORMS}
    attack = np.full(count, "", dtype=object)
    record, row = np.full(count, "", dtype=object), np.full(count, -1, np.int64)
    for trial in evidence.searches():
        where = places(ids, trial.rows["sample"])
        broken = evidence.broken(trial) & (where >= 0)
        rows, where = trial.rows.where(broken), where[broken]
        mine = (rows[evidence.norm] == ends[where]) & (attack[where] == "")
        rows, where = rows.where(mine), where[mine]
        attack[where] = trial.text
        for name, column in {**sizes, "record": record, "row": row}.items():
            if name in rows:
                column[where] = rows[name]
    labels = evidence.clean["label"][np.isin(evidence.clean["sample"], ids)]
    columns = {"sample": ids, "label": labels, "distance": ends, "attack": attack.astype(str)}
    return Rows({**columns, **sizes, "record": record.astype(str), "row": row})


def distance_figures(evidence: Evidence) -> Distances | None:
    """Sizes of the smallest perturbations, by each attack and by the best of all.

    All are over the same samples, those that every attack was judged on; a sample that was
    misclassified when clean counts as 0. Attacks that were meant for some samples only count among
    the best of all, and have no sizes of their own. None with a budget.
    """
    ids, best = evidence.smallest()
    if evidence.eps is not None or not len(ids):
        return None
    end = fall(best)
    sizes = []
    traces = [trace_of(evidence, trial, ids) for trial in evidence.attacks]
    for trial, trace in zip(evidence.attacks, traces, strict=True):
        mine = evidence.smallest([trial])[1]
        sizes.append(
            AttackSizes(
                **_sizes(mine, end),
                cost=None if trace is None else _cost(trace.marks, trace.table, trace.spent),
                text=trial.text,
                best=int(((mine == best) & np.isfinite(best) & (best > 0)).sum()),
                optimality=local_optimality(mine, best),
            )
        )
    broken = int((np.isfinite(best) & (best > 0)).sum())
    known = [trace for trace in traces if trace is not None]
    whole = Sizes(**_sizes(best, end), cost=_in_turn(known) if len(known) == len(traces) else None)
    return Distances(len(ids), broken, whole, tuple(sizes))


def _sizes(distances: Numbers, end: float) -> dict[str, Any]:
    """Median, mean, 90th percentile and area; infinite ones are None, since JSON has none."""
    return {
        "median": _finite(quantile(distances)),
        "mean": _finite(distances.mean()),
        "p90": _finite(quantile(distances, 0.9)),
        "area": area(distances, end),
        "area_to": end,
        "unbroken": int(np.isinf(distances).sum()),
    }


@dataclass(frozen=True)
class Trace:
    """The best distances of an attack within numbers of passes, and in all, for every sample.

    ``table`` is ``[samples, marks + 1]``; ``spent`` are all passes of each sample.
    """

    marks: Sequence[int]
    table: Numbers
    spent: NDArray[np.int64]

    def after(self, passes: NDArray[np.int64]) -> Numbers:
        """The best distance recorded for each sample within its own number of passes."""
        place = np.searchsorted(self.marks, passes, side="right") - 1
        best = self.table[np.arange(len(passes)), np.maximum(place, 0)]
        best = np.where(passes >= self.spent, self.table[:, -1], best)
        return np.where((place < 0) & (self.table[:, -1] > 0), np.inf, best)


def trace_of(evidence: Evidence, trial: Trial, ids: NDArray[np.int64]) -> Trace | None:
    """The trace of an attack; None where records do not have it."""
    marks = sorted(int(name.removeprefix(BEST)) for name in trial.rows if name.startswith(BEST))
    if not marks:
        return None
    rows = trial.rows.where(places(trial.rows["sample"], ids))
    names = [*(f"{BEST}{mark}" for mark in marks), *([IN_ALL] if IN_ALL in rows else [])]
    noted = np.stack([rows[name].astype(np.float64) for name in names], 1)
    if IN_ALL not in rows:  # records of older releases
        noted = np.concatenate((noted, noted[:, -1:]), 1)
    # A run that ended before a mark has no value there: its last one holds.
    table = np.fmin.accumulate(noted, axis=1)
    # A claimed distance below the judged one was not confirmed.
    judged = np.where(rows["success"].astype(bool), rows[evidence.norm], np.inf)
    table = np.maximum(table, judged[:, None])
    table[:, -1] = judged
    table[~np.isin(ids, evidence.clean["sample"][evidence.right])] = 0.0
    if np.isnan(table).any():  # records of older releases
        return None
    return Trace(marks, table, (rows["queries"] + rows["backwards"]).astype(np.int64))


def _in_turn(traces: Sequence[Trace]) -> Descent:
    """The median distance against passes of all attacks, run one after the other."""
    spent = np.sum([trace.spent for trace in traces], axis=0)
    marks, columns = round_marks(spent.max()), []
    for mark in marks:
        best, left = np.full(len(spent), np.inf), np.full(len(spent), mark)
        for trace in traces:
            best, left = np.minimum(best, trace.after(left)), left - trace.spent
        columns.append(best)
    columns.append(np.min([trace.table[:, -1] for trace in traces], axis=0))
    return _cost(marks, np.stack(columns, 1), spent)


def round_marks(most: int) -> list[int]:
    """Numbers of passes, three per decade, of which only the last is `most` or more.

    Examples
    --------
    >>> round_marks(37)
    [1, 2, 5, 10, 20, 50]
    """
    marks = [m * 10**k for k in range(len(str(most)) + 1) for m in (1, 2, 5)]
    return marks[: 1 + next(n for n, mark in enumerate(marks) if mark >= most)]


def _cost(marks: Sequence[int], table: Numbers, spent: NDArray[np.int64]) -> Descent:
    """The median of the best distances within numbers of passes and in all, and the mean passes."""
    *medians, in_all = (_finite(value) for value in against_cost(table))
    return Descent(tuple(marks), tuple(medians), in_all, float(spent.mean()))


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None

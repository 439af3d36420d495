"""The smallest changes that attacks found: their size over all samples, and against cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from besiege.core.errors import InputError
from besiege.metrics.evidence import Evidence, Trial
from besiege.metrics.optimality import area, fall, local_optimality
from besiege.metrics.rows import Rows, places
from besiege.metrics.values import AttackSizes, Descent, Distances, Sizes

BEST = "best_after_"
"""How columns begin that hold the smallest distance claimed within so many passes."""

IN_ALL = "best_in_all"
"""The column of the smallest distance claimed by the whole run."""

NORMS = ("l0", "l1", "l2", "linf")
Numbers = NDArray[np.float64]


def quantile(distances: ArrayLike, share: float = 0.5) -> float:
    """The smallest budget at which at least this share of the samples has fallen.

    Parameters
    ----------
    distances : array
        ``[samples]``, infinite where nothing was found.
    share : float
        0.5 for the median.

    Returns
    -------
    float
        One of the distances, never a mean of two; infinite where fewer fall at any size.

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
    """The median of the best distances so far, for every number of passes they were noted at.

    Parameters
    ----------
    descent : array
        ``[samples, marks]``, as ``besiege.attack(...).descent``: the smallest distance found
        within each number of passes, infinite before the first success. The marks are
        ``besiege.core.record.COSTS``, and a last one for the whole run.
    share : float
        Another quantile than the median.

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
    """The smallest change that was found for every sample, and what it is in every norm.

    ``distance`` is 0 where a sample was wrong when clean and infinite where nothing was found;
    ``attack`` is what found it, the first of equal ones. ``l0``, ``l1``, ``l2`` and ``linf`` are
    those of that one image, not the smallest in each norm; ``record`` and ``row`` say where it is.
    """
    ids, ends = evidence.smallest()
    count = len(ids)
    found: dict[str, Any] = {norm: np.where(ends == 0, 0.0, np.inf) for norm in NORMS}
    attack = np.full(count, "", dtype=object)
    record, row = np.full(count, "", dtype=object), np.full(count, -1, np.int64)
    for trial in evidence.searches():
        where = places(ids, trial.rows["sample"])
        broken = evidence.broken(trial) & (where >= 0)
        rows, where = trial.rows.where(broken), where[broken]
        mine = (rows[evidence.norm] == ends[where]) & (attack[where] == "")
        rows, where = rows.where(mine), where[mine]
        attack[where] = trial.text
        for name, column in {**found, "record": record, "row": row}.items():
            if name in rows:
                column[where] = rows[name]
    labels = evidence.clean["label"][np.isin(evidence.clean["sample"], ids)]
    columns = {"sample": ids, "label": labels, "distance": ends, "attack": attack.astype(str)}
    return Rows({**columns, **found, "record": record.astype(str), "row": row})


def distance_figures(evidence: Evidence) -> Distances | None:
    """How large the smallest changes are, by each attack and by the best of all.

    All are of the same samples, those that every attack was judged on; a sample that was wrong
    when clean counts as 0. None with a budget, where attacks do not look for the smallest change.
    """
    ids, best = evidence.smallest()
    if evidence.eps is not None or not len(ids):
        return None
    end = fall(best)
    sizes = []
    traces = [_trace(evidence, trial, ids) for trial in evidence.trials]
    for trial, trace in zip(evidence.trials, traces, strict=True):
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
    """Median, mean, 90th percentile and area; what is infinite is None, as JSON has no word."""
    mean = float(distances.mean())
    return {
        "median": _finite(quantile(distances)),
        "mean": _finite(mean),
        "p90": _finite(quantile(distances, 0.9)),
        "area": area(distances, end),
        "area_to": end,
        "unbroken": int(np.isinf(distances).sum()),
    }


@dataclass(frozen=True)
class _Trace:
    """What an attack had found within so many passes, and in all, for samples in order.

    ``table`` is ``[samples, marks + 1]``; ``spent`` is the passes of each sample in all.
    """

    marks: Sequence[int]
    table: Numbers
    spent: NDArray[np.int64]

    def after(self, passes: NDArray[np.int64]) -> Numbers:
        """What is known to have been found for each sample within so many passes of its own."""
        place = np.searchsorted(self.marks, passes, side="right") - 1
        found = self.table[np.arange(len(passes)), np.maximum(place, 0)]
        found = np.where(passes >= self.spent, self.table[:, -1], found)
        return np.where((place < 0) & (self.table[:, -1] > 0), np.inf, found)


def _trace(evidence: Evidence, trial: Trial, ids: NDArray[np.int64]) -> _Trace | None:
    """The trace of an attack; None where records do not say."""
    marks = sorted(int(name.removeprefix(BEST)) for name in trial.rows if name.startswith(BEST))
    if not marks:
        return None
    rows = trial.rows.where(places(trial.rows["sample"], ids))
    names = [*(f"{BEST}{mark}" for mark in marks), *([IN_ALL] if IN_ALL in rows else [])]
    noted = np.stack([rows[name].astype(np.float64) for name in names], 1)
    if IN_ALL not in rows:  # records of before it was noted
        noted = np.concatenate((noted, noted[:, -1:]), 1)
    # A record that was done before a mark does not have it: there its last one holds.
    table = np.fmin.accumulate(noted, axis=1)
    # What is smaller than what the judge measured was claimed of a point that did not hold.
    judged = np.where(rows["success"].astype(bool), rows[evidence.norm], np.inf)
    table = np.maximum(table, judged[:, None])
    table[:, -1] = judged
    table[~np.isin(ids, evidence.clean["sample"][evidence.right])] = 0.0
    if np.isnan(table).any():  # records of before it was noted
        return None
    return _Trace(marks, table, (rows["queries"] + rows["backwards"]).astype(np.int64))


def _in_turn(traces: Sequence[_Trace]) -> Descent:
    """The same of all attacks, one after the other: what a sample had cost and come to by then."""
    spent = np.sum([trace.spent for trace in traces], axis=0)
    marks = [m * 10**k for k in range(len(str(spent.max()))) for m in (1, 2, 5)]
    last = next((n for n, mark in enumerate(marks) if mark >= spent.max()), len(marks) - 1)
    columns = []
    for mark in marks[: last + 1]:
        best, left = np.full(len(spent), np.inf), np.full(len(spent), mark)
        for trace in traces:
            best, left = np.minimum(best, trace.after(left)), left - trace.spent
        columns.append(best)
    columns.append(np.min([trace.table[:, -1] for trace in traces], axis=0))
    return _cost(marks[: last + 1], np.stack(columns, 1), spent)


def _cost(marks: Sequence[int], table: Numbers, spent: NDArray[np.int64]) -> Descent:
    """The median of the best distances within so many passes and in all, and the mean passes."""
    *medians, in_all = (_finite(value) for value in against_cost(table))
    return Descent(tuple(marks), tuple(medians), in_all, float(spent.mean()))


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None

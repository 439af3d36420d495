"""The judged rows of one evaluation as arrays: one row per attack, one column per sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from besiege.metrics.across import across_of
from besiege.metrics.clever import MARKS, mark
from besiege.metrics.comparing import outcomes_of
from besiege.metrics.distances import Trace, round_marks, trace_of
from besiege.metrics.evidence import Evidence, Mask, Trial
from besiege.metrics.rows import places

Ids = NDArray[np.int64]
Numbers = NDArray[np.float64]
Counts = NDArray[np.int32]
Single = NDArray[np.float32]

COUNTED = ("first_step", "first_query", "queries", "forwards", "backwards")
"""Columns of numbers of steps, queries and passes."""


@dataclass(frozen=True, eq=False)
class Outcomes:
    """What happened to every sample under every attack of one evaluation.

    Attributes
    ----------
    samples, labels : array ``[n]``
        Ids in the order of the evaluation, and their classes.
    correct, known, robust : array ``[n]``
        Classified correctly without an attack; judged under every attack; of these, withstood all.
    attacks : tuple of str
        The attacks, in order.
    covered, left : array ``[a, n]``
        Whether an attack was judged on a sample, and whether the sample withstands it. In a suite,
        samples that an earlier attack broke are covered and not left.
    success : array ``[a, n]``
        Whether this attack broke the sample, which was classified correctly before.
    distance : array ``[a, n]``
        The size of the perturbation that broke it, in the threat's norm. In a search: infinite
        where none was found, 0 where the clean sample is misclassified. With a budget: NaN where
        the attack did not break the sample. NaN where the attack was not run.
    aimed : array ``[a, n]``
        Of a targeted attack the size of the perturbation whose image is classified as the target,
        whether or not the clean sample is classified correctly: 0 where that is classified as the
        target already, infinite where no such image was found. NaN where the attack was not run,
        and of an untargeted one.
    first_step, first_query, queries, forwards, backwards : array ``[a, n]``
        Step and query of the first success, -1 where there was none, and the cost; -1 where the
        attack was not run, or its images were made elsewhere.
    searched : array ``[n]``
        The smallest perturbation that any search found, as of a search; NaN where none was made.
    passes : array ``[k]``
        Numbers of passes, of searches; none with a budget.
    best : array ``[a, n, k]``
        The smallest perturbation that an attack had found within so many passes: infinite before
        the first success, 0 where the clean sample is misclassified, NaN where not recorded.
    judged_across, fooled, rank, seen : array ``[a, t, n]``, and ``[t, n]``
        What the images do to the model itself and to others, as in `besiege.metrics.across`.
    estimate : array ``[n]``
        CLEVER scores; NaN where there is none.
    estimates : array ``[n, k]``
        The same after the numbers of batches in `besiege.metrics.clever.MARKS`, where known.
    """

    samples: Ids
    labels: Ids
    correct: Mask
    known: Mask
    robust: Mask
    attacks: tuple[str, ...]
    covered: Mask
    left: Mask
    success: Mask
    distance: Numbers
    aimed: Numbers
    first_step: Counts
    first_query: Counts
    queries: Counts
    forwards: Counts
    backwards: Counts
    searched: Numbers
    passes: Ids
    best: Single
    judged_across: Mask
    fooled: Mask
    rank: Counts
    seen: Mask
    estimate: Numbers
    estimates: Numbers

    @classmethod
    def of(cls, evidence: Evidence) -> Outcomes:
        """The outcomes of an evaluation."""
        table, trials = outcomes_of(evidence), evidence.trials
        ids, shape = table["sample"], (len(trials), evidence.count)
        counted = {name: np.full(shape, -1, np.int32) for name in COUNTED}
        covered, left, success = (np.zeros(shape, bool) for _ in range(3))
        distance, aimed = np.full(shape, np.nan), np.full(shape, np.nan)
        for number, trial in enumerate(trials):
            covered[number] = evidence.covered(trial)
            left[number] = evidence.left_by(trial) & covered[number]
            where = places(ids, trial.rows["sample"])
            success[number, where] = evidence.broken(trial)
            distance[number, where] = _distances(evidence, trial)
            aimed[number, where] = _aimed(evidence, trial, where)
            for name, column in counted.items():
                if name in trial.rows and not trial.given:
                    column[number, where] = trial.rows[name]
            if evidence.eps is None:
                distance[number, covered[number] & ~evidence.right] = 0.0
        searched = np.full(evidence.count, np.nan)
        found, ends = evidence.smallest()
        searched[places(ids, found)] = ends
        passes, best = _descents(evidence, shape)
        judged, fooled, rank, seen = across_of(evidence)
        return cls(
            ids,
            table["label"],
            table["correct"],
            table["known"],
            table["robust"],
            tuple(trial.text for trial in trials),
            covered,
            left,
            success,
            distance,
            aimed,
            **counted,
            searched=searched,
            passes=passes,
            best=best,
            judged_across=judged,
            fooled=fooled,
            rank=rank,
            seen=seen,
            estimate=_estimates(evidence)[:, -1],
            estimates=_estimates(evidence)[:, :-1],
        )


def _descents(evidence: Evidence, shape: tuple[int, int]) -> tuple[Ids, Single]:
    """Numbers of passes, and the best distances of every attack and sample within each."""
    found: list[Trace | None] = [None for _ in evidence.trials]
    if evidence.eps is None:
        found = [trace_of(evidence, trial, trial.rows["sample"]) for trial in evidence.trials]
    most = max((int(one.spent.max(initial=0)) for one in found if one is not None), default=0)
    marks = round_marks(most) if most else []
    best = np.full((*shape, len(marks)), np.nan, np.float32)
    for number, (trace, trial) in enumerate(zip(found, evidence.trials, strict=True)):
        if trace is not None:
            where = places(evidence.clean["sample"], trial.rows["sample"])
            for place, mark in enumerate(marks):
                best[number, where, place] = trace.after(np.full(len(where), mark))
    return np.array(marks, np.int64), best


def _estimates(evidence: Evidence) -> Numbers:
    """The CLEVER scores of every sample: after some numbers of batches, and after all."""
    ids, names = evidence.clean["sample"], [*map(mark, MARKS), "score"]
    found = np.full((evidence.count, len(names)), np.nan)
    rows = evidence.others.get("clever")
    for place, name in enumerate(names):
        if rows is not None and rows.count and name in rows:
            found[places(ids, rows["sample"]), place] = rows[name]
    return found


def _distances(evidence: Evidence, trial: Trial) -> Numbers:
    """The size of each row's perturbation where it broke the sample."""
    nothing = np.inf if evidence.eps is None else np.nan
    found: Numbers = np.where(evidence.broken(trial), trial.rows[evidence.norm], nothing)
    return found


def _aimed(evidence: Evidence, trial: Trial, where: Ids) -> Numbers:
    """The size of each row's perturbation where its image is classified as the target."""
    sizes = np.where(trial.rows["success"].astype(bool), trial.rows[evidence.norm], np.inf)
    if "target" not in trial.rows or trial.given:
        return np.full(len(where), np.nan)
    targets = trial.rows["target"]
    sizes[evidence.clean["prediction"][where] == targets] = 0.0
    return np.where(targets < 0, np.nan, sizes)

"""Accuracy against steps, queries and the budget, with pointwise exact intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from besiege.metrics.evidence import Evidence, Trial
from besiege.metrics.intervals import exact_intervals
from besiege.metrics.rows import places
from besiege.metrics.strength import broken_at

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """A share of the samples as a falling step function.

    Attributes
    ----------
    x, value, low, high : array
        From ``x[i]`` up to ``x[i + 1]`` the share is ``value[i]``, with a 95 % interval.
    count : int
        The number of samples.
    """

    x: Numbers
    value: Numbers
    low: Numbers
    high: Numbers
    count: int

    def at(self, x: float) -> float:
        """The share at a point."""
        return float(self.value[max(int(np.searchsorted(self.x, x, side="right")) - 1, 0)])


def survival(x: Numbers, ends: Numbers, count: int) -> Curve:
    """The share of `count` samples that are broken beyond each point, or not at all.

    Parameters
    ----------
    x : array
        Points, ascending.
    ends : array
        Where each sample is broken, infinite for those that are not; samples that are not listed
        were broken before the first point.
    count : int
        The number of samples.
    """
    ordered = np.sort(np.asarray(ends, dtype=np.float64))
    left = len(ordered) - np.searchsorted(ordered, x, side="right")
    low, high = exact_intervals(left, count)
    return Curve(np.asarray(x, dtype=np.float64), left / max(count, 1), low, high, count)


def against_steps(evidence: Evidence, trial: Trial) -> Curve | None:
    """Accuracy after 0, 1, 2, ... steps of one run, from the step of each first success.

    Step 0 is the starting point. The samples are those that the attack was judged on; in a suite,
    those that an earlier attack broke count as broken from the start.
    """
    asked = 0 if trial.steps is None else trial.steps * trial.restarts + trial.restarts - 1
    return _against(evidence, trial, "first_step", asked)


def against_queries(evidence: Evidence, trial: Trial) -> Curve | None:
    """Accuracy after 0, 1, 2, ... queries of one run, from the query of each first success.

    The samples are those of `against_steps`. A run with fewer queries is the beginning of this one.
    """
    return _against(evidence, trial, "first_query", int(trial.rows["queries"].max(initial=0)))


def _against(evidence: Evidence, trial: Trial, what: str, asked: int) -> Curve | None:
    covered = evidence.covered(trial)
    if not covered.any():
        return None
    seen = trial.rows[what]
    last = max(asked, int(seen.max(initial=0)))
    broken = evidence.broken(trial)
    ended = broken_at(seen, broken, ~broken, last)
    before = evidence.standing(evidence.before(trial)) & covered
    # All of these were judged: a sample that is covered and was not attacked fell before.
    ends = ended[places(trial.rows["sample"], evidence.clean["sample"][before])]
    return survival(np.arange(last + 1, dtype=np.float64), ends, int(covered.sum()))


def against_budget(evidence: Evidence, trials: Sequence[Trial] | None = None) -> Curve | None:
    """Accuracy against the budget, exactly from the smallest perturbations, without a grid.

    They are the smallest of all attacks, or of `trials` only.
    """
    _, ends = evidence.smallest(trials)
    if not len(ends):
        return None
    points = np.unique(np.concatenate(([0.0], ends[np.isfinite(ends)])))
    return survival(points, ends, len(ends))

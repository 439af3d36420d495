"""Where the order of two models changes with the budget, and whether the images can tell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from besiege.core.errors import InputError
from besiege.metrics.distances import quantile
from besiege.metrics.intervals import round_numbers, two_digits
from besiege.metrics.paired import LEVEL, POWER, paired_intervals, score_variance
from besiege.metrics.resampling import (
    Numbers,
    Resampling,
    blocks,
    critical,
    known_images,
    resamples_of,
)
from besiege.metrics.searches import ROUNDING

SMALLEST = 0.01
"""The smallest difference that counts as one: a percentage point."""

_BUDGETS, _BROKEN = 40, 0.95
"""About how many budgets are compared, and the share of the broken images that they reach."""

Verdict = Literal["crossing", "no crossing", "cannot tell"]


@dataclass(frozen=True)
class Change:
    """A change of the order.

    Attributes
    ----------
    leader : bool
        Whether the first of the two models is the better one before the change.
    before, after : float
        The last point at which one is clearly better, and the first at which the other is.
    at : float
        Between them, the first point at which the observed order is the later one.
    """

    leader: bool
    before: float
    after: float
    at: float


@dataclass(frozen=True, eq=False)
class Crossing:
    """Two curves on the same images: the first less the second, and whether their order changes.

    Attributes
    ----------
    verdict : str
        ``crossing``: the band of the difference is above 0 at one point and below 0 at another.
        ``no crossing``: the band rules out that the order changes by `SMALLEST` or more.
        ``cannot tell`` otherwise.
    changes : tuple of Change
        The changes of the order, for a crossing.
    suggested : Change, optional
        The change of the order between the points that speak most for the first and most for the
        second, by `SMALLEST` or more, certain or not. Between them, the last change is meant.
    needed : int, optional
        About how many images would tell, where these cannot: to show the crossing that they
        suggest, or to rule one out.
    x, value, low, high : array of shape (points,)
        The difference and its simultaneous band, which holds for all pairs together.
    count : int
        Number of images that were judged for both.
    """

    verdict: Verdict
    changes: tuple[Change, ...]
    suggested: Change | None
    needed: int | None
    x: Numbers
    value: Numbers
    low: Numbers
    high: Numbers
    count: int


def crossing(
    first: ArrayLike, second: ArrayLike, x: ArrayLike, *, level: float = LEVEL
) -> Crossing:
    """Whether the order of two models changes; see `crossings`.

    Examples
    --------
    >>> first, second = np.full(400, 0.1), np.tile([0.05, 0.15], 200)
    >>> found = crossing(first, second, [0.02, 0.07, 0.12, 0.17])
    >>> found.verdict, found.value.tolist()
    ('crossing', [0.0, 0.5, -0.5, 0.0])
    >>> found.changes
    (Change(leader=True, before=0.07, after=0.12, at=0.12),)
    """
    return crossings(np.asarray(first)[None], np.asarray(second)[None], x, level=level)[0]


def crossings(
    first: ArrayLike,
    second: ArrayLike,
    x: ArrayLike,
    known: ArrayLike | None = None,
    *,
    level: float = LEVEL,
    resampling: Resampling | None = None,
) -> tuple[Crossing, ...]:
    """Whether the order of two curves changes, for many pairs.

    The difference at a point has the score interval of paired proportions (Tango 1998). Its level
    is stricter than 95 %, such that the band holds at all points of all pairs together: among any
    number of pairs, a crossing that is not there is found in at most 5 % of all experiments.

    Parameters
    ----------
    first, second : array of shape (pairs, images)
        Where each image is broken, as those of `besiege.metrics.bands.accuracy_bands`, of the two
        models of each pair.
    x : array of shape (points,)
        Budgets, steps or queries, ascending.
    known : array that broadcasts to the shape of `first`, optional
        Images that were judged for both. Values that are not a number are not known.
    level : float
        The level of the band.
    resampling : Resampling, optional
        By default 2,000 resamples with seed 0, and more for levels above 99.5 %.

    Returns
    -------
    tuple of Crossing
        One for each pair.
    """
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    points = np.asarray(x, dtype=np.float64)
    if one.ndim != 2 or one.shape != other.shape or not one.size:
        raise InputError(
            f"the two models have values of the shapes {one.shape} and {other.shape}: expected "
            "[pairs, images] of both, in the same order"
        )
    if points.ndim != 1 or not len(points) or bool((np.diff(points) <= 0).any()):
        raise InputError("points must be ascending, and at least one is needed")
    there = known_images(known, one.shape) & ~np.isnan(one) & ~np.isnan(other)
    drawn = Resampling.of(one.shape[1], resamples_of(level)) if resampling is None else resampling
    largest, counts = np.zeros(len(drawn.weights), np.float32), []
    for block in blocks(len(one), len(points)):
        signs = _signs(one[block], other[block], points) * there[block, None].astype(np.int8)
        largest = np.maximum(largest, drawn.largest(signs, there[block]).max(1))
        counts.append(np.stack(((signs > 0).sum(2), (signs < 0).sum(2)), 1))
    within = float(critical(largest[:, None], level)[0])
    number = there.sum(1)
    return tuple(
        _decide(points, mine, theirs, int(n), within)
        for (mine, theirs), n in zip(np.concatenate(counts), number, strict=True)
    )


def along_budget(
    distances: ArrayLike,
    pairs: Sequence[tuple[int, int]],
    *,
    unit: float = 1.0,
    resampling: Resampling | None = None,
) -> tuple[Crossing | None, ...]:
    """Whether the order of pairs of models changes with the budget, at round budgets.

    Parameters
    ----------
    distances : array of shape (models, images)
        The smallest perturbations: 0 where misclassified when clean, infinite where none was found,
        NaN where not known.
    pairs : sequence of (int, int)
        Pairs of models, by their places.
    unit : float
        Budgets are round numbers of ``1 / unit``, such as 255, from 0 to where 95 % of the images
        that are broken at all are broken for every model.
    resampling : Resampling, optional
        As of `crossings`.

    Returns
    -------
    tuple of (Crossing or None)
        For each pair; None without an image that is known for both.

    Examples
    --------
    >>> first, second = np.full(400, 0.1), np.tile([0.05, 0.15], 200)
    >>> (found,) = along_budget([first, second], [(0, 1)])
    >>> found.verdict, found.changes[0].before, found.changes[0].after
    ('crossing', 0.095, 0.1)
    """
    table = np.asarray(distances, dtype=np.float64)
    known = ~np.isnan(table)
    there = [pair for pair in pairs if (known[pair[0]] & known[pair[1]]).any()]
    ends = [quantile(row[np.isfinite(row)], _BROKEN) for row in table if np.isfinite(row).any()]
    end = max(ends, default=0.0)
    if not there or not end > 0:
        return (None,) * len(pairs)
    x = np.array(round_numbers(0.0, end * unit, _BUDGETS)) / unit
    one, other = (table[[pair[place] for pair in there]] for place in (0, 1))
    found = dict(zip(there, crossings(one, other, x, resampling=resampling), strict=True))
    return tuple(found.get(pair) for pair in pairs)


def _signs(one: Numbers, other: Numbers, x: Numbers) -> NDArray[np.int8]:
    """At every point 1 for an image that only the first withstands, -1 for one of the second."""
    held = (each[:, None, :] > x[:, None] * (1 + ROUNDING) for each in (one, other))
    first, second = (each.astype(np.int8) for each in held)
    return np.asarray(first - second)


def _decide(
    x: Numbers, only_first: NDArray[np.int64], only_second: NDArray[np.int64], n: int, z: float
) -> Crossing:
    if n == 0:
        nothing = np.zeros(len(x))
        return Crossing("cannot tell", (), None, None, x, nothing, nothing - 1, nothing + 1, 0)
    low, high = paired_intervals(only_first, only_second, n, z)
    value = (only_first - only_second) / n
    changes = _changes(x, value, np.sign((low > 0) - 1.0 * (high < 0)))
    suggested = _suggested(x, value, value / _errors(only_first, only_second, n))
    verdict: Verdict = "crossing" if changes else "cannot tell"
    if not changes and (low.min() > -SMALLEST or high.max() < SMALLEST):
        verdict = "no crossing"
    needed = _needed(only_first, only_second, n, z) if verdict == "cannot tell" else None
    return Crossing(verdict, changes, suggested, needed, x, value, low, high, n)


def _changes(x: Numbers, value: Numbers, order: Numbers) -> tuple[Change, ...]:
    """Neighbouring points with an order, 1 or -1, where it is not the same."""
    found = []
    for before, after in pairwise(np.flatnonzero(order).tolist()):
        if order[before] != order[after]:
            later = value[before : after + 1] * order[after] > 0
            at = before + int(later.argmax())
            leader = bool(order[before] > 0)
            found.append(Change(leader, float(x[before]), float(x[after]), float(x[at])))
    return tuple(found)


def _suggested(x: Numbers, value: Numbers, evidence: Numbers) -> Change | None:
    """The last change of the observed order between the points with most evidence for each."""
    ends = sorted((int(evidence.argmax()), int(evidence.argmin())))
    between = slice(ends[0], ends[1] + 1)
    order = np.sign((value >= SMALLEST) - 1.0 * (value <= -SMALLEST))
    if order[ends[0]] * order[ends[1]] >= 0:
        return None
    return _changes(x[between], value[between], order[between])[-1]


def _errors(only_first: NDArray[np.int64], only_second: NDArray[np.int64], n: int) -> Numbers:
    """The standard errors of differences without a true difference."""
    return np.asarray(np.sqrt(np.maximum(only_first + only_second, 1)) / n)


def _needed(
    only_first: NDArray[np.int64], only_second: NDArray[np.int64], n: int, z: float
) -> int | None:
    """About how many images show the crossing that these suggest, or rule out any, with 90 % power.

    Standard errors shrink with the root of the number of images. A crossing is suggested where the
    observed differences have both signs, by at least `SMALLEST`.
    """
    value = (only_first - only_second) / n
    power = NormalDist().inv_cdf(POWER)
    if min(value.max(), -value.min()) >= SMALLEST:
        evidence = value / _errors(only_first, only_second, n)
        images = n * ((z + power) / min(evidence.max(), -evidence.min())) ** 2
    else:
        if value.max() < -value.min():
            only_first, only_second, value = only_second, only_first, -value
        # The band must exclude a reversal. It has a width where no images differ, too.
        band = z * np.sqrt(score_variance(only_first, only_second, n, -SMALLEST))
        chance = power * np.sqrt((only_first + only_second) / n - value**2)
        images = float(((band + chance) / (value + SMALLEST)).max()) ** 2
    return two_digits(max(math.ceil(images), n + 1))

"""Bands around curves of accuracy and success rate, for many models and attacks at once.

A pointwise band covers the true rate at one budget in 95 % of all experiments; a simultaneous band
covers the whole curve. Both are exact binomial intervals (Clopper-Pearson). The level of the
simultaneous one is stricter: in 95 % of the resamples, the whole curve deviates by no more standard
errors than it allows at a point. Percentiles of resamples are no bands: where no image of a
thousand is broken none is in any resample, and the percentiles say that none can be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from besiege.core.errors import InputError
from besiege.metrics.distances import quantile
from besiege.metrics.intervals import exact_intervals
from besiege.metrics.paired import LEVEL
from besiege.metrics.resampling import (
    Known,
    Numbers,
    Resampling,
    critical,
    known_images,
    moments,
)
from besiege.metrics.searches import ROUNDING


@dataclass(frozen=True, eq=False)
class Bands:
    """Curves with their bands.

    Attributes
    ----------
    x : array of shape (points,)
        Budgets, steps, queries or passes.
    value : array of shape (..., points)
        The shares.
    low, high : array of shape (..., points)
        The pointwise 95 % band.
    lowest, highest : array of shape (..., points)
        The simultaneous 95 % band: of each curve, or of all curves together.
    count : array of shape (...)
        Number of images of each curve, its denominator.
    critical : array of shape (...)
        How many standard errors the simultaneous band allows; 1.96 for a single point.
    """

    x: Numbers
    value: Numbers
    low: Numbers
    high: Numbers
    lowest: Numbers
    highest: Numbers
    count: NDArray[np.int64]
    critical: Numbers


def accuracy_bands(
    ends: ArrayLike,
    x: ArrayLike,
    known: ArrayLike | None = None,
    *,
    together: bool = False,
    resampling: Resampling | None = None,
) -> Bands:
    """The share of images that are broken beyond each point, or not at all.

    Parameters
    ----------
    ends : array of shape (..., images)
        Where each image is broken: its smallest perturbation, or the step or query of the first
        success. 0 where it is misclassified when clean, infinite where it is never broken.
    x : array of shape (points,)
        Budgets, steps or queries.
    known : array that broadcasts to the shape of `ends`, optional
        Which images were judged; the others are left out. Ends that are not a number are not known.
    together : bool
        Whether the simultaneous bands hold for all curves at once, not for each one.
    resampling : Resampling, optional
        By default 2,000 resamples with seed 0.

    Returns
    -------
    Bands

    Examples
    --------
    >>> found = accuracy_bands([[0.0, 0.1, 0.2, np.inf]], [0.0, 0.1, 0.3])
    >>> found.value.tolist(), found.count.tolist()
    ([[0.75, 0.5, 0.25]], [4])
    """
    broken, there = _broken(ends, x, known)
    return share_bands(~broken, x, there, together=together, resampling=resampling)


def success_bands(
    ends: ArrayLike,
    x: ArrayLike,
    among: ArrayLike | None = None,
    *,
    together: bool = False,
    resampling: Resampling | None = None,
) -> Bands:
    """The share of images that are broken up to each point: the success rate of the attack.

    `among` are the images of the denominator: the correctly classified ones for an untargeted
    attack, all judged ones for a targeted attack. The other parameters are those of
    `accuracy_bands`.

    Examples
    --------
    >>> ends = [0.0, 0.1, 0.2, np.inf]
    >>> success_bands(ends, [0.1, 0.3], np.greater(ends, 0)).value.round(3).tolist()
    [0.333, 0.667]
    """
    broken, there = _broken(ends, x, among)
    return share_bands(broken, x, there, together=together, resampling=resampling)


def _broken(ends: ArrayLike, x: ArrayLike, known: ArrayLike | None) -> tuple[Known, Known]:
    """Which images are broken up to each point, ``[..., points, images]``, and which are known."""
    where, there = _ends(ends, known)
    # Rounding may add as much to a distance within a budget.
    reach = np.asarray(x, dtype=np.float64) * (1 + ROUNDING)
    return where[..., None, :] <= reach[:, None], there


def share_bands(
    held: ArrayLike,
    x: ArrayLike,
    known: ArrayLike | None = None,
    *,
    together: bool = False,
    resampling: Resampling | None = None,
) -> Bands:
    """Shares of images at many points, with their bands.

    Parameters
    ----------
    held : array of bool of shape (..., points, images)
        Whether each image counts at each point.
    x, known, together, resampling
        As those of `accuracy_bands`.
    """
    counts, points = np.asarray(held, bool), np.asarray(x, dtype=np.float64)
    if counts.ndim < 2 or points.shape != counts.shape[-2:-1] or not counts.size:
        raise InputError(
            f"outcomes of the shape {counts.shape} at points of the shape {points.shape}: expected "
            "[..., points, images] with at least one of each"
        )
    outer, images = counts.shape[:-2], counts.shape[-1]
    there = known_images(known, (*outer, images)).reshape(-1, images)
    counts = counts.reshape(-1, *counts.shape[-2:])
    drawn = _fitting(resampling, images)
    largest = drawn.largest(counts, there)
    within = critical(largest.max(1, keepdims=True) if together else largest)
    within = np.broadcast_to(within, len(there))
    number = there.sum(1)
    hits = np.stack([(some & mine).sum(1) for some, mine in zip(counts, there, strict=True)])
    low, high = exact_intervals(hits, number[:, None])
    lowest, highest = exact_intervals(hits, number[:, None], _level(within)[:, None])
    shape = (*outer, len(points))
    return Bands(
        points,
        (hits / np.maximum(number, 1)[:, None]).reshape(shape),
        low.reshape(shape),
        high.reshape(shape),
        lowest.reshape(shape),
        highest.reshape(shape),
        number.reshape(outer),
        np.array(within).reshape(outer),
    )


@dataclass(frozen=True, eq=False)
class Summaries:
    """One number for each curve, with its 95 % interval.

    Attributes
    ----------
    value, low, high : array of shape (...)
        The numbers.
    end : float, optional
        Where an area ends: areas with different ends are not comparable.
    """

    value: Numbers
    low: Numbers
    high: Numbers
    end: float | None = None


def areas(
    distances: ArrayLike,
    end: float,
    known: ArrayLike | None = None,
    *,
    resampling: Resampling | None = None,
) -> Summaries:
    """The areas under accuracy against the budget, from 0 to `end`, without a grid.

    ``mean(min(d_i, E))`` (`besiege.metrics.area`) of every model and attack, with the interval of
    `bounded_means`.

    Examples
    --------
    >>> areas([[0.0, 0.25, 0.25, np.inf]], end=0.5).value.tolist()
    [0.25]
    """
    where, there = _ends(distances, known)
    if not (np.isfinite(end) and end > 0):
        raise InputError(f"the areas end at {end!r}, but a finite budget above 0 is needed")
    return bounded_means(np.minimum(where, end), end, there, resampling=resampling)


def bounded_means(
    values: Numbers, end: float, known: Known, *, resampling: Resampling | None = None
) -> Summaries:
    """The means of ``[..., images]`` values from 0 to `end` over the known images.

    The interval is by the deviations of resampled means in their own standard errors
    (bootstrap-t): such values are skewed, and percentiles of the means cover 92 % with 100 images.
    Equal values have no standard error, and the exact interval of a rate instead.

    Examples
    --------
    >>> bounded_means(np.array([0.0, 0.2, 0.4, 9.0]), 1.0, np.array([1, 1, 1, 0], bool)).value
    array(0.2)
    """
    outer, images = values.shape[:-1], values.shape[-1]
    there, capped = known.reshape(-1, images), values.reshape(-1, images)
    low, high = _mean_intervals(capped, there, _fitting(resampling, images))
    value, error = moments(capped, there)
    count = there.sum(1)
    all_or_none = exact_intervals(np.rint(count * value / end).astype(np.int64), count)
    low = np.where(error > 0, np.maximum(low, 0), all_or_none[0] * end)
    high = np.where(error > 0, np.minimum(high, end), all_or_none[1] * end)
    return Summaries(value.reshape(outer), low.reshape(outer), high.reshape(outer), float(end))


def _mean_intervals(
    values: Numbers, known: Known, resampling: Resampling
) -> tuple[Numbers, Numbers]:
    """The bootstrap-t intervals of the means of ``[rows, images]``."""
    mean, error = moments(values, known)
    moved = resampling.means(values, known).astype(np.float64)
    square = resampling.means(np.square(values), known)
    own = np.sqrt(np.maximum(square - moved**2, 0) / np.maximum(known.sum(1), 1))
    tail = (1 - LEVEL) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        # A resample of equal values has no error: it is as far as can be.
        studentised = np.nan_to_num((moved - mean) / own, nan=0.0)
    below, above = np.quantile(studentised, (tail, 1 - tail), axis=0, method="nearest")
    with np.errstate(invalid="ignore"):  # infinite times no error: replaced by the caller
        return mean - above * error, mean - below * error


def medians(distances: ArrayLike, known: ArrayLike | None = None) -> Summaries:
    """The median distances of every model and attack; infinite where fewer than half are broken.

    The interval lies between two of the distances, by the binomial distribution of how many are
    below the true median. It holds for any distribution, and needs no resampling.

    Examples
    --------
    >>> found = medians(np.arange(1.0, 101.0))
    >>> float(found.value), float(found.low), float(found.high)
    (50.0, 40.0, 61.0)
    """
    where, there = _ends(distances, known)
    images = where.shape[-1]
    rows = zip(where.reshape(-1, images), there.reshape(-1, images), strict=True)
    found = np.array([_median(row[mine]) for row, mine in rows]).T
    value, low, high = (each.reshape(where.shape[:-1]) for each in found)
    return Summaries(value, low, high)


def _median(distances: Numbers) -> tuple[float, float, float]:
    from scipy.special import bdtr  # slow to import

    if not len(distances):
        return np.nan, 0.0, np.inf
    count, tail = len(distances), (1 - LEVEL) / 2
    below = bdtr(np.arange(count + 1), count, 0.5)
    first = int(np.searchsorted(below, tail, side="right"))
    last = count + 1 - first  # the distribution is symmetric
    ordered = np.concatenate(([0.0], np.sort(distances), [np.inf]))
    return quantile(distances), float(ordered[first]), float(ordered[last])


def _ends(ends: ArrayLike, known: ArrayLike | None) -> tuple[Numbers, Known]:
    where = np.asarray(ends, dtype=np.float64)
    if where.ndim < 1 or not where.size or bool((where < 0).any()):
        raise InputError(
            f"values of the shape {where.shape}: expected [..., images], at least 0, and infinite "
            "for an image that was not broken"
        )
    return where, known_images(known, where.shape) & ~np.isnan(where)


def _fitting(resampling: Resampling | None, images: int) -> Resampling:
    drawn = Resampling.of(images) if resampling is None else resampling
    if drawn.weights.shape[1] != images:
        raise InputError(
            f"resamples of {drawn.weights.shape[1]} images do not fit values of {images}"
        )
    return drawn


def _level(deviation: Numbers) -> Numbers:
    """The level of an interval that reaches so many standard errors to both sides."""
    from scipy.special import ndtr  # slow to import

    return np.asarray(1 - 2 * ndtr(-deviation))

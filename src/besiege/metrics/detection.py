"""How well a score separates adversarial images from clean ones: ROC curve, area, interval.

Scores are higher for more suspicious images. Every function takes plain arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from besiege.core.errors import InputError
from besiege.metrics.defense_values import Auc
from besiege.metrics.intervals import clopper_pearson
from besiege.metrics.paired import normal_quantile
from besiege.metrics.resampling import RESAMPLES, Resampling

Numbers = NDArray[np.float64]


class Roc(NamedTuple):
    """A ROC curve from (0, 0) to (1, 1), lines between its points.

    Attributes
    ----------
    fpr, tpr : array
        The shares of negatives and of positives with a score of at least the threshold.
    threshold : array
        The thresholds, descending; the first is infinite, so that nothing is flagged.
    """

    fpr: Numbers
    tpr: Numbers
    threshold: Numbers


def roc(positive: ArrayLike, negative: ArrayLike, *, every: bool = False) -> Roc:
    """The ROC curve of scores; equal scores are one point, so that the line crosses ties.

    Parameters
    ----------
    positive, negative : array
        Scores of adversarial and of clean images, at least one each and none NaN.
    every : bool
        Whether to keep points inside straight lines, one for each different score.

    Examples
    --------
    >>> found = roc([0.9, 0.4], [0.4, 0.1])
    >>> found.fpr.tolist(), found.tpr.tolist()
    ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    above, below = _scores(positive, negative)
    values, hits, misses = _counts(above, below)
    # From the highest score down, after a threshold that flags nothing.
    tp = np.concatenate([[0], np.cumsum(hits[::-1])])
    fp = np.concatenate([[0], np.cumsum(misses[::-1])])
    thresholds = np.concatenate([[np.inf], values[::-1]])
    if not every:
        # Counts are whole numbers: whether three points are on one line is exact.
        moves = np.diff(fp), np.diff(tp)
        bends = moves[0][:-1] * moves[1][1:] != moves[0][1:] * moves[1][:-1]
        kept = np.concatenate([[True], bends, [True]])
        tp, fp, thresholds = tp[kept], fp[kept], thresholds[kept]
    return Roc(fp / len(below), tp / len(above), thresholds)


def auc(positive: ArrayLike, negative: ArrayLike) -> float:
    """The probability that a positive has the higher score, with half of the ties (Mann-Whitney).

    Examples
    --------
    >>> auc([3, 2], [2, 1])
    0.875
    """
    above, below = _scores(positive, negative)
    return float(_placements(above, below)[0].mean())


def auc_interval(
    positive: ArrayLike, negative: ArrayLike, *, paired: bool = False, level: float = 0.95
) -> Auc:
    """The area under the ROC curve with DeLong's interval.

    The variance is that of DeLong et al. (1988), from the placements: of every positive among the
    negatives, and of every negative among the positives. The interval is symmetric on the scale of
    the logit, so that it stays between 0 and 1. It is a closed form: nothing is drawn at random.

    An area of exactly 0 or 1 has no variance. There the interval is the exact one (Clopper and
    Pearson) of as many disjoint, hence independent, pairs of a positive and a negative as there
    are. Where all placements are equal, such as of a constant score, the variance is the largest
    that an area can have, which is that of these pairs.

    Parameters
    ----------
    positive, negative : array
        Scores, at least one each and none NaN.
    paired : bool
        Whether the two scores at one place are of the same image, adversarial and clean. Their
        placements then count together (Obuchowski 1997).
    level : float
        Coverage, between 0 and 1.

    Examples
    --------
    >>> found = auc_interval([3, 2, 5, 4, 1], [2, 1, 0, 3, 1])
    >>> f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"
    '0.80 [0.40, 0.96]'
    """
    above, below = _scores(positive, negative)
    if paired and len(above) != len(below):
        raise InputError(
            f"{len(above)} adversarial and {len(below)} clean scores are no pairs: give as many of "
            "each, at the same places"
        )
    ours, theirs = _placements(above, below)
    value = float(ours.mean())
    count = len(above)
    pairs = max(count // 2, 1) if paired else min(count, len(below))
    if value in (0.0, 1.0):
        low, high = clopper_pearson(round(value * pairs), pairs, level)
        return Auc(value, low, high, count)
    variance = _variance(ours + theirs) if paired else _variance(ours) + _variance(theirs)
    variance = variance or value * (1 - value) / pairs
    width = normal_quantile(level) * np.sqrt(variance) / (value * (1 - value))
    middle = np.log(value / (1 - value))
    low, high = (float(1 / (1 + np.exp(-(middle + side)))) for side in (-width, width))
    return Auc(value, low, high, count)


def auc_bootstrap(
    positive: ArrayLike,
    negative: ArrayLike,
    *,
    paired: bool = False,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Auc:
    """The area under the ROC curve with a bootstrap interval (percentiles of resampled images).

    Images are drawn with replacement, adversarial and clean ones apart, or together where the
    scores at one place are of the same image. It assumes no shape of the distribution, as DeLong's
    interval does (`auc_interval`); of areas of 0 or 1 it has no width, and the exact interval of
    `auc_interval` stands in.

    Parameters
    ----------
    positive, negative, paired, level
        As in `auc_interval`.
    resamples, seed : int
        Number of resamples, and the seed that they are drawn from.

    Examples
    --------
    >>> found = auc_bootstrap([3, 2, 5, 4, 1], [2, 1, 0, 3, 1])
    >>> found.value, found.low < found.value < found.high
    (0.8, True)
    """
    exact = auc_interval(positive, negative, paired=paired, level=level)
    if exact.value in (0.0, 1.0):
        return exact
    above, below = _scores(positive, negative)
    ours = Resampling.of(len(above), resamples, seed).weights
    theirs = ours if paired else Resampling.of(len(below), resamples, seed + 1).weights
    # Weighted counts on the common scale of all different scores: no pair is formed.
    values, where = np.unique(np.concatenate([above, below]), return_inverse=True)
    order = np.argsort(where[len(above) :], kind="stable")
    starts = np.searchsorted(where[len(above) :][order], np.arange(len(values) + 1))
    areas = np.empty(resamples)
    for block in (slice(begin, begin + _ROWS) for begin in range(0, resamples, _ROWS)):
        running = np.cumsum(theirs[block][:, order], 1, dtype=np.float64)
        running = np.pad(running, ((0, 0), (1, 0)))
        lower = running[:, starts[:-1]]
        middle = (lower + running[:, starts[1:]]) / 2
        mine = where[: len(above)]
        areas[block] = (ours[block] * middle[:, mine]).sum(1) / (len(above) * len(below))
    tail = (1 - level) / 2
    low, high = np.quantile(areas, (tail, 1 - tail))
    return Auc(exact.value, float(low), float(high), len(above))


_ROWS = 64
"""Resamples at once: a few megabytes for thousands of images."""


def _variance(placements: Numbers) -> float:
    """The variance of the mean of placements; 0 for a single one."""
    return float(placements.var(ddof=1) / len(placements)) if len(placements) > 1 else 0.0


def _placements(above: Numbers, below: Numbers) -> tuple[Numbers, Numbers]:
    """For every positive the share of negatives below it, for every negative of positives above."""
    ranked, other = np.sort(below), np.sort(above)
    under = np.searchsorted(ranked, above, "left") + np.searchsorted(ranked, above, "right")
    over = np.searchsorted(other, below, "left") + np.searchsorted(other, below, "right")
    return under / (2 * len(below)), 1 - over / (2 * len(above))


def _counts(above: Numbers, below: Numbers) -> tuple[Numbers, NDArray[np.int64], NDArray[np.int64]]:
    """The different scores, ascending, and how many positives and negatives have each."""
    values, where = np.unique(np.concatenate([above, below]), return_inverse=True)
    hits = np.bincount(where[: len(above)], minlength=len(values))
    misses = np.bincount(where[len(above) :], minlength=len(values))
    return values, hits, misses


def _scores(positive: ArrayLike, negative: ArrayLike) -> tuple[Numbers, Numbers]:
    """Both sets of scores as arrays; an error where one is empty or has a NaN."""
    above, below = (np.asarray(each, np.float64).ravel() for each in (positive, negative))
    for scores, what in ((above, "adversarial"), (below, "clean")):
        if not len(scores):
            raise InputError(f"there are no scores of {what} images: a ROC curve needs both")
        if np.isnan(scores).any():
            raise InputError(f"{int(np.isnan(scores).sum())} scores of {what} images are NaN")
    return above, below

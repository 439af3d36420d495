"""Many models: which are not dominated in accuracy and distortion, and the law between the two.

Su et al. fit ``distortion = slope * ln(error) + intercept`` to the models of the frontier. Images
are resampled for all models together (`besiege.metrics.resampling`), so that models stay paired.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from math import factorial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from besiege.core.errors import InputError
from besiege.metrics.paired import LEVEL
from besiege.metrics.resampling import Resampling, known_images, resamples_of

Numbers = NDArray[np.float64]
Mask = NDArray[np.bool_]

LEAST = 3
"""The fewest models that a line is fitted to: two always lie on one."""
_EXACT, _DRAWN = 8, 20_000
"""Models up to which all permutations are tried, and how many are drawn beyond."""
_ALIKE = 1e-9
"""The square of the spread of ln(error), up to which only rounding tells errors apart: shares are
single precision, and those of 1,000 images differ by more."""
ALWAYS = 0.95
"""A model is certainly on the frontier, or off it, if this share of the resamples says so."""


@dataclass(frozen=True, eq=False)
class Frontier:
    """The models that no other one dominates.

    Attributes
    ----------
    member : array of bool, ``[models]``
        Whether no other model is at least as good in both, and better in one.
    share : array, ``[models]``
        The share of the resamples in which it is a member.
    """

    member: Mask
    share: Numbers


@dataclass(frozen=True)
class Line:
    """A line ``distortion = slope * ln(error) + intercept`` by least squares.

    Attributes
    ----------
    slope, intercept : (float, float, float)
        Each with its bootstrap interval: value, lower and upper end.
    r2 : float
        The share of the variance of the distortions that it explains.
    models : int
        The number of models.
    """

    slope: tuple[float, float, float]
    intercept: tuple[float, float, float]
    r2: float
    models: int

    def __call__(self, error: float) -> float:
        """The distortion at an error rate, within those of the models only."""
        return float(self.slope[0] * np.log(error) + self.intercept[0])


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation, and the two-sided p-value of a permutation test.

    ``exact`` says whether all permutations were tried.
    """

    value: float
    p: float
    exact: bool


@dataclass(frozen=True, eq=False)
class Law:
    """What models say about distortion and accuracy.

    Attributes
    ----------
    error, distortion : array, ``[models]``
        The mean of each model.
    frontier : Frontier
        The models that no other one dominates.
    on_frontier, of_all : Line, optional
        The lines; None with fewer than three models, or equal errors.
    rank : Correlation, optional
        Of error and distortion, over all models; None with fewer than three.
    why : str
        Why a line is missing; empty if none is.
    """

    error: Numbers
    distortion: Numbers
    frontier: Frontier
    on_frontier: Line | None
    of_all: Line | None
    rank: Correlation | None
    why: str


def frontier_of(accuracy: ArrayLike, distortion: ArrayLike) -> Mask:
    """Which models no other one dominates: at least as good in both, and better in one.

    Both arrays are ``[..., models]``.

    Examples
    --------
    >>> frontier_of([0.9, 0.8, 0.7], [0.1, 0.3, 0.2]).tolist()
    [True, True, False]
    """
    x, y = np.asarray(accuracy, np.float64), np.asarray(distortion, np.float64)
    # Compared, not subtracted: medians may be infinite.
    (x1, x2), (y1, y2) = ((v[..., :, None], v[..., None, :]) for v in (x, y))
    dominates = (x1 >= x2) & (y1 >= y2) & ((x1 > x2) | (y1 > y2))
    return np.asarray(~dominates.any(-2))


def law_of(
    wrong: ArrayLike,
    distortion: ArrayLike,
    known: ArrayLike | None = None,
    *,
    level: float = LEVEL,
    seed: int = 0,
    error: ArrayLike | None = None,
    median: bool = False,
) -> Law:
    """The frontier of some models, and the line of distortion on ln(error).

    Parameters
    ----------
    wrong : array of shape (models, images)
        Whether each model misclassifies each clean image.
    distortion : array of shape (models, images)
        The perturbation that each image needed.
    known : array of bool, optional
        Which distortions are known, such as those of successes; by default the finite ones.
    level : float
        The level of the intervals.
    seed : int
        Seed of resamples and permutations.
    error : array of shape (models,), optional
        Error rates known otherwise, such as published ones; `wrong` is not used then.
    median : bool
        Whether a model's distortion is its median over all known images, infinite where no
        perturbation was found, instead of the mean over those where one was.

    Examples
    --------
    >>> generator = np.random.default_rng(0)
    >>> rates = np.array([0.1, 0.2, 0.3, 0.4])
    >>> wrong = generator.random((4, 2000)) < rates[:, None]
    >>> law = law_of(wrong, 0.03 * np.log(rates)[:, None] + generator.normal(0.1, 0.01, (4, 2000)))
    >>> law.frontier.member.all(), law.of_all is not None and round(law.of_all.slope[0], 2)
    (np.True_, 0.03)
    """
    sizes = np.asarray(distortion, np.float64)
    if sizes.ndim != 2:
        raise InputError("distortions are a table of models and images")
    there = known_images(known, sizes.shape) & ~np.isnan(sizes)
    there &= median | np.isfinite(sizes)
    if not there.any(1).all():
        raise InputError("a model has no distortion on any image: leave it out")
    drawn = Resampling.of(sizes.shape[1], resamples_of(level), seed)
    misses, many_misses = _errors(wrong, error, drawn, sizes.shape)
    if median:
        once = Resampling(np.ones((1, sizes.shape[1]), np.float32))
        (mean,), many = medians(once, sizes, there), medians(drawn, sizes, there)
    else:
        mean = np.where(there, sizes, 0).sum(1) / there.sum(1)
        many = _means(drawn, np.where(there, sizes, 0), there)
    frontier = Frontier(
        frontier_of(-misses, mean), np.asarray(frontier_of(-many_misses, many).mean(0))
    )
    every, on = np.ones(len(mean), bool), frontier.member
    along, through = (_line(misses, mean, many_misses, many, some, level) for some in (on, every))
    return Law(
        misses,
        mean,
        frontier,
        along,
        through,
        None if len(mean) < LEAST else spearman(misses, mean, seed=seed),
        _why_not(misses, on, along, through),
    )


def _errors(
    wrong: ArrayLike, error: ArrayLike | None, drawn: Resampling, shape: tuple[int, ...]
) -> tuple[Numbers, Numbers]:
    """The error rates, and those in every resample, above 0: none would be infinitely good."""
    if error is not None:
        given = np.asarray(error, np.float64)
        if given.shape != shape[:1] or not ((given > 0) & (given < 1)).all():
            raise InputError("error rates are one number between 0 and 1 for every model")
        return given, np.broadcast_to(given, (len(drawn.weights), len(given)))
    table = np.asarray(wrong, np.float64)
    if table.shape != shape:
        raise InputError(f"{table.shape} clean answers do not fit {shape} distortions")
    least = 0.5 / shape[1]
    rates = np.maximum(table.mean(1), least)
    return rates, np.maximum(np.asarray(drawn.means(table), np.float64), least)


def _means(drawn: Resampling, values: Numbers, known: Mask) -> Numbers:
    """Means over the known images of every resample; of all images where none was drawn.

    Values are brought to one scale first: resamples are single precision, and distortions may be
    as small as 1e-6.
    """
    largest = np.abs(values).max()
    scale = largest if largest > 0 else 1.0
    found = np.asarray(drawn.means(values / scale, known), np.float64) * scale
    whole = values.sum(1) / known.sum(1)
    return np.where(np.isfinite(found), found, whole)


def medians(drawn: Resampling, sizes: Numbers, known: Mask) -> Numbers:
    """The smallest size that half of the known images need, ``[resamples, models]``.

    Infinite where more than half need more than was found, and where no known image was drawn.
    """
    found = np.empty((len(drawn.weights), len(sizes)))
    for place, (row, there) in enumerate(zip(sizes, known, strict=True)):
        order = np.argsort(np.where(there, row, np.inf), kind="stable")
        weight = (drawn.weights * there)[:, order].cumsum(1, dtype=np.float64)
        half = weight[:, -1:] / 2
        reached = (weight >= half) & (weight > 0)
        found[:, place] = np.where(reached.any(1), row[order][reached.argmax(1)], np.inf)
    return found


def _line(
    error: Numbers, mean: Numbers, errors: Numbers, means: Numbers, some: Mask, level: float
) -> Line | None:
    """The line through some models; the same models in every resample."""
    if some.sum() < LEAST or np.ptp(error[some]) == 0 or not np.isfinite(mean[some]).all():
        return None
    slope, intercept = _least_squares(np.log(error[some]), mean[some])
    slopes, intercepts = _least_squares(np.log(errors[:, some]), means[:, some])
    fitted = slope * np.log(error[some]) + intercept
    spread = np.square(mean[some] - mean[some].mean()).sum()
    left = np.square(mean[some] - fitted).sum()
    return Line(
        (float(slope), *_ends(float(slope), slopes, level)),
        (float(intercept), *_ends(float(intercept), intercepts, level)),
        float(1 - left / spread) if spread > 0 else 1.0,
        int(some.sum()),
    )


def _ends(value: float, drawn: Numbers, level: float) -> tuple[float, float]:
    """The ends of an interval: how far resamples lie from the value, to the other side.

    Uncertain errors flatten a line, and those of resamples flatten it once more: their percentiles
    would be off by twice as much. Of 200 images they held 89 to 90 % in place of 95 %, these 93 to
    95 % (tests/metrics/test_frontier.py).
    """
    low, high = np.quantile(drawn, ((1 - level) / 2, (1 + level) / 2))
    return float(2 * value - high), float(2 * value - low)


def _least_squares(x: Numbers, y: Numbers) -> tuple[Numbers, Numbers]:
    """Slope and intercept along the last axis."""
    # A resample with an infinite median has the largest finite one: it is still the farthest.
    y = np.where(np.isfinite(y), y, np.where(np.isfinite(y), y, -np.inf).max())
    away = x - x.mean(-1, keepdims=True)
    width = np.square(away).sum(-1)
    spread = width > _ALIKE
    slope = (away * y).sum(-1) / np.where(spread, width, np.nan)
    # A resample in which all models err alike has no slope: it says that there may be none.
    slope = np.where(spread, slope, 0.0)
    return slope, y.mean(-1) - slope * x.mean(-1)


def _why_not(error: Numbers, on: Mask, along: Line | None, through: Line | None) -> str:
    if along is not None and through is not None:
        return ""
    if len(error) < LEAST:
        return f"A line needs {LEAST} models at least, and there are {len(error)}."
    if through is None and np.ptp(error) > 0:
        return "Half of the images of a model withstood every attack: its median is not known."
    if through is None:
        return "All models have the same error: there is nothing to fit a line to."
    return (
        f"A line needs {LEAST} models at least, and {on.sum()} are on the frontier: the others are "
        "dominated in accuracy and distortion."
    )


def spearman(first: ArrayLike, second: ArrayLike, *, seed: int = 0) -> Correlation:
    """Spearman's rank correlation of two vectors, with a permutation test.

    Up to eight models all orders are tried, and the p-value is exact; beyond, 20,000 are drawn.

    Examples
    --------
    >>> found = spearman([1, 2, 3, 4, 5], [2, 4, 5, 8, 9])
    >>> found.value, round(found.p, 4), found.exact
    (1.0, 0.0167, True)
    """
    one, other = _ranks(np.asarray(first, np.float64)), _ranks(np.asarray(second, np.float64))
    count = len(one)
    if len(other) != count or count < LEAST:
        raise InputError(f"a rank correlation needs {LEAST} pairs of numbers at least")
    one, other = one - one.mean(), other - other.mean()
    size = np.sqrt(np.square(one).sum() * np.square(other).sum())
    if size == 0:
        return Correlation(0.0, 1.0, True)
    value = float(one @ other / size)
    exact = count <= _EXACT
    if exact:
        orders = np.array(list(permutations(range(count))))
    else:
        orders = np.random.default_rng(seed).permuted(
            np.tile(np.arange(count), (_DRAWN, 1)), axis=1
        )
    farther = int((np.abs(other[orders] @ one) >= abs(value) * size * (1 - 1e-12)).sum())
    p = farther / factorial(count) if exact else (1 + farther) / (1 + _DRAWN)
    return Correlation(min(max(value, -1.0), 1.0), p, exact)


def rank_correlation(first: Numbers, second: Numbers) -> float:
    """Spearman's rank correlation of two vectors; 0 where one of them is constant."""
    one, other = _ranks(first), _ranks(second)
    one, other = one - one.mean(), other - other.mean()
    size = np.sqrt(np.square(one).sum() * np.square(other).sum())
    return float(one @ other / size) if size > 0 else 0.0


def _ranks(values: Numbers) -> Numbers:
    """Ranks from 1; equal values share the mean of theirs."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[where])

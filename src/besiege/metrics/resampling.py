"""Resampled images: one matrix of weights for all models, attacks and budgets.

Every resample draws as many images as there are, with replacement; a weight is how often an image
was drawn. Models and attacks share the weights, so that what happens to one image stays together:
a difference of two models varies less than each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from besiege.core.errors import InputError
from besiege.metrics.paired import LEVEL, normal_quantile

RESAMPLES, _BEYOND = 2000, 10
"""Resamples at least, and how many of them are beyond the critical value at least."""

_COLUMNS = 2048
"""Columns of one matrix product: its result then takes 16 MB with 2,000 resamples."""

Numbers = NDArray[np.float64]
Single = NDArray[np.float32]
Known = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Resampling:
    """Resamples of a set of images.

    Attributes
    ----------
    weights : array of shape (resamples, images)
        How often each image was drawn. Every row sums to the number of images.
    """

    weights: Single

    @classmethod
    def of(cls, count: int, resamples: int = RESAMPLES, seed: int = 0) -> Resampling:
        """Resamples of `count` images; the same seed gives the same ones."""
        if count < 1 or resamples < 1:
            raise InputError(f"{resamples} resamples of {count} images: give at least one of each")
        drawn = np.random.default_rng(seed).integers(0, count, (resamples, count))
        drawn += count * np.arange(resamples)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=resamples * count)
        return cls(counts.reshape(resamples, count).astype(np.float32))

    def means(self, values: NDArray[np.generic], known: Known | None = None) -> Single:
        """The means of ``[rows, images]`` in every resample, ``[resamples, rows]``.

        `known`, of the same shape, leaves out images; a mean of none is not a number.
        """
        kept = values.astype(np.float32)
        if known is None:
            return np.asarray(self.weights @ kept.T / np.float32(self.weights.shape[1]))
        with np.errstate(invalid="ignore"):
            # 0 / 0: no known image was drawn
            weight = self.weights @ known.astype(np.float32).T
            return np.asarray(self.weights @ np.where(known, kept, 0).T / weight)

    def deviations(self, values: NDArray[np.generic], known: Known | None = None) -> Single:
        """How far the means of all resamples are from those of the images, in standard errors.

        Both arrays are as those of `means`. A row without variance has no deviations: all are 0.
        """
        mean, error = moments(values, known)
        moved = self.means(values, known)
        np.abs(np.subtract(moved, mean.astype(np.float32), out=moved), out=moved)
        moved *= np.where(error > 0, 1 / np.where(error > 0, error, 1), 0).astype(np.float32)
        return np.asarray(np.nan_to_num(moved, copy=False))

    def largest(self, held: NDArray[np.generic], known: Known) -> Single:
        """The largest deviation along each curve, ``[resamples, curves]``.

        `held` is ``[curves, points, images]`` and `known` ``[curves, images]``.
        """
        curves, points, images = held.shape
        parts = []
        for block in blocks(curves, points):
            some, there = held[block], known[block]
            whole = bool(there.all())  # spares the second product
            every = None if whole else np.repeat(there, points, 0)
            moved = self.deviations(some.reshape(-1, images), every)
            parts.append(moved.reshape(len(moved), -1, points).max(2))
        return np.concatenate(parts, 1)


def resamples_of(level: float) -> int:
    """How many resamples a level takes: a critical value beyond nearly all of them is chance.

    Examples
    --------
    >>> resamples_of(0.95), resamples_of(0.999)
    (2000, 10000)
    """
    return max(RESAMPLES, round(_BEYOND / (1 - level)))


def blocks(curves: int, points: int) -> Iterator[slice]:
    """Curves in blocks whose resampled points fit into little memory."""
    size = max(1, _COLUMNS // max(points, 1))
    return (slice(begin, begin + size) for begin in range(0, curves, size))


def moments(values: NDArray[np.generic], known: Known | None = None) -> tuple[Numbers, Numbers]:
    """The means of ``[..., images]`` over the known images, and their standard errors."""
    there = np.broadcast_to(True, values.shape) if known is None else known
    count = np.maximum(there.sum(-1), 1)
    total = np.where(there, values, 0)
    mean = total.sum(-1, dtype=np.float64) / count
    square = np.square(total, dtype=np.float64).sum(-1) / count
    # Differences of squares round: a tiny variance of equal values is none.
    variance = np.where(square - mean**2 > 1e-12 * square, square - mean**2, 0)
    return np.asarray(mean), np.sqrt(variance / count)


def critical(largest: Single, level: float = LEVEL) -> Numbers:
    """The largest deviation, in standard errors, that this share of the resamples stays within.

    For each column of ``[resamples, curves]``; never less than that of a single point.
    """
    least = normal_quantile(level)
    found = np.quantile(largest.astype(np.float64), level, axis=0, method="higher")
    return np.maximum(found, least)


def known_images(known: ArrayLike | None, shape: tuple[int, ...]) -> Known:
    """A mask of known images in the shape of all curves; by default all are known."""
    if known is None:
        return np.ones(shape, bool)
    try:
        return np.array(np.broadcast_to(np.asarray(known, bool), shape))
    except ValueError:
        raise InputError(
            f"known images of the shape {np.shape(known)} do not fit values of the shape {shape}"
        ) from None

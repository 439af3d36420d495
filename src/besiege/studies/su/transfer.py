"""The matrix of transfer between models: crafted on each, judged on all.

An entry is the share of the images crafted on a source that fool a target. Its denominator are all
images of the source, whether they fooled it or not; beside it stands the share without images that
the target misclassifies before any attack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from besiege.core.errors import InputError
from besiege.metrics.paired import LEVEL, benjamini_hochberg, mcnemar
from besiege.metrics.resampling import Resampling, resamples_of
from besiege.metrics.rows import Rows, places

Numbers = NDArray[np.float64]
Mask = NDArray[np.bool_]

TOP = 5
"""A targeted image transfers if the target class is among so many classes."""
CHANCE = 2.0
"""Clean accuracy below so many times that of guessing means other classes, or a shifted index."""
ENOUGH = 50
"""From so many images on: at an accuracy of 10 % all of them are wrong in 0.5 % of the cases."""


@dataclass(frozen=True, eq=False)
class Crossed:
    """What images crafted on every source do to every target, aligned by image.

    Attributes
    ----------
    models : tuple of str
        Sources and targets, in one order.
    made : array of bool, ``[sources, images]``
        The images of each source: those that it classifies correctly.
    hit : array of bool, ``[sources, targets, images]``
        Whether the adversarial image fools the target: an error, or the target class among the
        first.
    right : array of bool, ``[sources, targets, images]``
        Whether the target classifies the clean image correctly, as it sees it.
    """

    models: tuple[str, ...]
    made: Mask
    hit: Mask
    right: Mask


@dataclass(frozen=True, eq=False)
class Interval:
    """Values with the ends of their bootstrap intervals, one for every model."""

    value: Numbers
    low: Numbers
    high: Numbers


@dataclass(frozen=True, eq=False)
class TransferMatrix:
    """Rates of transfer, ``[sources, targets]``; the diagonal is the white-box attack.

    Attributes
    ----------
    models : tuple of str
        Sources and targets.
    rate : array
        Of all images of the source.
    of_right : array
        Without the images that the target misclassifies before the attack; NaN without any.
    count, right : array of int
        The images of both.
    q : array
        P-values, corrected for all pairs of different models (Benjamini and Hochberg), that the
        attack does not raise the errors of the target: McNemar's test of errors before and under
        it. NaN on the diagonal, and of targeted images.
    rows, columns : Interval
        Means of `rate` over the other targets of each source, and over the other sources of each
        target. Images are resampled for all models together.
    """

    models: tuple[str, ...]
    rate: Numbers
    of_right: Numbers
    count: NDArray[np.int64]
    right: NDArray[np.int64]
    q: Numbers
    rows: Interval
    columns: Interval


def crossed(
    models: Sequence[str],
    judged: Mapping[tuple[str, str], Rows],
    *,
    classes: int,
    top: int | None = None,
) -> Crossed:
    """Align the judged rows of all pairs by image.

    Parameters
    ----------
    models : sequence of str
        The models.
    judged : mapping
        By source and target, the verdicts on images crafted on the source, one attack: ``sample``,
        ``label``, ``prediction``, ``correct`` and, with targets, ``rank``.
    classes : int
        The number of classes.
    top : int, optional
        For targeted images: they count where the target class is among so many. Untargeted ones
        count where the prediction is wrong.
    """
    missing = [f"{s} -> {t}" for s in models for t in models if (s, t) not in judged]
    if missing:
        raise InputError(f"no images were judged for {', '.join(missing[:3])}: run these pairs")
    shared = set.intersection(*(set(rows["sample"].tolist()) for rows in judged.values()))
    samples = np.array(sorted(shared), np.int64)
    if not len(samples):
        raise InputError("no image was judged for all pairs of models")
    shape = (len(models), len(models), len(samples))
    hit, right = np.zeros(shape, bool), np.zeros(shape, bool)
    labels = None
    for s, source in enumerate(models):
        for t, target in enumerate(models):
            rows = judged[source, target]
            rows = rows.where(places(rows["sample"], samples))
            labels = rows["label"] if labels is None else labels
            if not np.array_equal(labels, rows["label"]):
                raise InputError(f"{source} and {target} have other labels for the same images")
            hit[s, t] = _hits(rows, top, f"{source} -> {target}")
            right[s, t] = rows["correct"].astype(bool)
            must_read(target, right[s, t], classes)
    own = np.arange(len(models))
    return Crossed(tuple(models), right[own, own], hit, right)


def _hits(rows: Rows, top: int | None, pair: str) -> Mask:
    if top is None:
        return np.asarray(rows["prediction"] != rows["label"])
    if "rank" not in rows or np.isnan(rows["rank"]).any():
        raise InputError(
            f"the verdicts of {pair} do not say the place of the target class: judge them again "
            "with this release, for a targeted threat and a model with scores"
        )
    return np.asarray(rows["rank"] <= top)


def must_read(model: str, right: Mask, classes: int) -> None:
    """Refuse a target with other classes than its source, or classes counted from 1.

    `right` says which clean images it classifies correctly, as it sees them. Of few images hardly
    any may be right by chance.
    """
    accuracy = float(right.mean())
    if len(right) >= ENOUGH and accuracy < CHANCE / classes:
        raise InputError(
            f"{model} classifies {100 * accuracy:.1f} % of the adapted clean images correctly, "
            f"where guessing does {100 / classes:.1f} %: its classes are others, or are counted "
            "from another number"
        )


def transfer_matrix(
    given: Crossed, *, targeted: bool = False, level: float = LEVEL, seed: int = 0
) -> TransferMatrix:
    """Rates of transfer with both denominators, corrected p-values, and means with intervals."""
    made = np.broadcast_to(given.made[:, None], given.hit.shape)
    seen = made & given.right
    count, right = made.sum(2), seen.sum(2)
    with np.errstate(invalid="ignore"):
        rate, of_right = (given.hit & made).sum(2) / count, (given.hit & seen).sum(2) / right
    n = len(given.models)
    q = np.full((n, n), np.nan)
    if not targeted and n > 1:
        off = np.argwhere(~np.eye(n, dtype=bool))
        errors = ~given.right & made
        raised = (given.hit & made & ~errors).sum(2)
        lowered = (errors & ~given.hit).sum(2)
        ps = [mcnemar(int(raised[s, t]), int(lowered[s, t])) for s, t in off]
        q[tuple(off.T)] = benjamini_hochberg(ps)
    rows, columns = (_means(given, made, rate, axis, level, seed) for axis in (1, 0))
    return TransferMatrix(given.models, rate, of_right, count, right, q, rows, columns)


def _means(
    given: Crossed, made: Mask, rate: Numbers, axis: int, level: float, seed: int
) -> Interval:
    """Means over the other models, with bootstrap intervals."""
    n = len(rate)
    others = ~np.eye(n, dtype=bool)
    if n < 2:
        none = np.full(n, np.nan)
        return Interval(none, none, none)
    drawn = Resampling.of(given.hit.shape[2], resamples_of(level), seed)
    flat = (n * n, given.hit.shape[2])
    many = drawn.means(given.hit.reshape(flat), made.reshape(flat)).reshape(-1, n, n)
    value = _mean_of(rate, others, axis)
    # A resample without any image of a source says nothing about it.
    means = np.where(np.isnan(one := _mean_of(many, others, 1 + axis)), value, one)
    low, high = np.quantile(means, ((1 - level) / 2, (1 + level) / 2), axis=0)
    return Interval(value, low, high)


def _mean_of(rates: NDArray[np.generic], some: Mask, axis: int) -> Numbers:
    """Means of some rates along an axis, without those that are not known; NaN without any."""
    there = some & ~np.isnan(rates)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(there, rates, 0).sum(axis) / there.sum(axis), np.float64)

"""What a defense does to clean images: the five utility figures of DEEPSEC, of two models.

All compare the answers of two models to the same clean images, without an attack. Accuracies and
shares count all images. Confidence and divergence are means over the images that both models
classify correctly, so that they show changes that accuracy does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from besiege.core.errors import ComparisonError, InputError
from besiege.metrics.bands import bounded_means
from besiege.metrics.intervals import Rate
from besiege.metrics.paired import Difference
from besiege.metrics.resampling import Known, Numbers, Resampling
from besiege.metrics.rows import Rows, places

_BLOCK = 1 << 20
"""Probabilities that are computed at once: a few arrays of 8 MB."""
_LARGEST = {"ccv": 1.0, "cos": math.log(2)}


@dataclass(frozen=True, eq=False)
class CleanAnswers:
    """The answers of a model to clean images.

    Attributes
    ----------
    rows : Rows
        ``sample``, ``label`` and ``correct``, one row per image.
    logits : array of shape (images, classes), optional
        Its logits, in the same order; None where they are not known.
    lacking : str
        Why they are not known.
    """

    rows: Rows
    logits: NDArray[np.float32] | None = None
    lacking: str = "its clean logits are not known"

    def __post_init__(self) -> None:
        labels, logits = self.rows["label"], self.logits
        if logits is None:
            return
        if logits.ndim != 2 or len(logits) != len(labels):
            raise InputError(
                f"clean logits of the shape {logits.shape} are not those of {len(labels)} images: "
                "give one row per image and one column per class"
            )
        if len(labels) and not 0 <= labels.min() <= labels.max() < logits.shape[1]:
            raise InputError(
                f"labels from {labels.min()} to {labels.max()} are outside the "
                f"{logits.shape[1]} classes of the logits"
            )

    def of(self, samples: NDArray[np.int64]) -> CleanAnswers:
        """The answers to some of the images, in this order; each must be there."""
        where = places(self.rows["sample"], samples)
        logits = None if self.logits is None else self.logits[where]
        return replace(self, rows=self.rows.where(where), logits=logits)


@dataclass(frozen=True)
class Mean:
    """The mean of a bounded value over some images, with its 95 % interval (bootstrap-t)."""

    value: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Utility:
    """The utility of a model, such as a defended one, against another on the same clean images.

    Attributes
    ----------
    cav : Difference
        Classification accuracy variance: its accuracy less the other's. Tango's interval.
    crr, csr : Rate
        Classification rectify and sacrifice ratio: the shares of images that only it, and only the
        other, classifies correctly. Exact intervals. ``cav = crr - csr``.
    ccv : Mean, optional
        Classification confidence variance: the mean of ``|P_y - P'_y|``, the change of the
        probability of the label, over the images that both classify correctly.
    cos : Mean, optional
        Classification output stability: the mean Jensen-Shannon divergence of the probabilities of
        all classes over the same images, from 0 for equal ones to ``ln 2``. Larger is less stable.
    lacking : mapping
        Why `ccv` or `cos` is None: reasons by name.

    References
    ----------
    Ling et al. 2019, DEEPSEC: A uniform platform for security analysis of deep learning models.
    """

    cav: Difference
    crr: Rate
    csr: Rate
    ccv: Mean | None
    cos: Mean | None
    lacking: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def utility(
    base: CleanAnswers,
    model: CleanAnswers,
    *,
    names: tuple[str, str] = ("the first model", "the second model"),
    resampling: Resampling | None = None,
) -> Utility:
    """The utility of a model against a base model on the same clean images.

    Parameters
    ----------
    base, model : CleanAnswers
        Their answers; the order of the images may differ.
    names : (str, str)
        Their names in explanations.
    resampling : Resampling, optional
        Resamples of as many images, which several pairs may share.

    Examples
    --------
    >>> rows = Rows({"sample": [0, 1, 2, 3], "label": [0, 1, 0, 1], "correct": [1, 1, 1, 0]})
    >>> other = rows.having(correct=np.array([1, 0, 0, 1]))
    >>> found = utility(CleanAnswers(rows), CleanAnswers(other))
    >>> found.cav.value, found.crr.value, found.csr.value
    (-0.25, 0.25, 0.5)
    """
    ids = np.sort(base.rows["sample"])  # in one order, on which the resamples depend
    if not len(ids):
        raise ComparisonError("there is no clean image to compare the models on: give one at least")
    if not np.array_equal(ids, np.sort(model.rows["sample"])):
        raise ComparisonError(
            f"{names[0]} and {names[1]} answered other samples, so their utility cannot be "
            "compared: evaluate both on the same images"
        )
    base, model = base.of(ids), model.of(ids)
    if not np.array_equal(base.rows["label"], model.rows["label"]):
        raise ComparisonError(
            f"the samples of {names[0]} and {names[1]} have other labels, so their utility cannot "
            "be compared: evaluate both on the same data"
        )
    right, other = (np.asarray(one.rows["correct"], bool) for one in (base, model))
    gained, lost, both = int((other & ~right).sum()), int((right & ~other).sum()), right & other
    lacking = _lacking(base, model, both, names)
    means = _means(base, model, both, resampling)
    return Utility(
        Difference.counted(gained, lost, len(ids)),
        Rate.of(gained, len(ids)),
        Rate.of(lost, len(ids)),
        None if "ccv" in lacking else means["ccv"],
        None if "cos" in lacking else means["cos"],
        lacking,
    )


def _lacking(
    base: CleanAnswers, model: CleanAnswers, both: Known, names: tuple[str, str]
) -> dict[str, tuple[str, ...]]:
    """Why the means that cannot be computed are missing, by name."""
    answers = tuple(zip((base, model), names, strict=True))
    unknown = tuple(f"{name}: {one.lacking}" for one, name in answers if one.logits is None)
    if unknown or not both.any():
        why = unknown or (f"{names[0]} and {names[1]} classify no image correctly both",)
        return {"ccv": why, "cos": why}
    counts = [(name, one.logits.shape[1]) for one, name in answers if one.logits is not None]
    if len({count for _, count in counts}) > 1:
        # Which classes of the two are the same is not known. The probability of the label is.
        return {"cos": (" and ".join(f"{name} has {count} classes" for name, count in counts),)}
    return {}


def _means(
    base: CleanAnswers, model: CleanAnswers, both: Known, resampling: Resampling | None
) -> dict[str, Mean]:
    """The means over the images that both classify correctly, as far as they are defined."""
    if base.logits is None or model.logits is None or not both.any():
        return {}
    classes = base.logits.shape[1], model.logits.shape[1]
    values = {"ccv": np.zeros(len(both)), "cos": np.zeros(len(both))}
    rows, step = np.flatnonzero(both), max(1, _BLOCK // max(classes))
    for begin in range(0, len(rows), step):
        some = rows[begin : begin + step]
        p, q = (probabilities(logits[some]) for logits in (base.logits, model.logits))
        label = np.arange(len(some)), base.rows["label"][some]
        values["ccv"][some] = np.abs(p[label] - q[label])
        if classes[0] == classes[1]:
            values["cos"][some] = jensen_shannon(p, q)
    drawn = Resampling.of(len(both)) if resampling is None else resampling
    return {name: _mean(values[name], end, both, drawn) for name, end in _LARGEST.items()}


def _mean(values: Numbers, end: float, known: Known, resampling: Resampling) -> Mean:
    found = bounded_means(values, end, known, resampling=resampling)
    return Mean(float(found.value), float(found.low), float(found.high), int(known.sum()))


def probabilities(logits: NDArray[np.float32]) -> Numbers:
    """The softmax of ``[images, classes]`` logits; minus infinity has the probability 0.

    Examples
    --------
    >>> probabilities(np.array([[0.0, 0.0, -np.inf]])).tolist()
    [[0.5, 0.5, 0.0]]
    """
    wide = logits.astype(np.float64)
    odds = np.exp(wide - wide.max(1, keepdims=True))
    return np.asarray(odds / odds.sum(1, keepdims=True))


def jensen_shannon(p: Numbers, q: Numbers) -> Numbers:
    """The Jensen-Shannon divergence of the rows of two ``[images, classes]``, from 0 to ``ln 2``.

    ``KL(p || m) / 2 + KL(q || m) / 2`` with ``m = (p + q) / 2``, in natural logarithms.

    Examples
    --------
    >>> jensen_shannon(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])).round(3).tolist()
    [0.693]
    """
    from scipy.special import rel_entr  # slow to import

    middle = (p + q) / 2
    found = (rel_entr(p, middle) + rel_entr(q, middle)).sum(1) / 2
    return np.asarray(np.clip(found, 0, math.log(2)))  # rounding may leave the range

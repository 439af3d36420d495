"""Results by class: the accuracy of each class, and the classes that broken images were given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from besiege.metrics.distances import quantile
from besiege.metrics.evidence import Evidence
from besiege.metrics.intervals import Rate, exact_intervals
from besiege.metrics.representatives import representatives
from besiege.metrics.values import Became, ClassFigures, Confusion

PAIRS = 200
"""Largest number of pairs of classes that are kept; 12 classes have at most 144."""
Counts = NDArray[np.int64]


def class_figures(evidence: Evidence) -> tuple[ClassFigures, ...]:
    """The accuracy of every class that has images, without and under attack.

    Robust accuracy is over the images that every attack was judged on, as that of all classes
    together. Without a budget, `median` is the median smallest perturbation of the class.
    """
    labels, member = np.unique(evidence.clean["label"], return_inverse=True)
    known = evidence.covered_by_all()

    def counted(which: NDArray[np.bool_]) -> Counts:
        return np.bincount(member[which], minlength=len(labels))

    clean = _rates(counted(evidence.right), counted(np.ones(evidence.count, bool)))
    robust = _rates(counted(evidence.standing() & known), counted(known))
    medians = _medians(evidence, labels)
    return tuple(map(ClassFigures, labels.tolist(), clean, robust, medians))


def _rates(hits: Counts, counts: Counts) -> list[Rate | None]:
    """Rates with exact intervals, all at once; None for a count of 0."""
    low, high = exact_intervals(hits, counts)
    columns = (hits / np.maximum(counts, 1), low, high, counts, hits)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [Rate(*row) if row[3] else None for row in rows]


def _medians(evidence: Evidence, labels: NDArray[np.int64]) -> Sequence[float | None]:
    """The median smallest perturbation of each class; None with a budget, or where infinite."""
    ids, ends = evidence.smallest()
    if evidence.eps is not None or not len(ids):
        return [None] * len(labels)
    theirs = evidence.clean["label"][np.isin(evidence.clean["sample"], ids)]
    sizes = [ends[theirs == label] for label in labels]
    medians = [quantile(mine) if len(mine) else np.inf for mine in sizes]
    return [median if np.isfinite(median) else None for median in medians]


def confusion_figures(evidence: Evidence) -> Confusion | None:
    """How often broken images of one class were classified as another.

    Each broken image counts once, with the adversarial image of the strongest attack that broke it
    or, without a budget, with the smallest perturbation. None where no image was broken.
    """
    shown = representatives(evidence)
    if not shown.count:
        return None
    prediction = np.zeros(shown.count, np.int64)
    for number, trial in enumerate(evidence.trials):
        mine = shown["trial"] == number
        prediction[mine] = trial.rows["prediction"][shown["row"][mine]]
    given = np.stack([shown["label"].astype(np.int64), prediction], 1)
    pairs, counts = np.unique(given, axis=0, return_counts=True)
    frequent = np.argsort(-counts, kind="stable")[:PAIRS]
    became = [
        Became(label, took, count)
        for (label, took), count in zip(
            pairs[frequent].tolist(), counts[frequent].tolist(), strict=True
        )
    ]
    return Confusion(shown.count, len(pairs), tuple(became))

"""The results by class, arranged for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from besiege.metrics.values import Became, ClassFigures
from besiege.metrics.values import EvaluationFigures as Evaluation
from besiege.report.answer import is_minimal
from besiege.report.formats import class_name

FOLDED = 20
"""Largest number of classes whose table is not folded."""
LISTED = 100
"""Largest number of classes in the table."""
MATRIX = 12
"""Largest number of classes that are shown as a matrix; of more, the most frequent pairs."""
FREQUENT = 15
"""Number of these pairs."""

SHORT = 3
"""Letters of a class name that fit above a column of the matrix."""


@dataclass(frozen=True)
class Listing:
    """The classes to show.

    Parameters
    ----------
    classes : sequence of ClassFigures
        In their own order, or the least robust first where there are many.
    total : int
        The number of classes that have images.
    weakest, strongest : ClassFigures, optional
        The least and the most robust class; None where all are equal or nothing is known.
    """

    classes: Sequence[ClassFigures]
    total: int
    weakest: ClassFigures | None
    strongest: ClassFigures | None

    @property
    def folded(self) -> bool:
        """Whether the table is folded, and in the order of robustness."""
        return self.total > FOLDED


def listing(evaluation: Evaluation) -> Listing | None:
    """The classes of an evaluation; None where it has fewer than two."""
    classes = evaluation.by_class
    if len(classes) < 2:
        return None

    def figure(one: ClassFigures) -> float | None:
        if is_minimal(evaluation):
            return one.median
        return None if one.robust is None else one.robust.value

    known = [one for one in classes if figure(one) is not None]
    order = sorted(known, key=lambda one: figure(one) or 0.0)
    distinct = len({figure(one) for one in known}) > 1
    shown: Sequence[ClassFigures] = classes
    if len(classes) > FOLDED:
        shown = [*order, *(one for one in classes if figure(one) is None)][:LISTED]
    return Listing(
        shown,
        len(classes),
        order[0] if distinct else None,
        order[-1] if distinct else None,
    )


@dataclass(frozen=True)
class Confused:
    """What broken images were classified as.

    Parameters
    ----------
    labels : range
        The classes of the matrix; empty where there are too many.
    counts : mapping
        Number of images by true class and predicted class.
    most : int
        The largest of these numbers.
    pairs : sequence of Became
        The most frequent pairs.
    upright : bool
        Whether the names of the classes are too long for the heads of narrow columns.
    """

    labels: range
    counts: Mapping[tuple[int, int], int]
    most: int
    pairs: Sequence[Became]
    upright: bool


def confused(evaluation: Evaluation) -> Confused | None:
    """The confusion of an evaluation as a matrix, or its most frequent pairs of classes."""
    found = evaluation.confusion
    if found is None:
        return None
    counts = {(one.label, one.prediction): one.count for one in found.pairs}
    classes = evaluation.model.classes
    labels = range(classes if classes <= MATRIX else 0)
    names = [class_name(evaluation.data.class_names, label) for label in labels]
    upright = any(len(name) > SHORT for name in names)
    return Confused(labels, counts, found.pairs[0].count, found.pairs[:FREQUENT], upright)

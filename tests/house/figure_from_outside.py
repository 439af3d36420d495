"""A figure of one's own, all in one file: how sure a model is of its wrong answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from besiege.metrics import Case, EvaluationFigures, Figure, Row, Section, register


@dataclass(frozen=True)
class WrongConfidence:
    """The median confidence of the model in its answers to successful images."""

    median: float
    images: int


def compute(case: Case) -> WrongConfidence | None:
    found = [
        trial.rows["confidence"][case.evidence.broken(trial)] for trial in case.evidence.trials
    ]
    confidence = np.concatenate(found) if found else np.zeros(0)
    confidence = confidence[np.isfinite(confidence)]
    if not len(confidence):
        return None
    return WrongConfidence(float(np.median(confidence)), len(confidence))


def row(evaluation: EvaluationFigures) -> Row | None:
    value: WrongConfidence | None = evaluation.figure("wrong_confidence")
    if value is None:
        return None
    return Row("confidence", value.median, f"median of {value.images} wrong answers")


FIGURE = register(
    Figure(
        "wrong_confidence",
        compute,
        place=45,
        section=Section(
            "How sure it was when it was wrong",
            markup="{% if value %}<p>Its median confidence in {{ value.images|grouped }} wrong "
            "answers was <b>{{ value.median|percent }}</b>.</p>{% endif %}",
        ),
        row=row,
    )
)

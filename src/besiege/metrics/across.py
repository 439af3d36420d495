"""What images crafted on one model do to it and to others: arrays from the judged rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from besiege.metrics.evidence import Evidence, Mask
from besiege.metrics.rows import Rows, places

COLUMNS: Mapping[str, type] = {
    **dict.fromkeys(("sample", "model", "label", "prediction", "rank"), np.int64),
    **dict.fromkeys(("correct", "within"), np.bool_),
}
"""The columns of the rows of the task kind ``across``; ``model`` is the place of the model."""


def stage_of(attack: str) -> str:
    """The name of the stage that judges the images of an attack with other models.

    Examples
    --------
    >>> stage_of("fgsm@su")
    'fgsm@su, on other models'
    """
    return f"{attack}, on other models"


def across_of(evidence: Evidence) -> tuple[Mask, Mask, NDArray[np.int32], Mask]:
    """The answers to crafted images of the model itself, which comes first, and of the others.

    Returns
    -------
    judged, fooled, rank : array ``[attacks, models, samples]``
        Which images were judged; where the answer is wrong, within the budget; and the place of the
        target class, 1 for the predicted one and 0 where it is not known.
    seen : array of bool ``[models, samples]``
        Which clean images each model classifies correctly, as it gets them.

    There is no model where other models judged nothing.
    """
    ids, trials = evidence.clean["sample"], evidence.trials
    others = [evidence.others.get(stage_of(trial.text)) for trial in trials]
    tables = [rows for rows in others if rows is not None and rows.count]
    count = 2 + max((int(rows["model"].max()) for rows in tables), default=-2)
    shape = (len(trials), count, len(ids))
    judged, fooled, rank = np.zeros(shape, bool), np.zeros(shape, bool), np.zeros(shape, np.int32)
    seen = np.zeros(shape[1:], bool)
    if not count:
        return judged, fooled, rank, seen
    seen[0] = evidence.right
    for number, (trial, rows) in enumerate(zip(trials, others, strict=True)):
        _fill(trial.rows, places(ids, trial.rows["sample"]), 0, judged, fooled, rank, number)
        if rows is not None and rows.count:
            where, model = places(ids, rows["sample"]), 1 + rows["model"]
            _fill(rows, where, model, judged, fooled, rank, number)
            seen[model, where] = rows["correct"]
    return judged, fooled, rank, seen


def _fill(
    rows: Rows,
    where: NDArray[np.int64],
    model: NDArray[np.int64] | int,
    judged: Mask,
    fooled: Mask,
    rank: NDArray[np.int32],
    number: int,
) -> None:
    within = rows["within"].astype(bool)
    judged[number, model, where] = True
    fooled[number, model, where] = (rows["prediction"] != rows["label"]) & within
    if "rank" in rows:
        place = np.nan_to_num(rows["rank"].astype(np.float64), nan=0.0).astype(np.int32)
        rank[number, model, where] = np.where(within, place, 0)

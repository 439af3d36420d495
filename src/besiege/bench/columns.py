"""The columns of each kind of record: what a table without rows still has."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from besiege.core.threat import Norm
from besiege.metrics.rows import Column, Rows

_NORMS = dict.fromkeys(map(str, Norm), np.float64)
CLEAN: Mapping[str, type] = {
    **dict.fromkeys(("sample", "label", "prediction"), np.int64),
    **dict.fromkeys(("confidence", "share"), np.float64),
    "correct": np.bool_,
}
CRAFTED: Mapping[str, type] = {
    **dict.fromkeys(("sample", "first_step", "first_query"), np.int64),
    **dict.fromkeys(("forwards", "backwards", "queries", "target"), np.int64),
    **dict.fromkeys(("claimed", "vanished", "no_start"), np.bool_),
    "aside": np.int64,
    **dict.fromkeys(("loss_first", "loss_late", "loss_best", "blank"), np.float64),
}
JUDGED: Mapping[str, type] = {
    **dict.fromkeys(("sample", "label", "prediction"), np.int64),
    **dict.fromkeys(("correct", "success", "valid", "within", "reached"), np.bool_),
    **dict.fromkeys(("share", "confidence"), np.float64),
    **_NORMS,
}


def empty(columns: Mapping[str, type]) -> dict[str, Column]:
    """A table of these columns without rows."""
    return {name: np.zeros(0, kind) for name, kind in columns.items()}


def no_rows(*kinds: Mapping[str, type]) -> Rows:
    """The same with the place of each row, as the store gives it."""
    places = {"record": np.zeros(0, "U64"), "row": np.zeros(0, np.int64)}
    return Rows({n: c for kind in kinds for n, c in empty(kind).items()} | places)

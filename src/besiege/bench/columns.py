"""Tables without rows: a task without results still has the columns of its kind."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from besiege.metrics.rows import Column, Rows


def empty(columns: Mapping[str, type]) -> dict[str, Column]:
    """A table of these columns without rows."""
    return {name: np.zeros(0, kind) for name, kind in columns.items()}


def no_rows(*kinds: Mapping[str, type]) -> Rows:
    """The same with the columns ``record`` and ``row``, which the store adds."""
    places = {"record": np.zeros(0, object), "row": np.zeros(0, np.int64)}
    return Rows({n: c for kind in kinds for n, c in empty(kind).items()} | places)

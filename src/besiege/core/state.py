"""The state of an attack: tensors and answers with the rows first, in tuples of any depth."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from besiege.core.errors import AttackError


def check_rows(state: tuple[Any, ...], rows: int) -> None:
    """Refuse a state with a part that has another number of rows."""
    for part in state:
        if isinstance(part, tuple):
            check_rows(part, rows)
            continue
        length = part.shape[0] if isinstance(part, Tensor) else len(part)
        if length != rows:
            raise AttackError(
                f"settle was given a state of {length} rows, but {rows} rows are in the siege; "
                "all state has the rows first and is settled together"
            )


def rows_of(state: Any, rows: Tensor) -> Any:
    """Some rows of a state, in the same structure; named tuples keep their type."""
    if isinstance(state, Tensor):
        return state[rows]
    if not isinstance(state, tuple):
        return state.at(rows)
    parts = [rows_of(part, rows) for part in state]
    return type(state)(*parts) if type(state) is not tuple else tuple(parts)

"""A table of verdicts: named columns of equal length, one row per sample and attack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from besiege.core.errors import InputError, near

Column = NDArray[Any]


def places(ids: Column, wanted: Column) -> NDArray[np.int64]:
    """The row of each wanted id among `ids`, the first of equal ones; -1 where it is not there.

    Examples
    --------
    >>> places(np.array([7, 3, 5]), np.array([5, 4, 7])).tolist()
    [2, -1, 0]
    """
    if not len(ids):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(ids, kind="stable")
    found = order[np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)]
    return np.where(ids[found] == wanted, found, -1)


class Rows(Mapping[str, Column]):
    """Columns by name; ``rows["success"]`` is an array, ``rows.records()`` yields dictionaries.

    Parameters
    ----------
    columns : mapping
        Arrays of equal length.

    Examples
    --------
    >>> rows = Rows({"sample": np.arange(3), "success": np.array([True, False, True])})
    >>> len(rows.where(rows["success"])["sample"])
    2
    """

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = {name: np.asarray(column) for name, column in columns.items()}
        lengths = {len(column) for column in self._columns.values()}
        if len(lengths) > 1:
            raise InputError(f"columns have the lengths {sorted(lengths)}, but a table has one")
        self.count = lengths.pop() if lengths else 0

    def __getitem__(self, name: str) -> Column:
        try:
            return self._columns[name]
        except KeyError:
            raise KeyError(f"there is no column '{name}': {near(name, self._columns)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        """The number of columns; `count` is the number of rows."""
        return len(self._columns)

    def __repr__(self) -> str:
        return f"Rows({self.count} rows: {', '.join(self._columns)})"

    def where(self, chosen: Column) -> Rows:
        """The rows of a mask or of row numbers."""
        return Rows({name: column[chosen] for name, column in self._columns.items()})

    def having(self, **values: Column | object) -> Rows:
        """The same rows with more columns; a single value fills a column."""
        filled = {
            name: value if isinstance(value, np.ndarray) else np.full(self.count, value)
            for name, value in values.items()
        }
        return Rows({**self._columns, **filled})

    def records(self) -> Iterator[dict[str, Any]]:
        """The rows as dictionaries of plain values."""
        columns = {name: column.tolist() for name, column in self._columns.items()}
        for row in range(self.count):
            yield {name: column[row] for name, column in columns.items()}

    def to_pandas(self) -> Any:
        """The table as a pandas data frame, where pandas is installed."""
        import pandas  # type: ignore[import-untyped,import-not-found,unused-ignore]  # optional

        return pandas.DataFrame(self._columns)

    @classmethod
    def joined(cls, tables: Sequence[Rows]) -> Rows:
        """Tables one below the other, with the columns they all have."""
        if not tables:
            return cls({})
        shared = [name for name in tables[0] if all(name in table for table in tables)]
        return cls({name: np.concatenate([table[name] for table in tables]) for name in shared})

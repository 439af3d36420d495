"""A table of verdicts: named columns of equal length, one row per sample and attack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

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


class Rows(dict[str, Column]):
    """Columns by name; ``rows["success"]`` is an array, ``rows.records()`` yields dictionaries.

    It is a dictionary, so that data-frame libraries take it as a table:
    ``pandas.DataFrame(rows)``, ``polars.DataFrame(rows)``, ``pyarrow.table(rows)``. It cannot be
    changed: `where` and `having` return new tables. Columns of text are arrays of ``str`` objects.

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
        super().__init__({name: np.asarray(column) for name, column in columns.items()})
        lengths = {len(column) for column in self.values()}
        if len(lengths) > 1:
            raise InputError(f"columns have the lengths {sorted(lengths)}, but a table has one")
        self.count = lengths.pop() if lengths else 0

    def __missing__(self, name: str) -> Column:
        raise KeyError(f"there is no column '{name}': {near(str(name), self)}")

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            "a table cannot be changed: rows.having(name=values) returns one with another column"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[Rows], tuple[dict[str, Column]]]:
        return Rows, (dict(self),)  # by default, copies are filled with `__setitem__`

    def __repr__(self) -> str:
        return f"Rows({self.count} rows: {', '.join(self)})"

    def where(self, chosen: Column) -> Rows:
        """The rows of a mask or of row numbers."""
        return Rows({name: column[chosen] for name, column in self.items()})

    def having(self, **values: Column | object) -> Rows:
        """The same rows with more columns; a single value fills a column."""
        filled = {
            name: value if isinstance(value, np.ndarray) else filled_with(value, self.count)
            for name, value in values.items()
        }
        return Rows({**self, **filled})

    def without(self, *names: str) -> Rows:
        """The same rows without some columns, where they exist."""
        return Rows({name: column for name, column in self.items() if name not in names})

    def records(self) -> Iterator[dict[str, Any]]:
        """The rows as dictionaries of plain values."""
        columns = {name: column.tolist() for name, column in self.items()}
        for row in range(self.count):
            yield {name: column[row] for name, column in columns.items()}

    def to_pandas(self) -> Any:
        """The table as a pandas data frame; pandas must be installed."""
        return _installed("pandas").DataFrame(dict(self))

    def to_arrow(self) -> Any:
        """The table as an Arrow table; pyarrow must be installed."""
        return _installed("pyarrow").table(dict(self))

    @classmethod
    def joined(cls, tables: Sequence[Rows]) -> Rows:
        """Tables one below the other, with the columns they all have.

        A table without rows takes away no column: it may lack those that only some victims have.
        """
        if not tables:
            return cls({})
        tables = [table for table in tables if table.count] or tables[:1]
        shared = [name for name in tables[0] if all(name in table for table in tables)]
        return cls({name: np.concatenate([table[name] for table in tables]) for name in shared})


def filled_with(value: object, count: int) -> Column:
    """A column of one value; a text is stored once for all rows."""
    return np.full(count, value, object if isinstance(value, str) else None)


def _installed(package: str) -> Any:
    """A package that only some users have."""
    try:
        return import_module(package)
    except ImportError:
        raise InputError(
            f"this table needs the package {package}, which is not installed: pip install {package}"
        ) from None

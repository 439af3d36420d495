"""Rows as a Parquet file, and back, and as other files that DuckDB writes.

DuckDB treats a path as a pattern: ``*`` and ``[`` match other files, ``key=value`` folders become
columns that override those of the file, ``~`` expands. So it never gets a real path: it reads
bytes in memory and writes to files that the caller has opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from io import BytesIO, RawIOBase
from threading import local
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from fsspec import AbstractFileSystem

from besiege.metrics.rows import Column

if TYPE_CHECKING:
    import duckdb

_NEVER = datetime.fromtimestamp(0, UTC)


def packed(rows: Mapping[str, Column]) -> bytes:
    """The content of a Parquet file with these columns."""
    content = BytesIO()
    copy(rows, content, "FORMAT parquet, COMPRESSION zstd")
    return content.getvalue()


def copy(rows: Mapping[str, Column], file: BinaryIO, options: str, shown: str = "*") -> None:
    """Write columns to an open file, as DuckDB's statement COPY does.

    Parameters
    ----------
    rows : mapping
        The columns.
    file : binary file
        An open file; it stays open.
    options : str
        The options of the statement, such as ``FORMAT csv``.
    shown : str
        What is selected of the columns, in SQL.
    """
    columns = {name: np.ascontiguousarray(column) for name, column in rows.items()}
    with _duck({}) as (duck, memory, place):
        memory.written[f"{place}/rows"] = file
        duck.register("columns", columns)
        try:
            duck.execute(
                f"COPY (SELECT {shown} FROM columns) TO 'besiege://{place}/rows' "
                f"({options}, USE_TMP_FILE false)"
            )
        finally:
            duck.unregister("columns")


def unpacked(files: Sequence[tuple[str, bytes]]) -> dict[str, Column]:
    """The rows of some Parquet files, one after the other.

    Parameters
    ----------
    files : sequence of (key, content)
        Files with the keys of their records.

    Returns
    -------
    dict of str to array
        All columns, and ``record`` and ``row``: the key, and the row number in that file.
    """
    if not files:
        return {}
    numbered = {str(number): content for number, (_, content) in enumerate(files)}
    with _duck(numbered) as (duck, _, place):
        found = duck.execute(
            "SELECT * EXCLUDE (filename, file_row_number), "
            "CAST(parse_filename(filename) AS INTEGER) AS record, file_row_number AS row FROM "
            "read_parquet(?, union_by_name=true, filename=true, file_row_number=true)",
            [[f"besiege://{place}/{number}" for number in numbered]],
        ).fetchnumpy()
        columns = _unmasked(found)
    # Every key is one object that its rows share: texts of a million rows would fill the memory.
    keys = np.array([key for key, _ in files], object)
    return {**columns, "record": keys[columns["record"]]}


class _Memory(AbstractFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """A file system in memory, and files that are open elsewhere."""

    protocol = "besiege"
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, bytes] = {}
        self.written: dict[str, BinaryIO] = {}

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        name = self._strip_protocol(path)
        if name not in self.files:  # also one that is being written: it has no content before
            raise FileNotFoundError(name)
        return {"name": name, "size": len(self.files[name]), "type": "file"}

    def glob(self, path: str, **_: Any) -> list[str]:
        return [self.info(path)["name"]]  # names are never patterns

    def modified(self, path: str) -> datetime:
        return _NEVER  # files do not change

    def open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        name = self._strip_protocol(path)
        return BytesIO(self.files[name]) if "r" in mode else _Written(self.written[name])

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("besiege://")


class _Written(RawIOBase):
    """A file that DuckDB writes and closes, while the one below stays open."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        return self._file.write(content)


class _Connection(local):
    """The connection of a thread. Opening one takes longer than a query of a small table."""

    duck: duckdb.DuckDBPyConnection | None = None

    def open(self) -> duckdb.DuckDBPyConnection:
        import duckdb  # slow to import, and not needed where figures are kept

        if self.duck is None:
            # One thread: the rows keep their order, and the cores belong to the attacks.
            self.duck = duckdb.connect(
                ":memory:", config={"threads": 1, "preserve_insertion_order": True}
            )
            self.duck.execute("SET enable_external_file_cache = false")
            self.memory, self.calls = _Memory(), 0
            self.duck.register_filesystem(self.memory)
        return self.duck

    def close(self) -> None:
        if self.duck is not None:
            self.duck.close()
            self.duck = None


_CONNECTION = _Connection()
# A forked child that closes its parent's connection hangs, at its end at the latest.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_CONNECTION.close)


@contextmanager
def _duck(
    files: Mapping[str, bytes],
) -> Iterator[tuple[duckdb.DuckDBPyConnection, _Memory, str]]:
    """A connection, its memory, and the folder in it that holds the files for a while."""
    duck = _CONNECTION.open()
    memory = _CONNECTION.memory
    _CONNECTION.calls += 1
    place = str(_CONNECTION.calls)  # DuckDB may remember a file by its name
    memory.files = {f"{place}/{name}": content for name, content in files.items()}
    try:
        yield duck, memory, place
    except Exception as problem:
        if _interrupted(problem):
            raise KeyboardInterrupt from problem
        raise
    finally:
        memory.files, memory.written = {}, {}


def _interrupted(problem: Exception) -> bool:
    """Whether the user interrupted a query: DuckDB turns Ctrl-C into an error of its own.

    It raises RuntimeError between two steps of a query. An interrupt inside `_Memory`, which DuckDB
    calls, becomes an error with the traceback as its text.
    """
    said = str(problem)
    return said == "Query interrupted" or re.search("^KeyboardInterrupt", said, re.M) is not None


def _unmasked(columns: Mapping[str, Any]) -> dict[str, Column]:
    """Arrays without masks: missing numbers are NaN, missing texts are empty."""
    missing: dict[str, Any] = {"f": np.nan, "O": ""}
    return {
        name: column.filled(missing[column.dtype.kind])
        if isinstance(column, np.ma.MaskedArray) and column.dtype.kind in missing
        else np.ma.getdata(column)
        for name, column in columns.items()
    }

"""Rows as the bytes of a Parquet file, and back.

DuckDB treats a path as a pattern: ``*`` and ``[`` match other files, ``key=value`` folders become
columns that override those of the file, ``~`` expands. So it never gets a real path: it reads and
writes bytes in memory, and the caller reads and writes the files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from io import BytesIO
from threading import local
from typing import TYPE_CHECKING, Any

import numpy as np
from fsspec import AbstractFileSystem

from besiege.metrics.rows import Column

if TYPE_CHECKING:
    import duckdb

_NEVER = datetime.fromtimestamp(0, UTC)


def packed(rows: Mapping[str, Column]) -> bytes:
    """The content of a Parquet file with these columns."""
    columns = {name: np.ascontiguousarray(column) for name, column in rows.items()}
    with _duck({}) as (duck, memory, place):
        duck.register("columns", columns)
        try:
            duck.execute(
                f"COPY columns TO 'besiege://{place}/rows' "
                "(FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false)"
            )
        finally:
            duck.unregister("columns")
        return memory.files[f"{place}/rows"]


def unpacked(files: Sequence[tuple[str, bytes]]) -> dict[str, Column]:
    """The rows of some Parquet files, one after the other.

    Parameters
    ----------
    files : sequence of (key, content)
        The key is the hash of a record, so it has no special characters.

    Returns
    -------
    dict of str to array
        All columns, and ``record`` and ``row``: the key, and the row number in that file.
    """
    if not files:
        return {}
    with _duck(dict(files)) as (duck, _, place):
        found = duck.execute(
            "SELECT * EXCLUDE (filename, file_row_number), "
            "parse_filename(filename) AS record, file_row_number AS row FROM "
            "read_parquet(?, union_by_name=true, filename=true, file_row_number=true)",
            [[f"besiege://{place}/{key}" for key, _ in files]],
        ).fetchnumpy()
        return _unmasked(found)


class _Memory(AbstractFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """A file system in memory."""

    protocol = "besiege"
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, bytes] = {}

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        name = self._strip_protocol(path)
        if name not in self.files:
            raise FileNotFoundError(name)
        return {"name": name, "size": len(self.files[name]), "type": "file"}

    def glob(self, path: str, **_: Any) -> list[str]:
        return [self.info(path)["name"]]  # names are never patterns

    def modified(self, path: str) -> datetime:
        return _NEVER  # files do not change

    def open(self, path: str, mode: str = "rb", **_: Any) -> BytesIO:
        name = self._strip_protocol(path)
        return BytesIO(self.files[name]) if "r" in mode else _Written(self.files, name)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("besiege://")


class _Written(BytesIO):
    """A file that appears when it is closed."""

    def __init__(self, files: dict[str, bytes], name: str) -> None:
        super().__init__()
        self._files, self._name = files, name

    def close(self) -> None:
        if not self.closed:
            self._files[self._name] = self.getvalue()
        super().close()


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
    finally:
        memory.files = {}


def _unmasked(columns: Mapping[str, Any]) -> dict[str, Column]:
    """Arrays without masks (NaN for missing numbers), and texts as strings."""
    plain = {}
    for name, column in columns.items():
        masked = isinstance(column, np.ma.MaskedArray) and column.dtype.kind == "f"
        array = column.filled(np.nan) if masked else np.ma.getdata(column)
        plain[name] = array.astype(str) if array.dtype == object else array
    return plain

"""Rows as the bytes of a Parquet file, and back.

DuckDB treats a path as a pattern: ``*`` and ``[`` match other files, ``key=value`` folders become
columns that override those of the file, ``~`` expands. So it never gets a real path: it reads and
writes bytes in memory, and the caller reads and writes the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from io import BytesIO
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
    memory = _Memory.of({})
    with _duck(memory) as duck:
        duck.register("columns", columns)
        duck.execute(
            "COPY columns TO 'besiege://rows' "
            "(FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false)"
        )
    return memory.files["rows"]


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
    with _duck(_Memory.of(dict(files))) as duck:
        found = duck.execute(
            "SELECT * EXCLUDE (filename, file_row_number), "
            "parse_filename(filename) AS record, file_row_number AS row FROM "
            "read_parquet(?, union_by_name=true, filename=true, file_row_number=true)",
            [[f"besiege://{key}" for key, _ in files]],
        ).fetchnumpy()
        return _unmasked(found)


class _Memory(AbstractFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """A file system in memory, for one connection."""

    protocol = "besiege"
    cachable = False

    files: dict[str, bytes]

    @classmethod
    def of(cls, files: dict[str, bytes]) -> _Memory:
        memory = cls()
        memory.files = files  # not an argument, of which fsspec would hash every byte
        return memory

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        name = self._strip_protocol(path)
        if name not in self.files:
            raise FileNotFoundError(name)
        return {"name": name, "size": len(self.files[name]), "type": "file"}

    def glob(self, path: str, **_: Any) -> list[str]:
        return [self.info(path)["name"]]  # names are never patterns

    def modified(self, path: str) -> datetime:
        return _NEVER  # files do not change during a connection

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


@contextmanager
def _duck(memory: _Memory) -> Iterator[duckdb.DuckDBPyConnection]:
    import duckdb  # slow to import, and not needed for cached figures

    # One thread keeps the order of the rows, and leaves the cores to the attacks.
    duck = duckdb.connect(":memory:", config={"threads": 1, "preserve_insertion_order": True})
    try:
        duck.register_filesystem(memory)
        yield duck
    finally:
        duck.close()


def _unmasked(columns: Mapping[str, Any]) -> dict[str, Column]:
    """Arrays without masks (NaN for missing numbers), and texts as strings."""
    plain = {}
    for name, column in columns.items():
        masked = isinstance(column, np.ma.MaskedArray) and column.dtype.kind == "f"
        array = column.filled(np.nan) if masked else np.ma.getdata(column)
        plain[name] = array.astype(str) if array.dtype == object else array
    return plain

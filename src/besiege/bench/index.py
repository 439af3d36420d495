"""``index.sqlite``: what the records say, for those who only count; rebuilt from them at will."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from besiege.bench.store import DamagedError, Store

_TABLE = """CREATE TABLE IF NOT EXISTS records (
    key TEXT PRIMARY KEY, kind TEXT, failure TEXT, damaged TEXT, totals TEXT, seconds REAL)"""


@dataclass(frozen=True)
class Line:
    """What the index knows of one record."""

    kind: str
    failure: str | None
    damaged: str | None
    totals: dict[str, Any]
    seconds: float


def lines(store: Store) -> dict[str, Line]:
    """A line per record; reads only what is new since the last time."""
    present = store.present()
    with _index(store.folder) as index:
        known = {key for (key,) in index.execute("SELECT key FROM records")}
        gone = known - present
        index.executemany("DELETE FROM records WHERE key = ?", [(key,) for key in gone])
        index.executemany(
            "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?)",
            [_entry(store, key) for key in sorted(present - known)],
        )
        index.commit()
        found = index.execute("SELECT key, kind, failure, damaged, totals, seconds FROM records")
        return {
            key: Line(kind, failure, damaged, json.loads(totals), seconds)
            for key, kind, failure, damaged, totals, seconds in found
            # What failed or was damaged may be done again under the same key.
        }


def rebuild(store: Store) -> dict[str, Line]:
    """Throw the index away and make it anew."""
    for name in ("index.sqlite", "index.sqlite-wal", "index.sqlite-shm"):
        (store.folder / name).unlink(missing_ok=True)
    return lines(store)


def _entry(store: Store, key: str) -> Sequence[Any]:
    try:
        record = store.read(key)
    except DamagedError as problem:
        return (key, "unknown", None, str(problem), "{}", 0.0)
    if record is None:  # moved away while we were looking
        return (key, "unknown", None, "gone", "{}", 0.0)
    failure = record.failure and f"{record.failure['type']}: {record.failure['message']}"
    return (
        key,
        record.identity["kind"],
        failure,
        None,
        json.dumps(record.totals),
        float(record.provenance.get("seconds", 0.0)),
    )


@contextmanager
def _index(folder: Path) -> Iterator[sqlite3.Connection]:
    index = _opened(folder)
    try:
        # Only sound results stay: a failure may since have been done again under its key.
        index.execute("DELETE FROM records WHERE failure IS NOT NULL OR damaged IS NOT NULL")
        yield index
    finally:
        index.close()


def _opened(folder: Path) -> sqlite3.Connection:
    path = folder / "index.sqlite"
    for where in (path, None):
        try:
            index = sqlite3.connect(":memory:" if where is None else where, timeout=5)
            if where is not None:
                index.execute("PRAGMA journal_mode=WAL")
                index.execute("PRAGMA synchronous=NORMAL")
            index.execute(_TABLE)
            return index
        except sqlite3.DatabaseError:
            # Damaged, locked for long, or a folder that may only be read: the records suffice.
            continue
    raise AssertionError("a table in memory can always be made")

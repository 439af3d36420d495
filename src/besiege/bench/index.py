"""The index: totals of the records of a folder, for `status`; it is rebuilt from them at any time.

It lies in the user's cache folder: a run folder may be on a disk that several machines share, where
SQLite is not safe.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from besiege.bench.store import DamagedError, Store
from besiege.core.files import cache_folder

_TABLE = """CREATE TABLE IF NOT EXISTS entries (
    key TEXT PRIMARY KEY, stamp TEXT, kind TEXT, failure TEXT, damaged TEXT, totals TEXT,
    seconds REAL)"""


@dataclass(frozen=True)
class Line:
    """One record in the index."""

    kind: str
    failure: str | None
    damaged: str | None
    totals: dict[str, Any]
    seconds: float


def lines(store: Store) -> dict[str, Line]:
    """A line per record; only new or changed records are read."""
    stamps = {key: _stamp(store, key) for key in store.present()}
    path = index_path(store.folder)
    if path is None:
        return _synchronised(store, stamps, _opened(None))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return _synchronised(store, stamps, _opened(path))
    except sqlite3.OperationalError:
        pass  # it is locked, or the cache cannot be written: read all records instead
    except (sqlite3.DatabaseError, OSError):
        with suppress(OSError):
            path.unlink(missing_ok=True)  # it is damaged
    return _synchronised(store, stamps, _opened(None))


def index_path(folder: Path) -> Path | None:
    """The file of the index of a run folder; None for a user without a cache folder."""
    cache = cache_folder()
    name = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:32]
    return None if cache is None else cache / "index" / f"{name}.sqlite"


def _synchronised(
    store: Store, stamps: dict[str, str], index: sqlite3.Connection
) -> dict[str, Line]:
    try:
        known = dict(index.execute("SELECT key, stamp FROM entries").fetchall())
        changed = [key for key, stamp in stamps.items() if known.get(key) != stamp]
        entries = [(key, stamps[key], *_entry(store, key)) for key in changed]
        gone = [(key,) for key in known if key not in stamps]
        if entries or gone:  # all reading is done: the index is locked for a short time only
            index.executemany("DELETE FROM entries WHERE key = ?", gone)
            index.executemany("INSERT OR REPLACE INTO entries VALUES (?,?,?,?,?,?,?)", entries)
            index.commit()
        found = index.execute("SELECT key, kind, failure, damaged, totals, seconds FROM entries")
        return {
            key: Line(kind, failure, damaged, json.loads(totals), seconds)
            for key, kind, failure, damaged, totals, seconds in found
        }
    finally:
        index.close()


def _stamp(store: Store, key: str) -> str:
    """A text that changes when the record does."""
    try:
        about = os.stat(store.records / key / "record.json")
    except OSError:
        return "nothing"
    return f"{about.st_mtime_ns} {about.st_size} {about.st_ino}"


def _entry(store: Store, key: str) -> Sequence[Any]:
    try:
        record = store.read(key)
    except DamagedError as problem:
        return ("unknown", None, str(problem), "{}", 0.0)
    if record is None:  # moved away meanwhile
        return ("unknown", None, "gone", "{}", 0.0)
    failure = record.failure and f"{record.failure['type']}: {record.failure['message']}"
    return (
        record.identity["kind"],
        failure,
        None,
        json.dumps(record.totals),
        float(record.provenance.get("seconds", 0.0)),
    )


def _opened(path: Path | None) -> sqlite3.Connection:
    index = sqlite3.connect(":memory:" if path is None else path, timeout=2)
    try:
        # Nothing is lost with it, and a log beside it is not safe on every disk.
        index.execute("PRAGMA journal_mode=MEMORY")
        index.execute("PRAGMA synchronous=OFF")
        index.execute(_TABLE)
    except sqlite3.DatabaseError:
        index.close()
        raise
    return index

"""`Ledger`: a black-box victim's answers on disk, so that no query is paid for twice."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from besiege.core.errors import StoreError

Logits = NDArray[np.float32]

_TABLES = """
CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, logits BLOB, at REAL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS requests (
    at REAL, account TEXT, images INTEGER, attempt INTEGER, status TEXT, seconds REAL);
CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, asked INTEGER, sent INTEGER);
CREATE TABLE IF NOT EXISTS latest (
    name TEXT, key BLOB, dtype TEXT, shape TEXT, pixels BLOB, PRIMARY KEY (name, key));
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT);
"""
_AT_A_TIME = 500
"""Keys in one SELECT; SQLite limits their number."""
_PATIENCE = 60.0
"""Seconds to wait for another process or thread that writes."""


class Ledger:
    """Answers of a victim by the hash of what was sent, and counts of images queried and sent.

    The file is created at the first write. Every answer is committed when it arrives: a process
    that is killed loses only the requests under way. Several threads and processes may share one
    file.

    Parameters
    ----------
    path : path
        An SQLite file.

    Examples
    --------
    >>> import tempfile
    >>> ledger = Ledger(Path(tempfile.mkdtemp()) / "endpoint.sqlite")
    >>> ledger.write([b"what was sent"], np.zeros((1, 3), np.float32))
    >>> ledger.read([b"what was sent", b"something else"])
    {b'what was sent': array([0., 0., 0.], dtype=float32)}
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock = threading.RLock()
        self._held: sqlite3.Connection | None = None
        self._distrusted: bool | None = None

    def read(self, keys: Sequence[bytes]) -> dict[bytes, Logits]:
        """The answers to those of the keys that the ledger has."""
        answers: dict[bytes, Logits] = {}
        for first in range(0, len(keys), _AT_A_TIME):
            some = keys[first : first + _AT_A_TIME]
            marks = ",".join("?" * len(some))
            rows = self._select(f"SELECT key, logits FROM answers WHERE key IN ({marks})", some)
            answers |= {bytes(k): np.frombuffer(v, dtype=np.float32) for k, v in rows}
        return answers

    def write(self, keys: Sequence[bytes], logits: Logits) -> None:
        """Keep answers; they are on disk when this returns."""
        now = time.time()
        rows = [(k, row.tobytes(), now) for k, row in zip(keys, logits, strict=True)]
        # The first answer stays: an attack has acted on it.
        self._many("INSERT OR IGNORE INTO answers VALUES (?, ?, ?)", rows)

    def count(self, account: str, asked: int, sent: int) -> None:
        """Add images queried and sent to an account."""
        self._do(
            "INSERT INTO accounts VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET "
            "asked = asked + excluded.asked, sent = sent + excluded.sent",
            (account, asked, sent),
        )

    def note(self, account: str, images: int, attempt: int, status: str, seconds: float) -> None:
        """Record one attempt at a request."""
        self._do(
            "INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?)",
            (time.time(), account, images, attempt, status, seconds),
        )

    def accounts(self) -> dict[str, tuple[int, int]]:
        """Images queried and sent, by account, over all runs that used this file."""
        rows = self._select("SELECT name, asked, sent FROM accounts ORDER BY name")
        return {str(name): (int(asked), int(sent)) for name, asked, sent in rows}

    def __len__(self) -> int:
        return sum(int(count) for (count,) in self._select("SELECT count(*) FROM answers"))

    @property
    def distrusted(self) -> bool:
        """Whether the victim was found to be stochastic: then no answer may be repeated."""
        if self._distrusted is None:
            self._distrusted = bool(self._select("SELECT 1 FROM facts WHERE name = 'chance'"))
        return self._distrusted

    def distrust(self) -> None:
        """Serve no answers any more: the victim is stochastic."""
        self._distrusted = True
        self._do("INSERT OR IGNORE INTO facts VALUES ('chance', 'seen')")

    def canary(self, name: str) -> tuple[bytes, NDArray[Any]] | None:
        """The key and the pixels of the first image answered under a name; None without one."""
        rows = self._select("SELECT value FROM facts WHERE name = ?", (f"canary {name}",))
        if not rows:
            return None
        held = json.loads(rows[0][0])
        pixels = np.frombuffer(b64decode(held["pixels"]), dtype=held["dtype"])
        return bytes.fromhex(held["key"]), pixels.reshape(held["shape"])

    def keep_canary(self, name: str, key: bytes, pixels: NDArray[Any]) -> None:
        """Keep an image to send again later; the first one under a name stays."""
        held = {
            "key": key.hex(),
            "dtype": pixels.dtype.str,
            "shape": pixels.shape,
            "pixels": b64encode(pixels.tobytes()).decode(),
        }
        values = (f"canary {name}", json.dumps(held))
        self._do("INSERT OR IGNORE INTO facts VALUES (?, ?)", values)

    def latest(self, name: str, most: int) -> list[tuple[bytes, NDArray[Any]]]:
        """The `most` images of one shape that were answered last, with their keys."""
        rows = self._select(
            "SELECT key, dtype, shape, pixels FROM latest WHERE name = ? "
            "ORDER BY rowid DESC LIMIT ?",
            (name, most),
        )
        return [
            (bytes(key), np.frombuffer(pixels, dtype=dtype).reshape(json.loads(shape)))
            for key, dtype, shape, pixels in rows
            if (dtype, shape) == rows[0][1:3]
        ]

    def keep_latest(
        self, name: str, keys: Sequence[bytes], images: NDArray[Any], most: int
    ) -> None:
        """Keep the last images of a batch, to send again later, and drop older ones."""
        rows = [
            (name, key, image.dtype.str, json.dumps(image.shape), image.tobytes())
            for key, image in zip(keys[-most:], images[-most:], strict=True)
        ]
        self._many("INSERT OR REPLACE INTO latest VALUES (?, ?, ?, ?, ?)", rows)
        self._do(
            "DELETE FROM latest WHERE name = ? AND rowid NOT IN "
            "(SELECT rowid FROM latest WHERE name = ? ORDER BY rowid DESC LIMIT ?)",
            (name, name, most),
        )

    def _select(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows that a query gives; none if there is no file, which reading never creates."""
        if self._held is None and not self.path.exists():
            return []
        return self._do(statement, values)

    def _do(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._connection().execute(statement, tuple(values)).fetchall()
            except sqlite3.Error as problem:
                raise self._broken(problem) from problem

    def _many(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        with self._lock:
            connection = self._connection()
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(statement, rows)
                connection.execute("COMMIT")
            except sqlite3.Error as problem:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise self._broken(problem) from problem

    def _connection(self) -> sqlite3.Connection:
        if self._held is None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                held = sqlite3.connect(
                    self.path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
                )
                _write_ahead(held)
                held.execute("PRAGMA synchronous=NORMAL")
                held.executescript(_TABLES)
            except (sqlite3.Error, OSError) as problem:
                raise self._broken(problem) from problem
            self._held = held
            finalize(self, held.close)
        return self._held

    def _broken(self, problem: Exception) -> StoreError:
        return StoreError(
            f"the ledger {self.path} cannot be used: {problem}. It holds answers that were paid "
            "for: free disk space or repair its permissions, or move it away to start again"
        )


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Use a write-ahead log: a commit survives a killed process without waiting for the disk.

    SQLite's own patience does not cover this change: while another connection makes it, the
    answer is "database is locked" at once. So it is asked for again.
    """
    last = time.monotonic() + _PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as problem:
            if problem.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > last:
                raise
            time.sleep(0.01)

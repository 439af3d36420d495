"""The lock of a run folder, held for moments only: to change a file that several processes write.

Nothing is wrong without it, on a file system that has no locks: records are written atomically, and
only evaluations that are requested at the same moment may then be missing in ``run.json``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from besiege.bench.folder import telling
from besiege.core.errors import StoreError

FILE = "lock"
PATIENCE = 30.0
"""Seconds to wait for another process. Each holds the lock for milliseconds."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; the end of a process releases it, too."""
    with telling(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / FILE, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _wait(lock, folder)
        yield
    finally:
        os.close(lock)


def _wait(lock: int, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # a system without such locks
        return
    last, pause = time.monotonic() + PATIENCE, 0.001
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > last:
                raise StoreError(
                    f"another process holds {folder / FILE}: wait for it, or choose another "
                    "folder (besiege status shows its progress)"
                ) from None
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
        except OSError:  # a file system without locks
            return

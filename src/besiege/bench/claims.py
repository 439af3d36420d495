"""Claims: which process does a task now, so that others do another one meanwhile.

``claims/KEY`` is created exclusively, names its process, and is touched while that process works.
It is taken over once the process is gone. A claim only saves work: equal tasks give equal records,
and the first one stays.
"""

from __future__ import annotations

import os
import platform
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from besiege.bench.folder import telling
from besiege.bench.store import Store
from besiege.core.files import PARTIAL, age_of, read_file
from besiege.core.owner import Owner, this

FOLDER = "claims"
BEAT, SILENCE = 15.0, 120.0
"""Seconds between two touches of a claim, and without one until its process counts as gone. Only
processes of other machines are judged by that."""


class Claims:
    """The claims of this process on tasks of a run folder.

    As a context manager it keeps them fresh, and releases what is left at the end.

    Parameters
    ----------
    store : Store
        The run folder.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = store.folder / FOLDER
        self._held: set[str] = set()
        self._ended = threading.Event()
        self._beating = threading.Thread(target=self._beat, name="claims", daemon=True)

    def __enter__(self) -> Self:
        with telling(self._store.folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        for key in os.listdir(self._folder):  # of processes that were killed
            if not key.startswith(PARTIAL) and self._is_left(key):
                self._remove(key)
        self._beating.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._beating.join()
        for key in tuple(self._held):
            self.release(key)

    def take(self, key: str) -> bool:
        """Claim a task; False if another process has it.

        The task may have been done before the claim: look again.
        """
        while not self._create(key):
            if not self._is_left(key):
                return False
            self._remove(key)
        self._held.add(key)
        return True

    def release(self, key: str) -> None:
        """Give a claim back."""
        self._held.discard(key)
        # After a long sleep of this machine another process may have taken it over.
        if _owner(self._folder / key) == this():
            with suppress(OSError):
                os.unlink(self._folder / key)

    def _create(self, key: str) -> bool:
        with telling(self._store.folder):
            try:
                file = os.open(self._folder / key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                return False
            try:
                os.write(file, f"{this()}\n{platform.node()}\n".encode())
            finally:
                os.close(file)
        return True

    def _is_left(self, key: str) -> bool:
        """Whether a claim exists whose process is gone."""
        path = self._folder / key
        owner = _owner(path)
        # One without an owner is being written, or was never finished.
        gone = None if owner is None else owner.gone
        return age_of(path) > SILENCE if gone is None else gone

    def _remove(self, key: str) -> None:
        """Remove a claim that was left; only with the lock, so that no new one is removed."""
        with self._store.updating():
            if self._is_left(key):
                with suppress(FileNotFoundError):
                    os.unlink(self._folder / key)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            for key in tuple(self._held):
                with suppress(OSError):
                    os.utime(self._folder / key)


def _owner(path: Path) -> Owner | None:
    try:
        return Owner.parse(read_file(path).decode("ascii", "replace").partition("\n")[0])
    except OSError:
        return None

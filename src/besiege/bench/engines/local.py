"""Engine ``local``: processes on this machine, each with a pipe that is also its lifeline."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import IO, Any

from besiege.bench.engines import ENGINES, Job, Outcome
from besiege.bench.spec import Machine
from besiege.bench.store import Store
from besiege.core.errors import BesiegeError

_START = (
    "import json, sys; given = json.loads(sys.argv[1]); sys.path[:] = given['path']; "
    "from besiege.bench.worker import main; main(given)"
)
EXITS, KILLS = 3, 20
"""Workers of one slot that may end, or be killed, one after the other before they have begun."""
_TAIL = 2000


class Local:
    """Processes on this machine; one that dies, idle or busy, is replaced.

    Parameters
    ----------
    store : Store
        The run folder.
    how : Machine
        Where and how they compute; one torch thread each, unless it says otherwise. Without a
        device they share the GPUs evenly.
    workers : int
        Their number.
    """

    def __init__(self, store: Store, how: Machine, workers: int) -> None:
        self.slots = range(workers)
        self._told: queue.SimpleQueue[tuple[_Process, Outcome | None]] = queue.SimpleQueue()
        given = asdict(how) | {"threads": how.threads or 1, "folder": str(store.folder.absolute())}
        self._given = given | {"path": [os.path.abspath(path) for path in sys.path]}
        self._workers = [_Process(slot, self._given, self._told) for slot in range(workers)]

    def submit(self, slot: int, job: Job) -> None:
        self._workers[slot].send(job)

    def completed(self, timeout: float) -> list[tuple[int, Outcome]]:
        found = self._next(timeout)
        while not self._told.empty():
            found += self._next(0.0)
        # Its pipe may be open in a process that a worker has started, so its end is not enough.
        for worker in [one for one in self._workers if one.ended]:
            found += self._replace(worker)
        return found

    def close(self) -> None:
        for worker in self._workers:
            worker.hang_up()
        for worker in self._workers:
            worker.end()

    def _next(self, timeout: float) -> list[tuple[int, Outcome]]:
        try:
            worker, outcome = self._told.get(timeout=timeout)
        except queue.Empty:
            return []
        if worker is not self._workers[worker.slot]:
            return []  # it was replaced
        if outcome is None:
            return self._replace(worker)
        if outcome["state"] == "started":
            worker.failures.clear()
            return []
        if outcome["state"] != "during":
            worker.job = None
        return [(worker.slot, outcome)]

    def _replace(self, dead: _Process) -> list[tuple[int, Outcome]]:
        """Start another worker in the place of a dead one; the outcome of the job that it had."""
        how = dead.end()
        if dead.begun and dead.job is not None:
            self._workers[dead.slot] = _Process(dead.slot, self._given, self._told)
            return [(dead.slot, {"key": dead.job["key"], "state": "died", "message": how})]
        failures = [*dead.failures, dead.killed] if not dead.begun else []
        if failures.count(False) >= EXITS or len(failures) >= KILLS:
            raise BesiegeError(f"workers cannot be started on this machine: {how}")
        fresh = _Process(dead.slot, self._given, self._told, failures)
        self._workers[dead.slot] = fresh
        if dead.job is not None:
            fresh.send(dead.job)
        return []


class _Process:
    """One worker process, and the job that it has."""

    def __init__(
        self,
        slot: int,
        given: Mapping[str, Any],
        told: queue.SimpleQueue[tuple[_Process, Outcome | None]],
        failures: list[bool] | None = None,
    ) -> None:
        self.slot = slot
        self.job: Job | None = None
        self.begun = False
        self.failures = failures or []
        """Of the workers before it that ended before they had begun: whether they were killed."""
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed at its end
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=_environment(slot, given),
        )
        self._reading = threading.Thread(target=self._read, args=(told,), daemon=True)
        self._reading.start()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def killed(self) -> bool:
        return (self._process.returncode or 0) < 0

    def send(self, job: Job) -> None:
        self.job = job
        assert self._process.stdin is not None
        with suppress(OSError):  # it died: its end is noticed
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()

    def hang_up(self) -> None:
        """Close its lifeline: it ends at once."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def end(self) -> str:
        """End it, if it has not ended; how it ended, in words."""
        if self._errors.closed:
            return ""
        self.hang_up()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        code = self._process.returncode
        with suppress(ValueError):
            how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else ""
            how = how or f"exit code {code}"
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _TAIL))
        tail = self._errors.read().decode("utf-8", "replace").strip()
        self._errors.close()
        return f"{how}\n{tail}" if tail else how

    def _read(self, told: queue.SimpleQueue[tuple[_Process, Outcome | None]]) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                outcome = json.loads(line)
                self.begun = True
                told.put((self, outcome))
        told.put((self, None))


def _environment(slot: int, given: Mapping[str, Any]) -> dict[str, str]:
    """The environment of a worker: its threads, and its GPU where there are several."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(given["threads"])}
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(n) for n in range(_gpus())]
    if given["device"] is None and len(devices) > 1:
        environment["CUDA_VISIBLE_DEVICES"] = devices[slot % len(devices)]
    return environment


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


ENGINES.add("local", Local)

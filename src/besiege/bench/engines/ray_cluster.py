"""Engine ``ray``: workers of a Ray cluster, which need no disk in common with this machine.

A job travels with the records that its task needs, and the files of its record travel back: only
this process writes to the run folder, and only it has claims.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from besiege.bench.claims import Claims
from besiege.bench.engines import ENGINES, Job, Outcome
from besiege.bench.spec import Machine
from besiege.bench.store import RECORD, Store
from besiege.bench.task import Task
from besiege.core.errors import InputError

Files = Mapping[str, bytes]


class RayCluster:
    """Actors of a Ray cluster; one that dies, or whose node does, is replaced.

    Parameters
    ----------
    store : Store
        The run folder.
    how : Machine
        Where and how they compute; one torch thread each, unless it says otherwise.
    address : str
        The address of the cluster, as `ray.init` takes it.
    workers : int, optional
        Their number; by default as many as the cluster has GPUs, or CPUs without any.
    """

    def __init__(
        self, store: Store, how: Machine, address: str, workers: int | None = None
    ) -> None:
        self._ray = _connected(address)
        self._store = store
        self._how = replace(how, threads=how.threads or 1)
        total = self._ray.cluster_resources()
        on_gpu = total.get("GPU", 0) >= 1 and not (how.device or "cuda").startswith("cpu")
        self._needs = {"num_cpus": self._how.threads or 1, "num_gpus": int(on_gpu)}
        most = total.get("GPU", 0) if on_gpu else total.get("CPU", 0) // self._needs["num_cpus"]
        self.slots = workers or max(1, int(most))
        self._claims: Claims | None = None
        self._told: list[tuple[int, Outcome]] = []
        self._running: dict[Any, tuple[int, Job]] = {}
        self._actors = [self._started() for _ in range(self.slots)]

    def submit(self, slot: int, job: Job) -> None:
        from besiege.bench.worker import task_of
        from besiege.bench.working import is_kept, make_room

        if self._claims is None:
            self._claims = Claims(self._store).__enter__()
        task = task_of(job)
        if not self._claims.take(task.key):
            self._told.append((slot, {"key": task.key, "state": "held"}))
        elif is_kept(task, self._store, job["again"]):
            self._claims.release(task.key)
            self._told.append((slot, {"key": task.key, "state": "kept"}))
        else:
            make_room(task, self._store)
            sent = self._actors[slot].do.remote(job, needed(task, self._store))
            self._running[sent] = slot, job

    def completed(self, timeout: float) -> list[tuple[int, Outcome]]:
        found, self._told = self._told, []
        if self._running:
            waits = 0.0 if found else timeout
            ready, _ = self._ray.wait(list(self._running), timeout=waits, fetch_local=True)
            found += [self._received(one) for one in ready]
        return found

    def close(self) -> None:
        for actor in self._actors:
            with suppress(Exception):  # it may be dead
                self._ray.kill(actor)
        self._actors = []
        if self._claims is not None:
            self._claims.__exit__(None, None, None)
            self._claims = None
        self._ray.shutdown()

    def _started(self) -> Any:
        kind = self._ray.remote(**self._needs)(_Remote)
        return kind.remote(asdict(self._how))

    def _received(self, sent: Any) -> tuple[int, Outcome]:
        from besiege.bench.working import note

        slot, job = self._running.pop(sent)
        assert self._claims is not None, "a job is submitted before it is received"
        try:
            outcome, files = self._ray.get(sent)
        except Exception as problem:  # the actor or its node died, or Ray lost what it sent
            self._actors[slot] = self._started()
            outcome, files = {"state": "died", "message": str(problem)}, {}
        if outcome["state"] == "made":
            self._store.place(job["key"], files)
            record = self._store.read(job["key"])
            assert record is not None, "it was placed"
            note(self._store, record)
        self._claims.release(job["key"])
        return slot, outcome


def needed(task: Task, store: Store) -> dict[str, Files]:
    """The files of the records that a task reads, by key.

    A verdict comes with the record of the images that it judged; an attack reads its sums only.
    """
    found: dict[str, Files] = {}
    for key in task.needs:
        found[key] = store.files(key)
        record = store.read(key)
        crafted = None if record is None else record.identity.get("crafted")
        if crafted is not None:
            files = store.files(crafted)
            only = {RECORD: files[RECORD]}
            found[crafted] = only if task.kind == "craft" else files
    return found


class _Remote:
    """A worker on a node of the cluster, with a folder of its own."""

    def __init__(self, how: Mapping[str, Any]) -> None:
        from besiege.bench.worker import Worker

        self._folder = tempfile.TemporaryDirectory(prefix="besiege-")
        self._worker = Worker(self._folder.name, Machine(**how))

    def pid(self) -> int:
        return os.getpid()

    def do(self, job: Job, needed: Mapping[str, Files]) -> tuple[Outcome, Files]:
        """Do a job with the records that it needs; its outcome, and the files of its record."""
        store = self._worker.store
        for key, files in needed.items():
            store.place(key, files)
        try:
            outcome = self._worker.do(job)
            made = outcome["state"] == "made"
            return outcome, store.files(job["key"]) if made else {}
        finally:
            store.clear()


def _connected(address: str) -> Any:
    """The module ``ray``, connected to a cluster."""
    try:
        import ray
    except ImportError:
        raise InputError(
            "the package ray is not installed: pip install 'besiege[ray]', on every machine of "
            "the cluster"
        ) from None
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdigit():  # Ray itself tries for minutes, and then ends the process
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, OverflowError, RuntimeError) as problem:
        why = (str(problem).splitlines() or [""])[0]
        raise InputError(
            f"there is no Ray cluster at '{address}' ({why}): start one with ray start --head, "
            "and name its address"
        ) from None
    return ray


ENGINES.add("ray", RayCluster)

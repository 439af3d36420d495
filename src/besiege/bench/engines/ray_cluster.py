"""Engine ``ray``: workers of a Ray cluster, which need no disk in common with this machine.

A job travels with the records that its task needs, and the files of its record travel back: only
this process writes to the run folder, and only it has claims.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from besiege.bench.claims import Claims
from besiege.bench.engines import ENGINES, Job, Outcome
from besiege.bench.engines.local import EXITS
from besiege.bench.spec import Machine
from besiege.bench.store import RECORD, Store
from besiege.bench.task import Task
from besiege.core.errors import BesiegeError, InputError

Files = Mapping[str, bytes]
PLACING = 180.0
"""Seconds without any worker until the cluster counts as unable to place one."""


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
        self.slots: set[int] = set()
        self._claims: Claims | None = None
        self._told: list[tuple[int, Outcome]] = []
        self._running: dict[Any, tuple[int, Job]] = {}
        self._pending: dict[Any, int] = {}
        """The slots whose actors have not answered: the cluster may have no room for them."""
        self._failures: Counter[int] = Counter()
        """The actors of a slot that ended one after the other before they answered."""
        self._manned = time.monotonic()
        """When there was a slot last."""
        self._progress = self._ray.remote(num_cpus=0)(_Progress).remote()
        self._asked = self._progress.take.remote()
        self._actors: dict[int, Any] = {}
        for slot in range(workers or max(1, int(most))):
            self._start(slot)

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
            sent = self._actors[slot].do.remote(
                job, needed(task, self._store, job["trained"].values())
            )
            self._running[sent] = slot, job

    def completed(self, timeout: float) -> list[tuple[int, Outcome]]:
        found, self._told = self._told, []
        if sent := [*self._running, *self._pending]:
            self._ray.wait(sent, timeout=0.0 if found else timeout)
            ready, _ = self._ray.wait(sent, num_returns=len(sent), timeout=0.0)
            for one in ready:
                if one in self._pending:
                    self._answered(one)
                else:
                    found.append(self._received(one))
        self._must_have_slots()
        return self._during() + found

    def close(self) -> None:
        for actor in self._actors.values():
            with suppress(Exception):  # it may be dead
                self._ray.kill(actor)
        self._actors = {}
        if self._claims is not None:
            self._claims.__exit__(None, None, None)
            self._claims = None
        self._ray.shutdown()

    def _start(self, slot: int) -> None:
        """Start the actor of a slot, which takes jobs once it has answered."""
        kind = self._ray.remote(**self._needs)(_Remote)
        self._actors[slot] = kind.remote(asdict(self._how), self._progress)
        self._pending[self._actors[slot].pid.remote()] = slot
        self.slots.discard(slot)

    def _answered(self, sent: Any) -> None:
        slot = self._pending.pop(sent)
        try:
            self._ray.get(sent)
        except Exception as problem:  # such as a node without besiege
            self._failures[slot] += 1
            if self._failures[slot] >= EXITS:
                raise BesiegeError(
                    f"workers cannot be started on the Ray cluster: {str(problem)[-2000:]}"
                ) from None
            self._start(slot)
        else:
            del self._failures[slot]
            self.slots.add(slot)

    def _must_have_slots(self) -> None:
        """Raise an error once no actor has had a place for too long."""
        now = time.monotonic()
        if self.slots:
            self._manned = now
        if now - self._manned <= PLACING:
            return
        cpus, gpus = self._needs["num_cpus"], self._needs["num_gpus"]
        each = f"{cpus} CPU" + ("s" if cpus > 1 else "") + " and a GPU" * gpus
        fix = "choose fewer threads, " if cpus > 1 else ""
        fix += "choose device='cpu', " if gpus else ""
        raise InputError(
            f"the Ray cluster had no place for a worker for {PLACING:.0f} seconds: a worker needs "
            f"{each} of one node, free of other work. See ray status; {fix}end other work on the "
            "cluster, or add a node with ray start --address ADDRESS"
        )

    def _during(self) -> list[tuple[int, Outcome]]:
        """What workers have reported of the jobs that they do now."""
        if not self._ray.wait([self._asked], timeout=0.0)[0]:
            return []
        told: list[Outcome] = []
        with suppress(Exception):  # its node may be gone: work goes on without progress
            told = self._ray.get(self._asked)
        self._asked = self._progress.take.remote()
        slots = {job["key"]: slot for slot, job in self._running.values()}
        return [(slots[one["key"]], one) for one in told if one["key"] in slots]

    def _received(self, sent: Any) -> tuple[int, Outcome]:
        from besiege.bench.working import note

        slot, job = self._running.pop(sent)
        assert self._claims is not None, "a job is submitted before it is received"
        try:
            outcome, files = self._ray.get(sent)
        except Exception as problem:  # the actor or its node died, or Ray lost what it sent
            self._start(slot)
            outcome, files = {"state": "died", "message": str(problem)}, {}
        if outcome["state"] == "made":
            self._store.place(job["key"], files)
            record = self._store.read(job["key"])
            assert record is not None, "it was placed"
            note(self._store, record)
        self._claims.release(job["key"])
        return slot, outcome


def needed(task: Task, store: Store, trained: Iterable[str] = ()) -> dict[str, Files]:
    """The files of the records that a task reads, by key, and those of models that were trained.

    A verdict comes with the record of the images that it judged; an attack reads its sums only.
    """
    found: dict[str, Files] = {key: store.files(key) for key in trained}
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

    def __init__(self, how: Mapping[str, Any], progress: Any) -> None:
        from besiege.bench.worker import Worker

        self._progress = progress

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
            outcome = self._worker.do(job, self._progress.tell.remote)
            made = outcome["state"] == "made"
            return outcome, store.files(job["key"]) if made else {}
        finally:
            store.clear()


class _Progress:
    """Keeps what workers have reported last, until the engine takes it."""

    def __init__(self) -> None:
        self._told: dict[str, Outcome] = {}

    def tell(self, outcome: Outcome) -> None:
        self._told[outcome["key"]] = outcome

    def take(self) -> list[Outcome]:
        told, self._told = self._told, {}
        return list(told.values())


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

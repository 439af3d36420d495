"""The coordinator: gives the tasks of all plans to the workers of an engine, each task once."""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from besiege.bench.claims import Claims
from besiege.bench.engines import Engine, Job, Outcome
from besiege.bench.frontier import Frontier
from besiege.bench.spec import Request, Trained
from besiege.bench.store import Record, Store
from besiege.bench.task import Task
from besiege.bench.working import note, versions
from besiege.core import errors

DEATHS = 3
"""Workers that may die of a task before it counts as failed."""
PAUSE = 0.5
"""Seconds until a task that another process has claimed is offered again."""
_PATIENCE = 1.0


@dataclass(frozen=True)
class Planned:
    """The open tasks of a plan, and the request or the training that a worker reads."""

    frontier: Frontier[Any]
    request: Request | Trained
    trained: Mapping[str, str] = field(default_factory=dict)
    """The keys of trainings, by the names of their models in the request."""


class Coordinator:
    """Gives ready tasks to the workers of an engine until nothing is left.

    A slot that has done a task of a plan gets another one of the same plan, as long as there is
    one: its worker has the model. Otherwise it gets one of the plan with the fewest workers.

    Parameters
    ----------
    store : Store
        The store of the records.
    plans : sequence of Planned
        The plans, the most urgent first.
    engine : Engine
        What carries the tasks to workers.
    """

    def __init__(self, store: Store, plans: Sequence[Planned], engine: Engine) -> None:
        self._store = store
        self._plans = plans
        self._engine = engine
        self._running: dict[int, tuple[Planned, Task]] = {}
        self._last: dict[int, Planned] = {}
        self._deaths: Counter[str] = Counter()
        self._held: dict[str, float] = {}
        """When tasks that other processes have claimed are offered again."""

    def run(self) -> None:
        """Do all tasks; errors of workers that are no failures of an attack are raised."""
        while any(not one.frontier.over for one in self._plans):
            self._fill()
            waits = PAUSE if self._held else _PATIENCE
            if not self._running:
                time.sleep(min(waits, PAUSE))
            for slot, outcome in self._engine.completed(waits if self._running else 0.0):
                self._receive(slot, outcome)

    def _fill(self) -> None:
        for slot in sorted(self._engine.slots):
            if slot not in self._running and (found := self._choose(slot)) is not None:
                self._running[slot] = found
                self._last[slot] = found[0]
                self._engine.submit(slot, _job(*found))

    def _choose(self, slot: int) -> tuple[Planned, Task] | None:
        """The next task for a slot; None where nothing can be done now."""
        busy = Counter(id(planned) for planned, _ in self._running.values())
        last = self._last.get(slot)
        order = sorted(self._plans, key=lambda one: (one is not last, busy[id(one)]))
        for again in (False, True):  # tasks that workers died of come last
            for planned in order:
                for task in self._free(planned):
                    if bool(self._deaths[task.key]) == again:
                        return planned, task
        return None

    def _free(self, planned: Planned) -> Iterator[Task]:
        running, now = {task.key for _, task in self._running.values()}, time.monotonic()
        for task in planned.frontier.ready():
            if task.key not in running and self._held.get(task.key, now) <= now:
                yield task

    def _receive(self, slot: int, outcome: Outcome) -> None:
        planned, task = self._running[slot]
        if outcome["state"] == "during":
            planned.frontier.during(
                [task.key], outcome["share"], outcome["claimed"], outcome["seconds"]
            )
            return
        del self._running[slot]
        self._held.pop(task.key, None)
        if outcome["state"] == "refused":
            raise _error(outcome)
        if outcome["state"] == "held":
            self._held[task.key] = time.monotonic() + PAUSE
        elif outcome["state"] == "died":
            planned.frontier.stopped(task.key)
            self._deaths[task.key] += 1
            if self._deaths[task.key] >= DEATHS:
                self._give_up(task, outcome["message"])
        else:
            self._settle(task.key, made=outcome["state"] == "made")

    def _settle(self, key: str, made: bool) -> None:
        for planned in self._plans:
            planned.frontier.settle(key, made)

    def _give_up(self, task: Task, how: str) -> None:
        """Record a task that several workers died of as failed."""
        message = f"{DEATHS} workers died while they did it, the last with {how}"
        record = Record(
            task.identity,
            provenance={
                "started": datetime.now(UTC).isoformat(timespec="seconds"),
                "seconds": 0.0,
                "versions": versions(),
            },
            failure={"type": "WorkerDied", "message": message[:2000]},
        )
        with Claims(self._store) as claims:
            if claims.take(task.key):
                self._store.commit(record)
                note(self._store, record)
        self._settle(task.key, made=True)


def _job(planned: Planned, task: Task) -> Job:
    spec = planned.frontier.attack_of(task.key)
    about: dict[str, Any] = {
        "kind": task.kind,
        "identity": task.identity,
        "needs": task.needs,
        "shard": task.shard,
    }
    return {
        "key": task.key,
        "plan": planned.frontier.plan.name,
        "model": planned.frontier.plan.model.name,
        "trained": planned.trained,
        "request": planned.request.model_dump(mode="json"),
        "task": about,
        "again": task.key in planned.frontier.again,
        "attack": None
        if spec is None
        else {"access": spec.access, "keep": spec.keep, "passes": spec.passes},
    }


def _error(outcome: Outcome) -> Exception:
    """The error of a worker, as it would have been raised here."""
    kind = getattr(errors, outcome["type"] or "", None)
    if kind is None:
        return RuntimeError(f"a worker raised an error:\n{outcome['message']}")
    problem: Exception = kind(outcome["message"])
    number = outcome["errno"]
    if number is not None:
        known = number in errno.errorcode
        problem.__cause__ = OSError(number, os.strerror(number) if known else "")
    return problem

"""The runner: does the tasks of a plan that have no record yet, and stores their records."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np
import torch

import besiege
from besiege.bench.context import Context
from besiege.bench.kinds import KINDS
from besiege.bench.plan import Plan
from besiege.bench.store import DamagedError, Record
from besiege.bench.task import Task, TaskResult
from besiege.bench.work_estimate import Event, Watch, WorkEstimate
from besiege.core import record as core_record
from besiege.core.errors import EndpointError, InputError, StoreError, ThreatError, VictimError
from besiege.models.black_box import accounted


class Runner:
    """Does the tasks of one plan in this process, in the order of the plan.

    Parameters
    ----------
    plan : Plan
        The plan.
    context : Context
        The live objects of its tasks, and the store.
    watch : callable, optional
        Called with an `Event` whenever the work has advanced.
    """

    def __init__(self, plan: Plan, context: Context, watch: Watch | None = None) -> None:
        self.plan = plan
        self.context = context
        self.store = context.store
        self._watch = watch
        self._estimate = WorkEstimate(plan)
        self._place = 0
        """Number of finished parts of the plan."""
        self._made: set[str] = set()
        """Keys of the tasks that were done in this run."""
        self._unwatched: Exception | None = None
        """The error that the watcher raised, which is no failure of an attack."""
        context.watching = self._watching

    def run(self, decided: Callable[[Plan], None]) -> Plan:
        """Do all missing tasks; `decided` is called with the plan whenever tasks were added."""
        while True:
            plan = self.plan.decided(self.store)
            if plan is not self.plan:
                self.plan = plan
                self._estimate.extend(plan)
                decided(plan)
            self._pass()
            if self.plan.decided(self.store) is self.plan:
                return self.plan

    def _pass(self) -> None:
        places = [
            (number, part, tasks)
            for number, stage in enumerate(self._estimate.stages)
            for part, tasks in enumerate(stage.parts)
        ]
        where = {task.key: place for place, (_, _, tasks) in enumerate(places) for task in tasks}
        for task in self.plan.ready(self.store):
            self._advance(places, where[task.key])
            self._estimate.begin(places[where[task.key]][0])
            self._do(task)
        self._advance(places, len(places))

    def _advance(self, places: list[tuple[int, int, tuple[Task, ...]]], end: int) -> None:
        """Report the finished parts: all before `end`."""
        for number, part, tasks in places[self._place : end]:
            self._estimate.begin(number)
            records = [one for task in tasks if (one := self.store.sound(task.key)) is not None]
            kept = self._made.isdisjoint(task.key for task in tasks)
            self._tell(self._estimate.finished(part, records, kept))
        self._place = max(self._place, end)
        if self._place >= len(self._estimate.stages[0].parts):
            self._must_answer()

    def _must_answer(self) -> None:
        """Refuse a model that failed on all clean images."""
        tasks = [task for part in self._estimate.stages[0].parts for task in part]
        if any(self.store.sound(task.key) for task in tasks):
            return
        failed = self.store.read(tasks[0].key)
        message = failed.failure["message"] if failed and failed.failure else "there is no record"
        raise VictimError(f"the model failed on all clean images: {message}")

    def _do(self, task: Task) -> None:
        """Do a task and store its record in place of a damaged or outdated one."""
        self._made.add(task.key)
        self._make_room(task)
        begin, started = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
        failure, made = None, TaskResult({}, {})
        victim = task.identity["victim"]
        try:
            with accounted(self.context.victim(victim), task.kind):
                made = KINDS.get(task.kind).run(task, self.context)
        except (StoreError, InputError, ThreatError, EndpointError):
            raise  # not a failure of the attack
        except (Exception, SystemExit) as problem:
            if problem is self._unwatched:
                raise
            # A failed attack is recorded, and the other attacks still run.
            failure = {"type": type(problem).__name__, "message": str(problem)[:2000]}
        self.context.must_be_unchanged(task)
        provenance = {
            "started": started,
            "seconds": time.perf_counter() - begin,
            "device": str(self.context.victim(victim).device),
            "threads": torch.get_num_threads(),
            "batch": self.context.how.batch,
            "searched": self.context.searched(victim),
            "versions": versions(),
            **made.provenance,
        }
        record = Record(task.identity, made.totals, tuple(made.findings), provenance, failure)
        self.store.commit(record, None if failure else made.rows, made.files)

    def _make_room(self, task: Task) -> None:
        try:
            record = self.store.read(task.key, whole=True)
        except DamagedError:
            self.store.set_aside(task.key)
            return
        if record is None or record.failure is not None:
            return
        if self.store.released(task.key):  # its images are made again
            self.store.discard(task.key)
        else:  # computed from records that are gone
            self.store.set_aside(task.key)

    def _tell(self, event: Event) -> None:
        if self._watch is not None:
            self._watch(event)

    def _watching(self, task: Task) -> Callable[[core_record.Record], None] | None:
        """A callback for progress inside a task: by broken samples or by queries."""
        watch, stage = self._watch, self._estimate.stages[self._estimate.number]
        spec = stage.attack
        if watch is None or spec is None:
            return None
        begin, last = time.monotonic(), 0.0

        def tell(record: core_record.Record) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last < 0.2:  # counting has a cost, so it is done a few times a second
                return
            last = now
            # Black-box attacks may send many images in one request.
            done = record.asked if spec.access == "gradient" else record.meter.queries
            share = min(1.0, float(done.max()) / spec.passes)
            claimed = int(record.success.sum())
            if spec.keep == "first":  # broken samples are done
                share = max(share, claimed / len(record.success))
            try:
                watch(self._estimate.during(task.shard, share, claimed, now - begin))
            except Exception as problem:
                self._unwatched = problem
                raise

        return tell


def versions() -> dict[str, str]:
    """The versions of the software in use."""
    return {
        "besiege": besiege.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__.partition("+")[0],
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
    }

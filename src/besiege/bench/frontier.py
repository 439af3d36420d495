"""The tasks of a plan that are left: which can be done now, and how far the plan has come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Generic, TypeVar

from besiege.bench.plan import Staged, is_done, needed_again
from besiege.bench.spec import AttackSpec
from besiege.bench.store import DamagedError, Record, Store
from besiege.bench.task import Task
from besiege.bench.work_estimate import Event, Part, Watch, WorkEstimate
from besiege.core.errors import VictimError

P = TypeVar("P", bound=Staged)


class Frontier(Generic[P]):
    """The open tasks of a plan, as results arrive in any order and from any process.

    Parameters
    ----------
    plan : Plan or TrainingPlan
        The plan.
    store : Store
        The store of the records.
    watch : callable, optional
        Called with an `Event` whenever a part of the plan is over.
    decided : callable, optional
        Called with the plan whenever tasks were added to it.
    start : float
        The share of the tasks, 0 to 1, that come last: processes that share the work begin at
        different places.
    ended : callable, optional
        Called with the plan when nothing is left to do.
    """

    def __init__(
        self,
        plan: P,
        store: Store,
        watch: Watch | None = None,
        decided: Callable[[P], None] | None = None,
        start: float = 0.0,
        ended: Callable[[P], None] | None = None,
    ) -> None:
        self.plan = plan
        self.store = store
        self._watch = watch
        self._decided = decided
        self._start = start
        self._ended = ended
        self._since = datetime.now(UTC).isoformat(timespec="seconds")
        self._open: dict[str, Task] = {}
        self._done: set[str] = set()
        self._failed: set[str] = set()
        """Tasks that failed, or that need one that failed."""
        self._made: set[str] = set()
        """Tasks that were done in this run."""
        self.problem: VictimError | None = None
        """Why the plan was given up."""
        self.again: set[str] = set()
        """Tasks whose images were let go and are needed again."""
        self._parts: dict[str, list[Part]]
        self._left: dict[Part, int]
        """Tasks of every part that are open."""
        self._list()

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        return not self._open

    def __contains__(self, key: str) -> bool:
        return key in self._open

    def ready(self) -> Iterator[Task]:
        """The open tasks whose needs exist, in their order.

        Each is looked up in its turn. A loop that settles every task at once does the whole plan; a
        list of them is one wave, which workers can do in parallel. Failed tasks of earlier runs are
        ready again.
        """
        for task in tuple(self._open.values()):
            if task.key in self._open and all(map(self._exists, task.needs)):
                yield task

    def beside(self, task: Task) -> Iterator[tuple[Task, int]]:
        """The ready tasks of the same kind and stage, itself first, and their samples' numbers."""
        number, first = self._part_of(task.key)
        stage = self._estimate.stages[number]
        for part in (*range(first, len(stage.parts)), *range(first)):
            for other in stage.parts[part]:
                open_ = other.kind == task.kind and other.key in self._open
                if open_ and all(map(self._exists, other.needs)):
                    yield other, stage.counts[part]

    def passes(self, task: Task) -> float:
        """The estimated work of a task, in forward passes."""
        return self._estimate.passes(task, self._part_of(task.key))

    def attack_of(self, key: str) -> AttackSpec | None:
        """The attack that a task belongs to, if there is one."""
        return self._estimate.stages[self._part_of(key)[0]].attack

    def _part_of(self, key: str) -> Part:
        return self._parts[key][-1]

    def settle(self, key: str, made: bool) -> None:
        """Take notice that a task is over; `made` says that it was done in this run."""
        task = self._open.pop(key, None)
        if task is None:
            return
        if made:
            self._made.add(key)
        if is_done(task, self.store):
            self._done.add(key)
        else:
            self._fail(task)
        self._report(task)
        self._decide()

    def refresh(self) -> None:
        """Take notice of what other processes have finished since."""
        for key, task in tuple(self._open.items()):
            if key in self._open and (self._is_over(task) or self._failed_since(key)):
                self.settle(key, made=False)

    def during(self, keys: Sequence[str], share: float, claimed: int, seconds: float) -> None:
        """Tell that a share of tasks is done, with the successes that their attack claims.

        They are of one stage, and done together.
        """
        if self._watch is not None:
            parts = [self._part_of(key) for key in keys]
            self._watch(self._estimate.during(parts, share, claimed, seconds))

    def stopped(self, key: str) -> None:
        """Take notice that a task is not under way any more, although it is not over."""
        self._estimate.stopped(self._part_of(key))

    def _exists(self, key: str) -> bool:
        if key in self._done:
            return True
        return key not in self._parts and self.store.sound(key) is not None

    def _is_over(self, task: Task) -> bool:
        """Whether a task has a record, with its images where these are needed again.

        It is not over while one that it needs is to be done: its record may not follow from that.
        """
        gone = task.key in self.again and self.store.released(task.key)
        return not gone and all(map(self._exists, task.needs)) and is_done(task, self.store)

    def _list(self) -> None:
        """List the tasks of the plan; those that are done are settled at once.

        A plan with more tasks has other stages: what is over already is counted again, silently.
        """
        self._estimate = WorkEstimate(self.plan)
        self._parts, self._left = {}, {}
        known, new = self._done | self._failed, dict[str, Task]()
        for number, stage in enumerate(self._estimate.stages):
            for part, tasks in enumerate(stage.parts):
                at = number, part
                for task in tasks:
                    self._parts.setdefault(task.key, []).append(at)
                fresh = {task.key: task for task in tasks if task.key not in known}
                self._left[at] = len(fresh)
                new |= fresh
                if not fresh:
                    self._finished(at)
        self.again = needed_again(list(new.values()), self.store)
        first, order = int(len(new) * self._start), list(new)
        self._open = {key: new[key] for key in (*order[first:], *order[:first])}
        for key, task in new.items():
            if self._is_over(task):
                self.settle(key, made=False)
        for key, task in new.items():  # of what failed before they were listed
            if key in self._open and not self._failed.isdisjoint(task.needs):
                del self._open[key]
                self._fail(task)
                self._report(task)
        if not self._open:
            self._decide()

    def _fail(self, task: Task) -> None:
        """Note a failure; what needs it cannot be done either."""
        self._failed.add(task.key)
        for key, other in tuple(self._open.items()):
            if key in self._open and task.key in other.needs:
                del self._open[key]
                self._fail(other)
                self._report(other)

    def _failed_since(self, key: str) -> bool:
        """Whether another process has failed at a task since this one began."""
        failed = _failure(self.store, key)
        return failed is not None and failed.provenance.get("started", "") >= self._since

    def _report(self, task: Task) -> None:
        """Tell which parts of the plan are over now."""
        for at in self._parts[task.key]:
            self._left[at] -= 1
            if not self._left[at]:
                event = self._finished(at)
                if self._watch is not None:
                    self._watch(event)
                if at[0] == 0:
                    self._must_answer()

    def _finished(self, at: Part) -> Event:
        tasks = self._estimate.stages[at[0]].parts[at[1]]
        records = [one for task in tasks if (one := self.store.sound(task.key)) is not None]
        kept = self._made.isdisjoint(task.key for task in tasks)
        broken: Iterable[int] = ()
        if self._estimate.repeats(at) and len(records) == len(tasks):
            rows = self.store.rows([tasks[-1].key])
            won = rows["correct"].astype(bool) & rows["success"].astype(bool)
            broken = rows["sample"][won].tolist()
        return self._estimate.finished(at, records, kept, broken)

    def _must_answer(self) -> None:
        """Give up a plan whose first stage failed as a whole; other plans go on."""
        parts = self._estimate.stages[0].parts
        tasks = [task for part in parts for task in part]
        if any(self._left[0, part] for part in range(len(parts))):
            return
        if not self._done.isdisjoint(task.key for task in tasks):
            return
        failed = _failure(self.store, tasks[0].key)
        message = failed.failure["message"] if failed and failed.failure else "there is no record"
        self.problem = VictimError(f"{self.plan.given_up}: {message}")
        self._failed |= set(self._open)
        self._open.clear()

    def _decide(self) -> None:
        """Add the tasks that follow from the verdicts, once all others are over."""
        if self._open:
            return
        plan = self.plan.decided(self.store)
        if plan is not self.plan:
            self.plan = plan
            if self._decided is not None:
                self._decided(plan)
            self._list()
        elif self._ended is not None:
            self._ended(plan)


def _failure(store: Store, key: str) -> Record | None:
    """The record of a failure; None without one."""
    try:
        record = store.read(key)
    except DamagedError:
        return None
    return record if record is not None and record.failure is not None else None

"""The runner: does the tasks of plans that have no record yet, in this process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol

from besiege.bench.claims import Claims
from besiege.bench.context import Context, Told
from besiege.bench.frontier import Frontier, P
from besiege.bench.kinds import KINDS
from besiege.bench.task import Task
from besiege.bench.work_estimate import Watch
from besiege.bench.working import Ended, attempt, reporting
from besiege.core import record as core_record
from besiege.core.errors import VictimError

LOST = 60.0
"""Seconds of work, by the estimate, that a killed run may lose: tasks done together take less."""
PAUSE = 0.05, 2.0
"""Seconds to wait for other processes at first, and at most."""


class Runner(Generic[P]):
    """Does the tasks of one plan in this process, in the order of the plan.

    Parameters
    ----------
    plan : Plan or TrainingPlan
        The plan.
    context : Context
        The live objects of its tasks, and the store.
    claims : Claims
        The claims of this process.
    watch : callable, optional
        Called with an `Event` whenever the work has advanced.
    decided : callable, optional
        Called with the plan whenever tasks were added.
    start : float
        The share of the tasks that come last.
    ended : callable, optional
        Called with the plan when nothing is left to do.
    """

    def __init__(
        self,
        plan: P,
        context: Context,
        claims: Claims,
        watch: Watch | None = None,
        decided: Callable[[P], None] | None = None,
        start: float = 0.0,
        ended: Callable[[P], None] | None = None,
    ) -> None:
        self._plan = plan
        self._context = context
        self._claims = claims
        self._watch = watch
        self._options = watch, decided, start, ended
        self._frontier: Frontier[P] | None = None
        self._pace = math.inf
        """The fewest seconds of an estimated pass so far: the first passes on a GPU are slow."""

    @property
    def plan(self) -> P:
        """The plan with the tasks that were added."""
        return self._plan if self._frontier is None else self._frontier.plan

    @property
    def over(self) -> bool:
        """Whether nothing is left to do, for other processes neither."""
        return self._frontier is not None and self._frontier.over

    @property
    def problem(self) -> VictimError | None:
        """Why the plan was given up; None otherwise."""
        return None if self._frontier is None else self._frontier.problem

    def turn(self) -> bool:
        """Do all tasks that no other process does; False if there were none."""
        if self._frontier is None:  # now, because earlier plans may have done some of its tasks
            self._frontier = Frontier(self._plan, self._context.store, *self._options)
        else:
            self._frontier.refresh()
        self._context.telling, self._context.watching = self._telling, self._watching
        victim = self._context.victim(self._plan.model.digest)
        # A metered model is queried by one process at a time: answers are paid for once.
        if victim.metered and not self._frontier.over and not self._claims.take(self._metered):
            return False
        try:
            return self._round(self._frontier)
        finally:
            self._claims.release(self._metered)

    @property
    def _metered(self) -> str:
        return f"metered-{self._plan.model.digest}"

    def _round(self, frontier: Frontier[P]) -> bool:
        advanced, again = False, True
        while again:
            again = False
            for task in frontier.ready():
                for key, ended in self._done(frontier, self._group(frontier, task)).items():
                    if ended != "held":
                        frontier.settle(key, made=ended == "made")
                        advanced = again = True
        return advanced

    def _group(self, frontier: Frontier[P], task: Task) -> list[Task]:
        """A task, with those of its stage that are done together with it."""
        most = KINDS.get(task.kind).most_together(task, self._context)
        if not most:
            return [task]
        group, samples, seconds = list[Task](), 0, 0.0
        for other, count in frontier.beside(task):
            samples += count
            passes = frontier.passes(other)
            seconds += passes * self._pace if passes else 0.0
            if group and (samples > most or seconds > LOST):
                break
            group.append(other)
        return group

    def _done(self, frontier: Frontier[P], tasks: Sequence[Task]) -> dict[str, Ended]:
        begin, passes = time.perf_counter(), sum(map(frontier.passes, tasks))
        ended = attempt(tasks, self._context, self._claims, frontier.again)
        if passes and set(ended.values()) == {"made"}:
            self._pace = min(self._pace, (time.perf_counter() - begin) / passes)
        return ended

    def _telling(self, tasks: Sequence[Task]) -> Told | None:
        frontier = self._frontier
        assert frontier is not None, "tasks are done in a turn"
        if self._watch is None:
            return None

        def tell(share: float, claimed: int, seconds: float) -> None:
            try:
                frontier.during([task.key for task in tasks], share, claimed, seconds)
            except Exception as problem:
                self._context.unwatched = problem
                raise

        return tell

    def _watching(self, tasks: Sequence[Task]) -> Callable[[core_record.Record], None] | None:
        assert self._frontier is not None, "tasks are done in a turn"
        spec, tell = self._frontier.attack_of(tasks[0].key), self._telling(tasks)
        if spec is None or tell is None:
            return None
        return reporting(spec.access, spec.keep, spec.passes, tell)


class Turns(Protocol):
    """Work that is shared with other processes, and done in turns."""

    @property
    def over(self) -> bool: ...

    def turn(self) -> bool: ...


def run_all(runners: Sequence[Turns]) -> None:
    """Do all work, such as the tasks of plans, and wait for what other processes do of it."""
    pause, most = PAUSE
    while waiting := [runner for runner in runners if not runner.over]:
        advanced = [runner.turn() for runner in waiting]
        if any(advanced):
            pause = PAUSE[0]
        elif not all(runner.over for runner in waiting):
            time.sleep(pause)
            pause = min(2 * pause, most)

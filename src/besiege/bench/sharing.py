"""The work of one call: plans are written down and done, here or by the workers of an engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from besiege.attacks.attack import Attack
from besiege.bench import origin
from besiege.bench.claims import Claims
from besiege.bench.context import Context, context_of
from besiege.bench.coordinating import Coordinator, Planned
from besiege.bench.engines import ENGINES, Engine
from besiege.bench.file_names import keep_file_names
from besiege.bench.frontier import Frontier
from besiege.bench.plan import Plan
from besiege.bench.preparing import Prepared
from besiege.bench.recorded import must_answer_as_recorded
from besiege.bench.releasing import Releaser
from besiege.bench.request import Objects
from besiege.bench.run import Run, read_run, update_run
from besiege.bench.runner import Runner, run_all
from besiege.bench.spec import Machine, Request
from besiege.bench.store import Store
from besiege.bench.trainings import clear
from besiege.bench.work_estimate import Watch
from besiege.bench.working import versions
from besiege.core.errors import InputError
from besiege.models.black_box import black_box


@dataclass(frozen=True)
class Work:
    """The plans of one call, and how they are done.

    Attributes
    ----------
    store : Store
        The run folder.
    prepared : Prepared
        The requests and their plans.
    watchers : sequence of callable
        For each a function that is called with an event whenever its work has advanced, or None.
    how : Machine
        Where and how it is computed.
    part : (int, int), optional
        The number of this process among those that share the work, from 1, and their number.
    """

    store: Store
    prepared: Prepared
    watchers: Sequence[Watch | None]
    how: Machine
    part: tuple[int, int] | None = None

    def here(self) -> list[Plan]:
        """Do all tasks that have no records in this process; the plans with their curves."""
        contexts = self._contexts()
        with self.store.writing():
            plans, releaser = self._begun(contexts)
            with Claims(self.store) as claims:
                runners = [
                    Runner(
                        *(plan, context, claims, watch), self._keep, self._start, releaser.finished
                    )
                    for plan, context, watch in zip(plans, contexts, self.watchers, strict=True)
                ]
                run_all(self._in_turn(runners))
        _must_be_done(runners)
        return [runner.plan for runner in runners]

    def by(self, crew: Engine, requests: Sequence[Request]) -> list[Plan]:
        """The same by the workers of an engine, which read the requests."""
        for one in self.prepared.resolved:
            if black_box(one.victim) is not None:
                raise InputError(
                    f"the model '{one.victim.name}' is only queried, and one process counts and "
                    "keeps its answers: leave the workers out"
                )
        contexts = self._contexts()
        with self.store.writing():
            try:
                plans, releaser = self._begun(contexts)
                planned = [
                    Planned(
                        Frontier(
                            *(plan, self.store, watch), self._keep, self._start, releaser.finished
                        ),
                        request.model_copy(update={"shard": plan.request.shard}),
                        {
                            one.name: one.plan.name
                            for one in self.prepared.trainings
                            if one.name in (request.model, *request.substitute, *request.across)
                        },
                    )
                    for plan, request, watch in zip(plans, requests, self.watchers, strict=True)
                ]
                Coordinator(self.store, self._in_turn(planned), crew).run()
            finally:
                crew.close()  # before what workers have left is removed
        _must_be_done([one.frontier for one in planned])
        return [one.frontier.plan for one in planned]

    @property
    def _start(self) -> float:
        return 0.0 if self.part is None else (self.part[0] - 1) / self.part[1]

    def _in_turn(self, some: list[Any]) -> list[Any]:
        """The plans in the order of this process."""
        first = int(len(some) * self._start)
        return [*some[first:], *some[:first]]

    def train(self, crew: Engine | None) -> dict[str, str]:
        """Train the models that are not trained yet, here or by workers.

        Returns why models were given up, by their names.
        """
        trainings, benchmark = self._in_turn([*self.prepared.trainings]), self.prepared.benchmark
        assert benchmark is not None, "only models of a benchmark are trained"
        watchers = self._in_turn([*self.watchers])
        with self.store.writing():
            update_run(
                self.store,
                lambda run: (run or _new()).training(benchmark, [one.plan for one in trainings]),
            )
            frontiers: list[Any]
            if crew is None:
                with Claims(self.store) as claims:
                    frontiers = [
                        Runner(one.plan, one.context(self.store, self.how), claims, watch)
                        for one, watch in zip(trainings, watchers, strict=True)
                    ]
                    run_all(frontiers)
            else:
                frontiers = [
                    Frontier(one.plan, self.store, watch)
                    for one, watch in zip(trainings, watchers, strict=True)
                ]
                pairs = zip(frontiers, trainings, strict=True)
                planned = [Planned(frontier, one.plan.given) for frontier, one in pairs]
                Coordinator(self.store, planned, crew).run()
            clear(self.store, trainings)
        return {
            one.plan.model.name: str(one.problem) for one in frontiers if one.problem is not None
        }

    def _contexts(self) -> list[Context]:
        return [
            context_of(self.store, one, plan, self.how)
            for one, plan in zip(self.prepared.resolved, self.prepared.plans, strict=True)
        ]

    def _begun(self, contexts: Sequence[Context]) -> tuple[list[Plan], Releaser]:
        """The plans with their dates, written into ``run.json``, and what lets their images go."""
        prepared = self.prepared
        for plan, context in zip(prepared.plans, contexts, strict=True):
            must_answer_as_recorded(self.store, plan, context)
        known = read_run(self.store) or _new()
        plans = [_dated(plan, known) for plan in prepared.plans]

        def add(run: Run | None) -> Run:
            run = (run or known).model_copy(update={"versions": versions()})
            if prepared.benchmark is not None:
                return run.declaring(prepared.benchmark, prepared.entries, prepared.unfit, plans)
            for plan in plans:
                earlier = run.plan(plan.name)
                if earlier is not None and not earlier.changed:
                    # What followed from its verdicts stays, or a reader would miss these tasks.
                    kept: dict[str, Any] = {}
                    kept |= {"guarded": earlier.guarded} if plan.guards == earlier.guards else {}
                    kept |= {"curve": earlier.curve} if plan.no_curve is None else {}
                    plan = plan.model_copy(update=kept)
                run = run.with_plan(plan)
            return run

        run = update_run(self.store, add)
        for one, plan in zip(prepared.resolved, plans, strict=True):
            if (files := one.data.files) is not None:
                ids = one.data.ids.cpu().numpy()
                keep_file_names(self.store, plan.data.digest, ids, files)
        return plans, Releaser(self.store, run)

    def _keep(self, plan: Plan) -> None:
        """Write a plan to which tasks were added."""
        update_run(self.store, lambda run: (run or _new()).with_plan(plan))


def _must_be_done(plans: Sequence[Runner[Plan] | Frontier[Plan]]) -> None:
    """Raise why a plan was given up, now that all others are done."""
    for plan in plans:
        if plan.problem is not None:
            raise plan.problem


def _new() -> Run:
    return Run(created=origin.now(), versions=versions())


def _dated(plan: Plan, run: Run) -> Plan:
    """The plan with its date and commit: those of now, or as written if it is the current one.

    Images that were added to it are judged like those of its attacks.
    """
    for old in run.current:
        if old.name == plan.name and not old.changed:
            dates = {"made": old.made, "commit": old.commit}
            return plan.replaying(old.replays).model_copy(update=dates)
    return plan.model_copy(update={"made": origin.now(), "commit": origin.commit()})


Chosen = tuple[str, Mapping[str, Any]]
"""The name of an engine, and its options."""


def chosen_engine(workers: int | None, ray: str | None, devices: str | None) -> Chosen | None:
    """The engine that options ask for; None for this process."""
    if devices is not None:
        if devices != "all":
            raise InputError(f"devices is '{devices}': write 'all', for a worker on every GPU")
        if workers is not None or ray is not None:
            raise InputError("devices='all' decides the number of workers: give one of the two")
        workers = torch.cuda.device_count()
        if not workers:
            raise InputError("devices='all' means a worker on every GPU, but torch sees none here")
    if ray is not None:
        return "ray", {"address": ray, "workers": workers}
    return None if workers is None else ("local", {"workers": workers})


@contextmanager
def started(engine: Chosen | None, store: Store, how: Machine) -> Iterator[Engine | None]:
    """Start an engine, by its name and options, and end it; None without one."""
    if engine is None:
        yield None
        return
    name, options = engine
    crew = ENGINES.get(name)(store, how, **options)
    try:
        yield crew
    finally:
        crew.close()


def check_part(part: tuple[int, int] | None) -> None:
    """Refuse a part that there is not."""
    if part is not None and not 1 <= part[0] <= part[1]:
        known = f"1/{part[1]} to {part[1]}/{part[1]}" if part[1] > 0 else "for example 1/4"
        raise InputError(f"the part is {part[0]}/{part[1]}: write {known}")


def as_texts(request: Request, objects: Objects | None) -> Request:
    """A request that another process can read; an error where something is only in memory."""
    given = objects or Objects()
    others = [one for one in given.substitute if not isinstance(one, str)]
    if given.model is not None or given.data is not None or others:
        what = "the model" if given.model is not None else "the data"
        what = "a substitute" if given.model is None and given.data is None else what
        raise InputError(
            f"workers read models and data by their texts, but {what} of '{request.model}' "
            f"against {request.threat} exists in this process only: name a file, or leave the "
            "workers out"
        )
    changes: dict[str, Any] = {}
    if given.attacks is not None:
        some = given.attacks
        changes["attacks"] = tuple(map(str, [some] if isinstance(some, (str, Attack)) else some))
    if given.suite is not None:
        some = given.suite
        changes["suite"] = ", ".join(map(str, [some] if isinstance(some, (str, Attack)) else some))
    return request.model_copy(update=changes)

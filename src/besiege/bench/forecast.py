"""Forecasts a benchmark before it runs: tasks, time and space, from a few timed passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

import torch

from besiege.bench.kinds import KINDS
from besiege.bench.plan import Plan
from besiege.bench.preparing import Prepared
from besiege.bench.request import ResolvedRequest
from besiege.bench.task import Stage, Task
from besiege.bench.trainings import Training
from besiege.core.dice import Dice
from besiege.core.oracle import Oracle, full_precision
from besiege.core.threat import Access
from besiege.core.victim import Victim
from besiege.training.fitting import build
from besiege.training.loop import train

SAMPLES = 8
"""Samples of a timed pass."""
_EACH = 0.02
"""Seconds to read and write the records of a task."""
_FORWARDS = 3.0
"""Forward passes that an estimate counts for a forward and a backward pass."""


@dataclass(frozen=True)
class Pace:
    """Seconds of a pass for one sample; None for a model that is not queried without need."""

    forward: float | None
    both: float | None
    """A forward and a backward pass; None without gradients."""


@dataclass(frozen=True)
class CellForecast:
    """The forecast of a cell: tasks that no cell before it has, and their time.

    ``seconds`` is None where the pace of a model is unknown.
    """

    cell: str
    threat: str
    models: int
    evaluations: int
    tasks: int
    seconds: float | None
    image_bytes: int


@dataclass(frozen=True)
class TrainingForecast:
    """The forecast of a training; ``seconds`` is None where no step can be timed before it."""

    model: str
    recipe: str
    epochs: int
    seconds: float | None


@dataclass(frozen=True)
class Forecast:
    """The forecast of a benchmark: at most so much, since broken samples cost less.

    Attributes
    ----------
    cells : tuple of CellForecast
        Its cells.
    paces : dict
        The pace of every model, by its name.
    tasks, seconds, image_bytes
        The sums, trainings included; images are those stored while it runs.
    trainings : tuple of TrainingForecast
        The models that are trained first.
    """

    cells: tuple[CellForecast, ...]
    paces: dict[str, Pace]
    tasks: int
    seconds: float | None
    image_bytes: int
    trainings: tuple[TrainingForecast, ...] = ()

    def plain(self) -> dict[str, Any]:
        """All of it as plain values."""
        return asdict(self)


def forecast(prepared: Prepared, clock: Callable[[], float] = time.perf_counter) -> Forecast:
    """The forecast of a prepared benchmark; each model answers a few samples several times."""
    plans = {plan.name: plan for plan in prepared.plans}
    paces: dict[str, Pace] = {}
    for one, plan in zip(prepared.resolved, prepared.plans, strict=True):
        if plan.model.digest not in paces:
            paces[plan.model.digest] = pace(one, clock)
    seen: set[str] = set()
    cells = []
    for cell in dict.fromkeys(entry.cell for entry in prepared.entries):
        mine = [entry for entry in prepared.entries if entry.cell == cell]
        new = list(_new([plans[entry.plan] for entry in mine], seen))
        times = [_seconds(plan, stage, task, paces) for plan, stage, task in new]
        known = [one for one in times if one is not None]
        cells.append(
            CellForecast(
                cell,
                plans[mine[0].plan].threat,
                len({entry.model for entry in mine}),
                len(mine),
                len(new),
                sum(known) if len(known) == len(times) else None,
                sum(_bytes(plan, stage, task) for plan, stage, task in new),
            )
        )
    trainings = tuple(_trained(one) for one in prepared.trainings)
    times = [*(cell.seconds for cell in cells), *(one.seconds for one in trainings)]
    known = [one for one in times if one is not None]
    return Forecast(
        tuple(cells),
        {entry.model: paces[plans[entry.plan].model.digest] for entry in prepared.entries},
        len(seen) + len(trainings),
        sum(known) if len(known) == len(times) else None,
        sum(cell.image_bytes for cell in cells),
        trainings,
    )


def _trained(training: Training) -> TrainingForecast:
    """The forecast of a training from its second step: the first one warms up."""
    recipe, data, given = training.recipe, training.data, training.plan.given
    seconds = None
    if not (recipe.objective.needs_teacher and recipe.objective.teacher is None):
        model, _ = build(given.arch, data, given.seed, recipe.layers)
        few = data.take(torch.arange(min(recipe.batch, len(data))))
        # Accuracies that epochs end with are not timed: they are a small part of most trainings.
        steps = replace(recipe, epochs=2, held_out=0, guard=0.0, early=None, whole=False)
        where = training.victim.device
        history = train(model, few, steps, seed=given.seed, device=where, compiled=False)
        each = history[-1].seconds / len(few)
        seconds = each * recipe.epochs * (len(data) - recipe.held_out)
    return TrainingForecast(training.name, str(recipe), recipe.epochs, seconds)


def pace(resolved: ResolvedRequest, clock: Callable[[], float] = time.perf_counter) -> Pace:
    """Seconds of a pass of the victim for one sample; metered victims are not queried."""
    victim = resolved.victim
    if victim.metered:
        return Pace(None, None)
    samples = resolved.first(SAMPLES).to(victim.device)
    dice = Dice.throw(0, samples.ids).of("probe") if victim.stochastic else None
    oracle = Oracle(victim)

    def backward() -> object:
        return oracle.gradient(samples.images, lambda logits, _: logits.amax(1), dice=dice)

    def forward() -> object:
        return oracle.logits(samples.images, dice)

    with victim.held(), full_precision(victim.device):
        each = _timed(forward, victim, clock) / len(samples)
        if victim.access is not Access.GRADIENT:
            return Pace(each, None)
        return Pace(each, _timed(backward, victim, clock) / len(samples))


def _timed(work: Callable[[], object], victim: Victim, clock: Callable[[], float]) -> float:
    """The shortest of three times: the others include what the machine did besides."""
    times = []
    for _ in range(4):  # the first one warms up
        begin = clock()
        work()
        if victim.device.type == "cuda":
            torch.cuda.synchronize(victim.device)
        times.append(clock() - begin)
    return min(times[1:])


def _new(plans: Sequence[Plan], seen: set[str]) -> Iterator[tuple[Plan, Stage, Task]]:
    """The tasks of plans that are not in `seen`, which they are added to."""
    for plan in plans:
        for stage in plan.stages():
            for task in (task for part in stage.parts for task in part):
                if task.key not in seen:
                    seen.add(task.key)
                    yield plan, stage, task


def _seconds(plan: Plan, stage: Stage, task: Task, paces: dict[str, Pace]) -> float | None:
    # A substitute that is no model of the benchmark is taken to be as fast as the victim.
    searched = paces.get(task.identity["victim"], paces[plan.model.digest])
    if searched.forward is None:
        return None
    count = stage.counts[task.shard if task.shard < len(stage.counts) else 0]
    passes = max(1.0, KINDS.get(task.kind).estimate(task, stage))
    gradients = stage.attack is not None and stage.attack.access == "gradient"
    if gradients and task.kind == "craft" and searched.both is not None:
        return _EACH + passes / _FORWARDS * count * searched.both
    return _EACH + passes * count * searched.forward


def _bytes(plan: Plan, stage: Stage, task: Task) -> int:
    """The most bytes of the images of a task: floats of crafted ones, bytes of clean ones."""
    if task.kind not in ("craft", "clean"):
        return 0
    count = stage.counts[task.shard]
    return count * prod(plan.data.shape) * (4 if task.kind == "craft" else 1)

"""Task kinds ``examine`` and ``again``: checks of the model, before and after the attacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from besiege.bench.kinds import KINDS, Kind, base_identity
from besiege.bench.task import Stage, Task, TaskResult
from besiege.metrics.examination import COLUMNS

if TYPE_CHECKING:
    from besiege.bench.context import Context
    from besiege.bench.plan import Plan
    from besiege.core.examination import Check

SAMPLES = 16
"""Samples that are examined."""
REVISION = 2
"""It is raised when the checks change, so that models are examined again."""


class Examine(Kind):
    """Checks of the model before any attack: its gradients and its answers."""

    name = "examine"
    order = 5
    columns: ClassVar[Mapping[str, type]] = dict.fromkeys(COLUMNS, object)

    def stages(self, plan: Plan) -> Iterable[Stage]:
        if plan.request.examined:
            yield _stage(plan, self.name, ())

    def estimate(self, task: Task, stage: Stage) -> float:
        return 40.0

    def run(self, task: Task, context: Context) -> TaskResult:
        from besiege.evaluation.examining import examine

        return _examined(examine, task, context, full=task.identity["how"] == "full")


class Again(Kind):
    """Checks of the model after the attacks: it must answer as it did before them."""

    name = "again"
    order = 60
    columns: ClassVar[Mapping[str, type]] = dict.fromkeys(COLUMNS, object)

    def stages(self, plan: Plan) -> Iterable[Stage]:
        if plan.request.examined:
            yield _stage(plan, self.name, judged_keys(plan))

    def estimate(self, task: Task, stage: Stage) -> float:
        return 20.0

    def run(self, task: Task, context: Context) -> TaskResult:
        from besiege.evaluation.examining import examine_again

        adversarial = context.adversarial(task.needs, SAMPLES)
        return _examined(examine_again, task, context, adversarial=adversarial)


def _examined(
    examination: Callable[..., list[Check]], task: Task, context: Context, **more: Any
) -> TaskResult:
    """The checks of an examination on the first samples of a task."""
    from besiege.core.threat import Threat

    about = task.identity
    checks = examination(
        context.victim(about["victim"]),
        context.first([about["shard"]], SAMPLES),
        Threat.parse(about["threat"]),
        fresh=context.fresh,
        seed=about["seed"],
        **more,
    )
    return result_of(checks)


def result_of(checks: Sequence[Check]) -> TaskResult:
    """Checks as rows."""
    columns = zip(*map(astuple, checks), strict=True) if checks else [()] * len(COLUMNS)
    rows = {name: np.array(column, object) for name, column in zip(COLUMNS, columns, strict=True)}
    return TaskResult(rows, {"rows": len(checks)})


def judged_keys(plan: Plan) -> tuple[str, ...]:
    """The keys of the verdicts on all attacks, guards and the curve apart."""
    attacks = (s for s in plan.stages_of("craft") if not (s.guard or s.curve))
    return tuple(tasks[-1].key for stage in attacks for tasks in stage.parts)


def _stage(plan: Plan, kind: str, needs: tuple[str, ...]) -> Stage:
    about: dict[str, Any] = {
        **base_identity(kind, plan.model.digest, plan.request.seed),
        "shard": plan.shards[0].digest,
        "threat": plan.threat,
        "how": plan.request.examine,
        # Models that reject images are examined differently since then: only their keys change.
        "revision": REVISION + plan.model.rejects,
        **({"after": list(needs)} if needs else {}),
    }
    return Stage(kind, ((Task(kind, about, needs),),), (min(SAMPLES, plan.shards[0].count),))


for kind in (Examine(), Again()):
    KINDS.add(kind.name, kind)

"""Task kind ``clever``: an estimate of the distance to the decision boundary, for every image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from besiege.bench.clever_text import read_clever
from besiege.bench.kinds import KINDS, Kind, base_identity
from besiege.bench.task import Stage, Task, TaskResult
from besiege.core.threat import Access, Threat
from besiege.metrics.clever import COLUMNS, MARKS, mark, scored

if TYPE_CHECKING:
    from besiege.bench.context import Context
    from besiege.bench.plan import Plan

REVISION = 1
"""It is raised when the estimate changes."""


class CleverScores(Kind):
    """CLEVER scores of every clean image: an estimate, never a bound."""

    name = "clever"
    order = 40
    columns: ClassVar[Mapping[str, type]] = COLUMNS

    def stages(self, plan: Plan) -> Iterable[Stage]:
        if plan.request.clever is None:
            return
        threat = Threat.parse(plan.threat)
        low, high = plan.model.box
        how = read_clever(plan.request.clever).of(str(threat.norm), high - low)
        base: dict[str, Any] = {
            **base_identity(self.name, plan.model.digest, plan.request.seed),
            # Neither the budget nor the access of the threat matters.
            "threat": str(replace(threat, eps=None, written=None, access=Access.GRADIENT)),
            "batches": how.batches,
            "samples": how.samples,
            "radius": how.radius,
            "revision": REVISION,
        }
        parts = tuple(
            (Task(self.name, {**base, "shard": shard.digest}, shard=number),)
            for number, shard in enumerate(plan.shards)
        )
        yield Stage(self.name, parts, tuple(shard.count for shard in plan.shards))

    def estimate(self, task: Task, stage: Stage) -> float:
        # A backward pass costs about as much as two forward passes.
        return 3.0 * float(task.identity["batches"]) * float(task.identity["samples"])

    def run(self, task: Task, context: Context) -> TaskResult:
        from besiege.bench.tables import array
        from besiege.evaluation.sampling import sample_gradients

        about = task.identity
        samples = context.samples(about["shard"])
        found = sample_gradients(
            context.victim(about["victim"]),
            samples,
            Threat.parse(about["threat"]),
            radius=about["radius"],
            batches=about["batches"],
            points=about["samples"],
            seed=about["seed"],
            batch=context.how.batch,
        )
        targets, margins, maxima = map(array, (found.targets, found.margins, found.maxima))
        rows = {
            "sample": array(samples.ids),
            "correct": array(found.correct),
            "gradients": array(found.gradients),
            **scored(targets, margins, maxima, about["radius"]),
            **{
                mark(n): scored(targets, margins, maxima[..., :n], about["radius"])["score"]
                for n in MARKS
                if n < about["batches"]
            },
        }
        for name in (one for one in rows if one.startswith("score")):
            # A misclassified image is at distance 0, like in every figure of distances.
            rows[name] = np.where(rows["correct"], rows[name], 0.0)
        totals = {
            "rows": len(samples),
            "forwards": found.forwards,
            "backwards": found.backwards,
        }
        return TaskResult(rows, totals)


KINDS.add(CleverScores.name, CleverScores())

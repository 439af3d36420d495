"""Task kind ``clean``: the victim's predictions on the clean images of a shard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from besiege.bench.kinds import KINDS, Kind, base_identity
from besiege.bench.task import Stage, Task, TaskResult

if TYPE_CHECKING:
    from besiege.bench.context import Context
    from besiege.bench.plan import Plan


class Clean(Kind):
    """Predictions and logits on clean images, and the images themselves."""

    name = "clean"
    order = 0
    columns: ClassVar[Mapping[str, type]] = {
        **dict.fromkeys(("sample", "label", "prediction"), np.int64),
        **dict.fromkeys(("confidence", "share"), np.float64),
        **dict.fromkeys(("p_label", "p_second", "entropy"), np.float64),
        "correct": np.bool_,
    }

    def stages(self, plan: Plan) -> Iterable[Stage]:
        base: dict[str, Any] = base_identity("clean", plan.model.digest, plan.request.seed)
        if plan.model.stochastic:
            base["draws"] = plan.model.draws
        parts = tuple(
            (Task("clean", {**base, "shard": shard.digest}, shard=number),)
            for number, shard in enumerate(plan.shards)
        )
        yield Stage("clean", parts, tuple(shard.count for shard in plan.shards))

    def estimate(self, task: Task, stage: Stage) -> float:
        return 1.0

    def run(self, task: Task, context: Context) -> TaskResult:
        from besiege.bench.model_spec import unread
        from besiege.bench.tables import (
            array,
            as_bytes,
            certainty_of,
            draws_of,
            packed_arrays,
            packed_logits,
            rejection_of,
        )
        from besiege.evaluation.judging import predict_clean
        from besiege.evaluation.preflight import preflight

        victim = context.victim(task.identity["victim"])
        samples = context.samples(task.identity["shard"])
        # Once per evaluation: a few more queries check that the victim is deterministic.
        first = [] if task.shard else unread(victim) + preflight(victim, samples)
        clean = predict_clean(victim, samples, seed=task.identity["seed"])
        rows = {
            "sample": array(samples.ids),
            "label": array(samples.labels),
            "prediction": array(clean.prediction),
            **certainty_of(clean.certainty),
            "share": array(clean.share),
            "correct": array(clean.correct),
            **draws_of(clean.draws, victim.stochastic),
            **rejection_of(clean.rejection, victim.rejects),
        }
        totals = {
            "rows": len(samples),
            "correct": int(clean.correct.sum()),
            "judged": clean.forwards,
        }
        return TaskResult(
            rows,
            totals,
            tuple(dict.fromkeys((*first, *clean.findings))),
            packed_arrays({"images": as_bytes(samples.images)}) | packed_logits(clean.logits),
        )


KINDS.add(Clean.name, Clean())

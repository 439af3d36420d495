"""A kind of task in one file outside the package: the margin of every clean image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np
import torch

from besiege.bench.context import Context
from besiege.bench.kinds import KINDS, Kind, base_identity
from besiege.bench.plan import Plan
from besiege.bench.tables import array
from besiege.bench.task import Stage, Task, TaskResult
from besiege.core.oracle import Oracle, full_precision


class Margins(Kind):
    """By how much the largest logit leads the second, for images that were classified."""

    name = "margins"
    columns: ClassVar[Mapping[str, type]] = {"sample": np.int64, "margin": np.float64}

    def stages(self, plan: Plan) -> Iterable[Stage]:
        clean = plan.stages_of("clean")[0]
        base = base_identity(self.name, plan.model.digest, plan.request.seed)
        parts = tuple(
            (Task(self.name, {**base, "clean": task.key}, (task.key,), task.shard),)
            for (task,) in clean.parts
        )
        yield Stage(self.name, parts, clean.counts)

    def estimate(self, task: Task, stage: Stage) -> float:
        return 1.0

    def run(self, task: Task, context: Context) -> TaskResult:
        clean = context.store.read(task.needs[0])
        assert clean is not None
        victim = context.victim(task.identity["victim"])
        samples = context.samples(clean.identity["shard"])
        with victim.held(), full_precision(victim.device), torch.no_grad():
            first, second = Oracle(victim).logits(samples.images).topk(2).values.unbind(1)
        rows = {"sample": array(samples.ids), "margin": array((first - second).double())}
        return TaskResult(rows, {"rows": len(samples)}, files={"note.txt": b"margins"})


KINDS.add(Margins.name, Margins())

"""Task kind ``train``: the weights of a model that a benchmark trains, and their card.

No evaluation has a stage of this kind: the digest of a model is part of the keys of all its tasks,
so that models are trained before evaluations are planned (`besiege.bench.trainings`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from besiege.bench.kinds import KINDS, Kind
from besiege.bench.task import Stage, Task, TaskResult
from besiege.bench.training_plan import CARD, WEIGHTS

if TYPE_CHECKING:
    from besiege.bench.context import Context


class Train(Kind):
    """Weights, their card, and the figures of the epoch that was kept."""

    name = "train"
    order = 0
    columns: ClassVar[Mapping[str, type]] = {
        "number": np.int64,
        **dict.fromkeys(("loss", "accuracy"), np.float64),
    }

    def estimate(self, task: Task, stage: Stage) -> float:
        return 1.0

    def run(self, task: Task, context: Context) -> TaskResult:
        import json

        from besiege.training.fitting import source_of

        training, begin = context.trainings[task.key], time.perf_counter()
        weights = _fitted(task, context)
        card = json.loads(weights.with_name(CARD).read_text())
        card |= {"name": training.plan.model.name, "source": source_of(card, Path(WEIGHTS))}
        kept = card["epoch"]
        return TaskResult(
            {name: np.array([kept[name]], kind) for name, kind in self.columns.items()},
            {"rows": 1},
            files={
                WEIGHTS: weights.read_bytes(),
                CARD: (json.dumps(card, indent=2) + "\n").encode(),
            },
            # Those of all epochs, also before an interruption, where these are more.
            provenance={"seconds": max(card["seconds"], time.perf_counter() - begin)},
        )


def _fitted(task: Task, context: Context) -> Path:
    """Train, resuming from the checkpoint of a process that was killed."""
    from shutil import rmtree

    from besiege.bench.context import ticking
    from besiege.bench.trainings import workplace
    from besiege.core.errors import DataError, InputError
    from besiege.training.fitting import fit

    training, folder = context.trainings[task.key], workplace(context.store, task.key)
    work = partial(
        fit,
        training.recipe,
        training.data,
        training.plan.given.arch,
        folder / WEIGHTS,
        seed=training.plan.given.seed,
        device=context.how.device,
        tick=ticking(context.telling([task])),
    )
    left = folder.exists()
    try:
        return work()
    except (InputError, DataError) as problem:
        if not left or isinstance(problem.__cause__, OSError):
            raise
        # What was left is damaged, or names a teacher by the path that a moved folder had before.
        rmtree(folder)
        return work()


KINDS.add(Train.name, Train())

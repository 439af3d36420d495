"""Task kind ``replay``: images of the samples of a shard that were made elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from besiege.bench.kinds import KINDS, Kind, base_identity
from besiege.bench.kinds.craft import Craft
from besiege.bench.kinds.judge import judge_task
from besiege.bench.spec import Replay
from besiege.bench.task import Stage, Task, TaskResult
from besiege.core.errors import AttackError, InputError
from besiege.metrics.rows import Column

if TYPE_CHECKING:
    from besiege.bench.context import Context
    from besiege.bench.plan import Plan


class Replayed(Kind):
    """A record like that of an attack, which claims no success and cost nothing that is known."""

    name = "replay"
    order = 20
    columns = Craft.columns

    def stages(self, plan: Plan) -> Iterable[Stage]:
        """Images and verdicts, for the shards of which there are images."""
        for replay in plan.replays:
            parts = []
            for number, digest in enumerate(replay.images):
                if digest:
                    task = image_task(plan, replay, number)
                    parts.append((task, judge_task(plan, task)))
            counts = tuple(count for count in replay.counts if count)
            yield Stage(replay.attack.title, tuple(parts), counts, replay.attack, given=True)

    def estimate(self, task: Task, stage: Stage) -> float:
        return 1.0

    def run(self, task: Task, context: Context) -> TaskResult:
        from besiege.bench.tables import packed_arrays

        found = context.given.get(task.identity["images"])
        if found is None:
            raise AttackError("its images are not in this folder any more: import them again")
        ids, images, targets = found
        if "through" in task.identity:
            images = _passed(task, context, ids, images)
        count = len(ids)
        nothing: dict[str, Any] = {
            name: np.zeros(count, kind) for name, kind in self.columns.items()
        }
        unknown = {
            name: np.full(count, np.nan)
            for name, kind in self.columns.items()
            if kind is np.float64
        }
        never = dict.fromkeys(("first_step", "first_query", "target"), np.full(count, -1))
        aimed = {} if targets is None else {"target": targets}
        rows = {**nothing, **unknown, **never, **aimed, "sample": ids}
        arrays = {"images": images, "rows": np.arange(count)}
        return TaskResult(rows, {"rows": count}, files=packed_arrays(arrays))


def image_task(plan: Plan, replay: Replay, number: int) -> Task:
    """The task that stores the images of a shard; its key follows from their content."""
    about = {
        **base_identity("replay", plan.model.digest, plan.request.seed),
        "images": replay.images[number],
        "shard": plan.shards[number].digest,
        "threat": replay.attack.threat,
        **({"through": replay.through, "layer": replay.layer} if replay.through else {}),
    }
    return Task("replay", about, shard=number)


def _passed(task: Task, context: Context, ids: Column, images: Column) -> Column:
    """The images after a layer, block by block; a stochastic one draws by seed and sample."""
    import torch

    from besiege.core.dice import Dice
    from besiege.defenses.layers import LANGUAGE

    layer = LANGUAGE.read(task.identity["through"])
    victim = context.victim(task.identity["victim"])
    made, size = [], max(1, _BLOCK // max(images[0].size, 1))
    for begin in range(0, len(ids), size):
        x = torch.from_numpy(images[begin : begin + size]).to(victim.device)
        some = torch.from_numpy(ids[begin : begin + size].astype(np.int64)).to(victim.device)
        with torch.no_grad():
            dice = Dice.throw(task.identity["seed"], some).of("through")
            made.append(layer(x, victim.box, dice).float().clamp(*victim.box).cpu())
        if made[-1].shape != x.shape:
            raise InputError(
                f"'{layer}' makes images of {list(made[-1].shape[1:])} of {list(x.shape[1:])}, and "
                "perturbations of another size have no distance: choose a layer that keeps the size"
            )
    return np.ascontiguousarray(torch.cat(made).numpy())


_BLOCK = 1 << 22
"""Pixel values that pass a layer at once."""

KINDS.add(Replayed.name, Replayed())

"""Task kind ``across``: other models judge the images that an attack crafted on one of them.

The images are crafted once, by the ordinary task ``craft``. A record has the answers of all other
models to the images of a shard, so that a matrix of models is judged with few records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from besiege.bench.kinds import KINDS, Kind, base_identity
from besiege.bench.task import Stage, Task, TaskResult
from besiege.core.threat import Threat
from besiege.metrics.across import COLUMNS, stage_of

if TYPE_CHECKING:
    from besiege.bench.context import Context
    from besiege.bench.plan import Plan
    from besiege.bench.store import Record

REVISION = 1
"""It is raised when the verdicts change."""


class Across(Kind):
    """Answers of other models to crafted images; ``model`` is the place of the model."""

    name = "across"
    order = 20
    columns: ClassVar[Mapping[str, type]] = COLUMNS

    def stages(self, plan: Plan) -> Iterable[Stage]:
        """A stage for every attack, after its images."""
        if not plan.across:
            return
        base: dict[str, Any] = {
            **base_identity(self.name, plan.model.digest, plan.request.seed),
            "across": [one.digest for one in plan.across],
            "revision": REVISION,
        }
        crafted = [
            one for one in plan.stages_of("craft") if not (one.guard or one.curve or one.given)
        ]
        for stage in crafted:
            keys = [tasks[0].key for tasks in stage.parts]
            parts = tuple(
                (Task(self.name, {**base, "crafted": key}, (key,), number),)
                for number, key in enumerate(keys)
            )
            yield Stage(stage_of(stage.name), parts, stage.counts)

    def is_of(self, record: Record, needed: Sequence[Record]) -> bool:
        return record.provenance.get("judged") == dict(needed[0].files)

    def estimate(self, task: Task, stage: Stage) -> float:
        # The crafted and the clean image.
        return 2.0 * len(task.identity["across"])

    def run(self, task: Task, context: Context) -> TaskResult:
        from besiege.bench.tables import array, stored
        from besiege.evaluation.elsewhere import judge_elsewhere

        (key,) = task.needs
        crafted = context.store.read(key)
        assert crafted is not None, "a task runs when the records it needs exist"
        about, rows = crafted.identity, context.store.rows([key])
        samples = context.samples(about["shard"], rows["sample"])
        threat = Threat.parse(about["threat"])
        device = context.victim(about["victim"]).device
        images = stored(rows, samples, context.store.images(key), threat, device, True)
        ids, labels = array(samples.ids), array(samples.labels)
        parts = []
        for place, digest in enumerate(task.identity["across"]):
            found = judge_elsewhere(context.victim(digest), images, samples, threat)
            nothing = np.zeros(len(ids), np.int64)
            parts.append(
                {
                    "sample": ids,
                    "model": nothing + place,
                    "label": labels,
                    "prediction": array(found.prediction),
                    # 0 without a target, or for a model that returns labels only.
                    "rank": nothing if found.rank is None else array(found.rank),
                    "correct": array(found.correct),
                    "within": array(found.within),
                }
            )
        joined = {name: np.concatenate([part[name] for part in parts]) for name in self.columns}
        totals = {"rows": len(ids) * len(parts), "judged": 2 * len(ids) * len(parts)}
        return TaskResult(joined, totals, provenance={"judged": dict(crafted.files)})


KINDS.add(Across.name, Across())

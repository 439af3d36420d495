"""Task kind ``judge``: verdicts on the images that an attack crafted from a shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from besiege.bench.kinds import KINDS, Kind, base_identity
from besiege.bench.task import Task, TaskResult
from besiege.core.threat import Norm, Threat

if TYPE_CHECKING:
    from besiege.bench.context import Context
    from besiege.bench.plan import Plan
    from besiege.bench.store import Record
    from besiege.core.samples import Samples
    from besiege.core.victim import Victim
    from besiege.evaluation.verdicts import Verdicts


class Judge(Kind):
    """Verdicts on exactly the stored images."""

    name = "judge"
    columns: ClassVar[Mapping[str, type]] = {
        **dict.fromkeys(("sample", "label", "prediction"), np.int64),
        **dict.fromkeys(("correct", "success", "valid", "within", "reached"), np.bool_),
        **dict.fromkeys(("share", "confidence"), np.float64),
        **dict.fromkeys(("p_label", "p_second", "entropy"), np.float64),
        **dict.fromkeys(map(str, Norm), np.float64),
    }

    def is_of(self, record: Record, needed: Sequence[Record]) -> bool:
        return record.provenance.get("judged") == dict(needed[0].files)

    def most_together(self, task: Task, context: Context) -> int:
        # Each shard has its own forward passes: on a GPU the last bits of logits depend on the
        # batch, and verdicts must not depend on which shards are judged together.
        return context.most_together(task.identity["victim"])

    def run(self, task: Task, context: Context) -> TaskResult:
        from besiege.bench.columns import empty
        from besiege.bench.tables import stored
        from besiege.evaluation.judging import judge

        (key,) = task.needs
        crafted = context.store.read(key)
        assert crafted is not None, "a task runs when the records it needs exist"
        provenance = {"judged": dict(crafted.files)}
        about, rows = crafted.identity, context.store.rows([key])
        samples = context.samples(about["shard"], rows["sample"])
        if not len(samples):
            totals = {"rows": 0, "correct": 0, "broken": 0}
            return TaskResult(empty(self.columns), totals, provenance=provenance)
        victim = context.victim(task.identity["victim"])
        # Images crafted on another model claim no success on this one.
        transferred = about["victim"] != task.identity["victim"]
        threat = Threat.parse(about["threat"])
        images = stored(
            rows, samples, context.store.images(key), threat, victim.device, transferred
        )
        verdicts = judge(victim, images, samples, threat, seed=task.identity["seed"])
        return _result(samples, verdicts, victim, provenance)


def judge_task(plan: Plan, crafted: Task) -> Task:
    """The task that judges the images of a craft task."""
    identity: dict[str, Any] = base_identity("judge", plan.model.digest, plan.request.seed)
    if plan.model.stochastic:
        identity["draws"] = plan.model.draws
    return Task("judge", {**identity, "crafted": crafted.key}, (crafted.key,), crafted.shard)


def _result(
    samples: Samples, verdicts: Verdicts, victim: Victim, provenance: Mapping[str, Any]
) -> TaskResult:
    from besiege.bench.tables import array, certainty_of, draws_of, rejection_of

    rows = {
        "sample": array(samples.ids),
        "label": array(samples.labels),
        "correct": array(verdicts.correct),
        "success": array(verdicts.success),
        "valid": array(verdicts.valid),
        "within": array(verdicts.within),
        "reached": array(verdicts.reached),
        "share": array(verdicts.share),
        "prediction": array(verdicts.prediction),
        **certainty_of(verdicts.certainty),
        **{str(norm): array(verdicts.distance[norm]) for norm in Norm},
        **draws_of(verdicts.draws, victim.stochastic),
        **rejection_of(verdicts.rejection, victim.rejects),
        # A float: it is NaN beside records of earlier releases, which have none.
        **({} if verdicts.rank is None else {"rank": array(verdicts.rank.double())}),
    }
    totals = {
        "rows": len(samples),
        "correct": int(verdicts.correct.sum()),
        "broken": int((verdicts.correct & verdicts.success).sum()),
        "judged": verdicts.forwards,
    }
    return TaskResult(rows, totals, verdicts.findings, provenance=provenance)


KINDS.add(Judge.name, Judge())

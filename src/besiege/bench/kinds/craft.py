"""Task kind ``craft``: an attack's images of the samples of a shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from besiege.bench.kinds import KINDS, Kind, base_identity
from besiege.bench.kinds.certify import spared, sparing
from besiege.bench.kinds.judge import judge_task
from besiege.bench.spec import AttackSpec, Shard
from besiege.bench.task import Stage, Task, TaskResult
from besiege.metrics.evidence import SPARED
from besiege.metrics.rows import Column

if TYPE_CHECKING:
    from besiege.attacks.attack import Attack
    from besiege.bench.context import Context
    from besiege.bench.plan import Plan
    from besiege.bench.store import Record
    from besiege.core.samples import Samples
    from besiege.evaluation.crafting import Crafted


class Craft(Kind):
    """Adversarial images with the attack's own claims and its costs."""

    name = "craft"
    order = 10
    columns: ClassVar[Mapping[str, type]] = {
        **dict.fromkeys(("sample", "first_step", "first_query"), np.int64),
        **dict.fromkeys(("forwards", "backwards", "queries", "target"), np.int64),
        **dict.fromkeys(("claimed", "vanished", "no_start"), np.bool_),
        "aside": np.int64,
        **dict.fromkeys(("loss_first", "loss_late", "loss_best", "blank"), np.float64),
    }

    def stages(self, plan: Plan) -> Iterable[Stage]:
        """Craft and judge of every attack, shard by shard, and the search for the curve.

        In a suite an attack needs the verdicts on the attacks before it on the same shard. They
        decide on which samples it runs, and are therefore part of its identity.
        """
        before: list[tuple[str, ...]] = [() for _ in plan.shards]
        left, proofs = before, sparing(plan)
        for spec in plan.attacks:
            # Images that are crafted on another model serve every victim.
            safe = proofs if spec.source is None else None
            stage = _stage(plan, spec, plan.shards, before, proofs=safe)
            yield stage
            judged = [tasks[-1].key for tasks in stage.parts]
            if plan.chained:
                before = [(*keys, key) for keys, key in zip(before, judged, strict=True)]
            else:
                left = [(*keys, key) for keys, key in zip(left, judged, strict=True)]
        yield from _guards(plan, before if plan.chained else left)
        if plan.curve is not None:
            shards = plan.curve.shards
            yield _stage(plan, plan.curve.attack, shards, [()] * len(shards), curve=True)

    def is_of(self, record: Record, needed: Sequence[Record]) -> bool:
        # Records of earlier releases do not say which verdicts they follow.
        after = record.provenance.get("after")
        return after is None or after == [dict(one.files) for one in needed]

    def estimate(self, task: Task, stage: Stage) -> float:
        assert stage.attack is not None
        # A backward pass costs about as much as two forward passes.
        return stage.attack.passes * (3.0 if stage.attack.access == "gradient" else 1.0)

    def most_together(self, task: Task, context: Context) -> int:
        about = task.identity
        if context.attack(about["text"], about["attack"]).mixes_rows:
            return 0
        return context.most_together(about["victim"])

    def run(self, task: Task, context: Context) -> TaskResult:
        (result,) = self.run_together((task,), context)
        return result

    def run_together(self, tasks: Sequence[Task], context: Context) -> list[TaskResult]:
        """Craft the samples of all tasks at once: no sample's result depends on the others."""
        made = self._crafted(tasks, context)
        return [
            replace(one, provenance=_followed(task, context))
            for task, one in zip(tasks, made, strict=True)
        ]

    def _crafted(self, tasks: Sequence[Task], context: Context) -> list[TaskResult]:
        from besiege.bench.columns import empty
        from besiege.core.samples import Samples
        from besiege.core.threat import Threat
        from besiege.evaluation.crafting import craft

        about = tasks[0].identity
        attack = context.attack(about["text"], about["attack"])
        parted = [
            _without_proved(_attacked(task, context, attack), task, context) for task in tasks
        ]
        attacked = [samples for samples, _ in parted]
        some = [samples for samples in attacked if len(samples)]
        nothing = TaskResult(empty(self.columns), {"rows": 0})
        if not some:
            return [_with_spared(nothing, ids) for _, ids in parted]
        threat, counts = Threat.parse(about["threat"]), list(map(len, some))
        crafted = craft(
            context.victim(about["victim"]),
            attack,
            Samples.joined(some),
            threat,
            seed=about["seed"],
            keep=about["keep"],
            leave=about["leave"],
            queries=about["queries"],
            twin=context.twin(about["victim"]),
            batch=context.how.batch,
            watch=context.watching(tasks),
            knowledge=context.knowledge(about),
            parts=counts,
        )
        parts = iter(crafted.split(counts))
        return [
            _with_spared(
                _result(samples, next(parts), about["leave"], threat.eps is None)
                if len(samples)
                else nothing,
                ids,
            )
            for samples, ids in parted
        ]


def _followed(task: Task, context: Context) -> dict[str, Any]:
    """The verdicts and proofs that decided on the samples of a task, by digests of their files."""
    needed = [context.store.read(key) for key in task.needs]
    return {"after": [dict(one.files) for one in needed if one is not None]} if needed else {}


def _guards(plan: Plan, after: Sequence[tuple[str, ...]]) -> Iterator[Stage]:
    """The guards, each on what those before it left; on all samples where a few were not safe."""
    for guard in plan.guards:
        limits = guard.model_dump(exclude={"attack"})
        for limited in (True, False) if plan.guarded == "all" else (True,):
            parts = []
            for number, (shard, keys) in enumerate(zip(plan.shards, after, strict=True)):
                about = _identity(plan, guard.attack, shard, keys)
                if limited:
                    about["guard"] = {**limits, "place": number}
                task = Task("craft", about, keys, number)
                parts.append((task, judge_task(plan, task)))
            most = guard.most if limited else max(shard.count for shard in plan.shards)
            counts = tuple(min(most, shard.count) for shard in plan.shards)
            # Another name: the same attack may also be listed.
            where = "" if guard.attack.source is None else " on another model"
            name = f"{guard.attack.spelled['name']}{where} (guard)"
            yield Stage(name, tuple(parts), counts, guard.attack, guard=True)
            after = [(*keys, tasks[-1].key) for keys, tasks in zip(after, parts, strict=True)]


def _attacked(task: Task, context: Context, attack: Attack) -> Samples:
    """The samples that a task attacks."""
    samples = context.standing(task)
    if "guard" in task.identity and len(samples):
        return _affordable(task, context, attack, samples)
    return samples


def _without_proved(
    samples: Samples, task: Task, context: Context
) -> tuple[Samples, Column | None]:
    """The samples that are attacked, and the ids of those that proofs spare the attack.

    None for an evaluation without proofs before the attacks.
    """
    import torch

    from besiege.bench.tables import array

    if "proofs" not in task.identity:
        return samples, None
    ids = array(samples.ids)
    safe = spared(ids, context.store.rows([task.identity["proofs"]]))
    rows = torch.from_numpy((~safe).nonzero()[0]).to(samples.ids.device)
    return samples.at(rows), ids[safe]


def _with_spared(result: TaskResult, ids: Column | None) -> TaskResult:
    """A result with rows of samples that were not attacked, because they are proved.

    Such a row is a failure that cost nothing, and its image is the clean one, which the judge sees
    like any other.
    """
    if ids is None:
        return result
    count = len(ids)
    fill: dict[str, Any] = {"sample": ids, "first_step": -1, "first_query": -1, "target": -1}
    rows = {}
    for name, column in result.rows.items():
        usual = np.nan if np.issubdtype(column.dtype, np.floating) else 0
        rows[name] = np.concatenate(
            [column, np.broadcast_to(fill.get(name, usual), count).astype(column.dtype)]
        )
    rows[SPARED] = np.arange(len(rows["sample"])) >= len(rows["sample"]) - count
    totals = {**result.totals, "rows": len(rows["sample"]), "spared": count}
    return replace(result, rows=rows, totals=totals)


def _affordable(task: Task, context: Context, attack: Attack, samples: Samples) -> Samples:
    """The first samples for which a share of the passes of the attacks before pays."""
    import torch

    from besiege.core.threat import Access

    limit = task.identity["guard"]
    spent = 0
    for key in task.needs:
        judged = context.store.read(key)
        crafted = None if judged is None else context.store.read(judged.identity["crafted"])
        if crafted is not None and "guard" not in crafted.identity:
            totals = crafted.totals
            spent += int(totals.get("forwards", 0)) + int(totals.get("backwards", 0))
    classes = context.victim(task.identity["victim"]).classes or 10
    each = attack.passes(tuple(samples.images.shape[1:]), classes)
    each *= 2 if attack.access is Access.GRADIENT else 1
    # The fewer samples are left, the less a guard could take from the robust accuracy. A fraction
    # of a sample is made whole in the first shard, so that there is one at least.
    least = limit["least"] * len(samples) / len(context.samples(task.identity["shard"]))
    fewest = ceil(least * (limit["place"] + 1)) - ceil(least * limit["place"])
    count = max(fewest, int(limit["share"] * spent / each))
    count = min(count, limit["most"], len(samples))
    return samples.at(torch.arange(count, device=samples.ids.device))


def _stage(
    plan: Plan,
    spec: AttackSpec,
    shards: Sequence[Shard],
    after: Sequence[tuple[str, ...]],
    curve: bool = False,
    proofs: Stage | None = None,
) -> Stage:
    parts = []
    for number, (shard, keys) in enumerate(zip(shards, after, strict=True)):
        about, needs = _identity(plan, spec, shard, keys), keys
        if proofs is not None:
            about["proofs"] = proofs.parts[number][0].key
            needs = (*keys, about["proofs"])
        task = Task("craft", about, needs, number)
        parts.append((task, judge_task(plan, task)))
    counts = tuple(shard.count for shard in shards)
    return Stage(spec.title, tuple(parts), counts, spec, curve)


def _identity(plan: Plan, spec: AttackSpec, shard: Shard, after: tuple[str, ...]) -> dict[str, Any]:
    # Images crafted on a substitute are the same for every victim.
    searched = plan.model.digest if spec.source is None else spec.source
    besides = {"advice": spec.advice, "starts": spec.starts}
    return {
        **base_identity("craft", searched, plan.request.seed),
        **{name: digest for name, digest in besides.items() if digest is not None},
        "attack": spec.spelled,
        "text": spec.text,
        "threat": spec.threat,
        "keep": spec.keep,
        "leave": spec.leave,
        "queries": spec.queries,
        "shard": shard.digest,
        "after": list(after),
    }


def _result(samples: Samples, crafted: Crafted, leave: str, searches: bool) -> TaskResult:
    import torch

    from besiege.bench.tables import array, packed_arrays

    n = len(samples)
    # Failures are clean images, which are not stored again.
    kept = crafted.success if leave == "success" else torch.ones_like(crafted.success)
    unknown, none = torch.full((n, 3), torch.nan), torch.zeros(n, dtype=torch.int64)
    ascent = unknown if crafted.ascent is None else crafted.ascent
    blank = unknown[:, 0] if crafted.zero_share is None else crafted.zero_share
    rows = {
        "sample": array(samples.ids),
        "claimed": array(crafted.success),
        "first_step": array(crafted.first_step),
        "first_query": array(crafted.first_query),
        "forwards": array(crafted.forwards),
        "backwards": array(crafted.backwards),
        "queries": array(crafted.queries),
        "target": array(none - 1 if crafted.targets is None else crafted.targets),
        "vanished": array(crafted.vanished),
        "blank": array(blank.double()),
        "loss_first": array(ascent[:, 0].double()),
        "loss_late": array(ascent[:, 1].double()),
        "loss_best": array(ascent[:, 2].double()),
        "no_start": array(none.bool() if crafted.no_start is None else crafted.no_start),
        "aside": array(
            none if crafted.substitute_passes is None else crafted.substitute_passes.long()
        ),
        **(_best(crafted) if searches else {}),
    }
    where = kept.nonzero()[:, 0]
    totals = {
        "rows": n,
        "claimed": int(crafted.success.sum()),
        "padding": crafted.padding,
        "forwards": int(crafted.forwards.sum()),
        "backwards": int(crafted.backwards.sum()),
        "queries": int(crafted.queries.sum()),
    }
    images = {"images": array(crafted.images[where]), "rows": array(where)}
    return TaskResult(rows, totals, crafted.findings, packed_arrays(images))


def _best(crafted: Crafted) -> dict[str, Any]:
    """Columns of the smallest distance claimed within numbers of passes, and in all."""
    from besiege.bench.tables import array
    from besiege.core.record import COSTS
    from besiege.metrics.distances import BEST, IN_ALL

    if crafted.descent is None:
        return {}
    most = int((crafted.queries + crafted.backwards).max())
    marks = [cost for place, cost in enumerate(COSTS) if place == 0 or COSTS[place - 1] < most]
    noted = {f"{BEST}{cost}": array(crafted.descent[:, n]) for n, cost in enumerate(marks)}
    return {**noted, IN_ALL: array(crafted.descent[:, -1])}


KINDS.add(Craft.name, Craft())

"""Task kind ``active``: whether the attacks find adversarial examples that are known to exist."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

from besiege.bench.kinds import KINDS, Kind, base_identity
from besiege.bench.kinds.examine import result_of
from besiege.bench.task import Stage, Task, TaskResult
from besiege.metrics.examination import COLUMNS
from besiege.metrics.intervals import clopper_pearson

if TYPE_CHECKING:
    from besiege.bench.context import Context
    from besiege.bench.plan import Plan

MOST = 50
"""Samples that are given a known adversarial example."""
FIRST, LAST, SHARE = 8, 24, 50
"""Samples that are tested first: one in fifty, within these limits. Attacks that find the examples
of all of these pass, which attacks that find three in four rarely do; others are tested on all."""
REVISION = 2
"""It is raised when the test changes."""


class Active(Kind):
    """The active test of the evaluation's own attacks."""

    name = "active"
    order = 70
    columns: ClassVar[Mapping[str, type]] = dict.fromkeys(COLUMNS, object)

    def stages(self, plan: Plan) -> Iterable[Stage]:
        """One task: the attacks one after the other, each on what those before it left."""
        mine = [spec for spec in plan.attacks if spec.source is None and spec.access == "gradient"]
        wanted = plan.request.active_test
        if not (wanted or (plan.request.examined and mine)):
            return
        held = list(accumulate(shard.count for shard in plan.shards))
        count = min(wanted or MOST, held[-1] if wanted else held[0])
        shards = plan.shards[: bisect_left(held, count) + 1]
        about: dict[str, Any] = {
            **base_identity("active", plan.model.digest, plan.request.seed),
            "shards": [shard.digest for shard in shards],
            "threat": plan.threat,
            "count": count,
            "first": 0 if wanted else min(max(FIRST, plan.data.count // SHARE), LAST),
            "attacks": [{"text": spec.text, "attack": spec.spelled} for spec in mine],
            "revision": REVISION,
        }
        yield Stage("active", ((Task("active", about),),), (count,))

    def estimate(self, task: Task, stage: Stage) -> float:
        return 100.0

    def run(self, task: Task, context: Context) -> TaskResult:
        from besiege.core.threat import Threat
        from besiege.evaluation.active import active_test

        about = task.identity
        found = active_test(
            context.victim(about["victim"]),
            [context.attack(one["text"], one["attack"]) for one in about["attacks"]],
            context.first(about["shards"], about["count"]),
            Threat.parse(about["threat"]),
            seed=about["seed"],
            most=about["count"],
            first=about["first"],
        )
        check = found.check
        if check.number:
            low, high = clopper_pearson(found.found, found.tested)
            sure = f"({100 * low:.0f} to {100 * high:.0f} %)"
            check = replace(check, number=f"{check.number} {sure}")
        made = result_of([check])
        counts = {"forwards": found.forwards, "backwards": found.backwards}
        return TaskResult(made.rows, {**made.totals, **counts})


KINDS.add(Active.name, Active())

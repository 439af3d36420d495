"""Task kind ``certify``: proofs that no image within the budget is misclassified."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from besiege.bench.certify_text import SMOOTHING, read_certify
from besiege.bench.kinds import KINDS, Kind, base_identity
from besiege.bench.task import Stage, Task, TaskResult
from besiege.core.threat import Access, Threat

if TYPE_CHECKING:
    from besiege.bench.context import Context
    from besiege.bench.plan import Plan

REVISION = 1
"""It is raised when proofs change."""
LATE = ("complete", "exact")
"""Methods that run on what the attacks left; others cost little, and check the attacks."""
WORK = {"ibp": 10.0, "crown-ibp": 30.0, "alpha": 5000.0}
"""Estimated forward passes for an image; 500 for others, 1,000 a second where time is limited."""


class Certify(Kind):
    """Certificates of every shard."""

    name = "certify"
    order = 60
    columns: ClassVar[Mapping[str, type]] = {
        "sample": np.int64,
        "outcome": object,
        "method": object,
        **dict.fromkeys(("margin", "radius", "below", "above"), np.float64),
        "regions": np.int64,
    }

    def stages(self, plan: Plan) -> Iterable[Stage]:
        """One task for each shard, after its clean images or after its attacks."""
        request = plan.request
        if request.certify is None:
            return
        method, poll = read_certify(request.certify)
        late = method in LATE
        (clean,) = plan.stages_of("clean")
        attacks = [
            stage
            for stage in (plan.stages_of("craft") if late else ())
            if not (stage.guard or stage.curve)
        ]
        base: dict[str, Any] = {
            **base_identity(self.name, plan.model.digest, request.seed),
            "threat": plan.threat,
            "method": method,
            "revision": REVISION,
        }
        if late:
            base["seconds"] = request.certify_seconds
        if poll is not None:
            # Neither the budget nor the access matters: a radius is one for all budgets.
            threat = Threat.parse(plan.threat)
            threat = replace(threat, eps=None, written=None, access=Access.GRADIENT)
            base |= {"threat": str(threat), "votes": asdict(poll)}
        parts = []
        for number, shard in enumerate(plan.shards):
            needs = (clean.parts[number][0].key, *(s.parts[number][-1].key for s in attacks))
            curve = request.curve != "none" and method not in ("exact", SMOOTHING)
            about = {**base, "shard": shard.digest, "curve": curve, "after": list(needs[1:])}
            parts.append((Task(self.name, about, needs, number),))
        yield Stage(self.name, tuple(parts), tuple(shard.count for shard in plan.shards))

    def estimate(self, task: Task, stage: Stage) -> float:
        about = task.identity
        if "votes" in about:
            return float(about["votes"]["n0"] + about["votes"]["n"])
        if "seconds" in about:
            return 1000.0 * float(about["seconds"])
        return WORK.get(about["method"], 500.0) * (4 if about["curve"] else 1)

    def run(self, task: Task, context: Context) -> TaskResult:
        import torch

        from besiege.bench.context import ticking
        from besiege.bench.tables import array, rows_of
        from besiege.bounds.votes import Poll
        from besiege.evaluation.certificates import METHODS, OUTCOMES, Order

        about = task.identity
        samples = context.samples(about["shard"])
        open_ = torch.ones(len(samples), dtype=torch.bool, device=samples.ids.device)
        for key in task.needs:
            rows = context.store.rows([key])
            bad = ~rows["correct"].astype(bool)
            if "success" in rows:
                bad |= rows["success"].astype(bool)
            open_[rows_of(samples.ids, rows["sample"][bad])] = False
        curve = torch.full_like(open_, about["curve"])
        order = Order(
            context.victim(about["victim"]),
            samples,
            Threat.parse(about["threat"]),
            open_,
            curve,
            about.get("seconds", 10.0),
            about["seed"],
            Poll(**about.get("votes", {})),
            context.how.batch,
            ticking(context.telling([task])),
        )
        found = METHODS.get(about["method"]).certify(order)
        words = np.array(OUTCOMES, object)[found.outcome.numpy()]
        rows_made = {
            "sample": array(samples.ids),
            "outcome": words,
            "method": np.full(len(samples), about["method"], object),
            **{name: array(getattr(found, name)) for name in ("margin", "radius")},
            **{name: array(getattr(found, name)) for name in ("below", "above", "regions")},
        }
        if found.chosen is not None and found.hits is not None:
            rows_made |= {"chosen": array(found.chosen), "hits": array(found.hits)}
            votes = (("n", np.int64), ("alpha", np.float64))
            for name, kind in votes:
                rows_made[name] = np.full(len(samples), about["votes"][name], kind)
        totals = {word: int((words == word).sum()) for word in OUTCOMES}
        return TaskResult(rows_made, {"rows": len(samples), **totals})


KINDS.add(Certify.name, Certify())

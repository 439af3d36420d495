"""Task kind ``certify``: proofs that no image within the budget is misclassified."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from besiege.bench.certify_text import read_certify
from besiege.bench.kinds import KINDS, Kind, base_identity
from besiege.bench.task import Stage, Task, TaskResult
from besiege.bounds.votes import Poll
from besiege.core.threat import Access, Threat
from besiege.metrics.evidence import Mask
from besiege.metrics.rows import Column, Rows

if TYPE_CHECKING:
    from torch import Tensor

    from besiege.bench.context import Context
    from besiege.bench.plan import Plan
    from besiege.evaluation.certificates import Certificates

REVISION = 1
"""It is raised when proofs change."""
LATE = ("complete", "exact")
"""Methods that run on what the attacks left; others cost little, and check the attacks."""
SPARING = ("ibp", "crown-ibp", "fast-lin", "crown", "alpha", "complete")
"""Methods whose proofs spare images the attacks: what is proved cannot be broken. A certificate of
smoothing may be wrong, and the exact search is there to measure attacks."""
FIRST = "crown"
"""The proofs that come before the attacks where the method itself comes after them."""
CHECKED = 10
"""One in so many proved images of a shard is attacked all the same: a proof and an attack that
contradict each other show that one of the two is wrong."""
WORK = {"ibp": 10.0, "crown-ibp": 30.0, "alpha": 5000.0}
"""Estimated forward passes for an image; 500 for others, 1,000 a second where time is limited."""


def sparing(plan: Plan) -> Stage | None:
    """The proofs that come before the attacks, which spare them the images that are proved."""
    if plan.request.certify is None:
        return None
    method, _ = read_certify(plan.request.certify)
    if method not in SPARING:
        return None
    return _before(plan, FIRST, None, "proofs first") if method in LATE else _wanted(plan)


def spared(ids: Column, rows: Rows) -> Mask:
    """Which samples no attack is run on: those that are proved, but one in `CHECKED` of these."""
    proved = np.sort(rows["sample"][rows["outcome"] == "proved"])
    safe: Mask = np.isin(ids, np.delete(proved, np.s_[::CHECKED]))
    return safe


def _wanted(plan: Plan) -> Stage:
    """The certificates of a method that does not wait for the attacks."""
    assert plan.request.certify is not None
    method, poll = read_certify(plan.request.certify)
    return _before(plan, method, poll, Certify.name, plan.request.curve != "none")


def _base(plan: Plan, method: str) -> dict[str, Any]:
    about = base_identity(Certify.name, plan.model.digest, plan.request.seed)
    return {**about, "threat": plan.threat, "method": method, "revision": REVISION}


def _before(plan: Plan, method: str, poll: Poll | None, name: str, curve: bool = False) -> Stage:
    """One task for each shard, after its clean images."""
    base = _base(plan, method)
    if poll is not None:
        # Neither the budget nor the access matters: a radius is one for all budgets.
        threat = Threat.parse(plan.threat)
        threat = replace(threat, eps=None, written=None, access=Access.GRADIENT)
        base |= {"threat": str(threat), "votes": asdict(poll)}
    (clean,) = plan.stages_of("clean")
    parts = []
    for number, shard in enumerate(plan.shards):
        about = {**base, "shard": shard.digest, "curve": curve and poll is None, "after": []}
        needs = (clean.parts[number][0].key,)
        parts.append((Task(Certify.name, about, needs, number),))
    return Stage(name, tuple(parts), tuple(shard.count for shard in plan.shards))


class Certify(Kind):
    """Certificates of every shard, or those that come before the attacks."""

    name = "certify"
    order = 5
    columns: ClassVar[Mapping[str, type]] = {
        "sample": np.int64,
        "outcome": object,
        "method": object,
        **dict.fromkeys(("margin", "radius", "below", "above"), np.float64),
        "regions": np.int64,
    }

    def stages(self, plan: Plan) -> Iterable[Stage]:
        if plan.request.certify is None:
            return
        late = read_certify(plan.request.certify).method in LATE
        stage = sparing(plan) if late else _wanted(plan)
        if stage is not None:
            yield stage

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
        from besiege.evaluation.certificates import METHODS, OUTCOMES, Order

        about = task.identity
        samples = context.samples(about["shard"])
        open_ = torch.ones(len(samples), dtype=torch.bool, device=samples.ids.device)
        known = context.store.rows([about["first"]]) if "first" in about else None
        for key in task.needs:
            if key == about.get("first"):
                continue
            rows = context.store.rows([key])
            bad = ~rows["correct"].astype(bool)
            if "success" in rows:
                bad |= rows["success"].astype(bool)
            open_[rows_of(samples.ids, rows["sample"][bad])] = False
        done = None if known is None else rows_of(samples.ids, _proved(known)["sample"])
        if done is not None:
            open_[done] = False
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
        if known is not None and done is not None:
            _taken_over(found, _proved(known), done.cpu())
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


class CertifyLate(Kind):
    """Certificates of what the attacks left and no proof before them covers."""

    name = "certify late"
    order = 60
    columns: ClassVar[Mapping[str, type]] = Certify.columns

    def stages(self, plan: Plan) -> Iterable[Stage]:
        """One task of the kind `certify` for each shard, after its attacks."""
        request = plan.request
        if request.certify is None:
            return
        method, _ = read_certify(request.certify)
        if method not in LATE:
            return
        first, (clean,) = sparing(plan), plan.stages_of("clean")
        attacks = [stage for stage in plan.stages_of("craft") if not (stage.guard or stage.curve)]
        base = {**_base(plan, method), "seconds": request.certify_seconds}
        parts = []
        for number, shard in enumerate(plan.shards):
            judged = [stage.parts[number][-1].key for stage in attacks]
            needs = (clean.parts[number][0].key, *judged)
            curve = request.curve != "none" and method != "exact"
            about = {**base, "shard": shard.digest, "curve": curve, "after": judged}
            if first is not None:
                about["first"] = first.parts[number][0].key
                needs = (*needs, about["first"])
            parts.append((Task(Certify.name, about, needs, number),))
        yield Stage(Certify.name, tuple(parts), tuple(shard.count for shard in plan.shards))


def _proved(rows: Rows) -> Rows:
    return rows.where(rows["outcome"] == "proved")


def _taken_over(found: Certificates, proved: Rows, places: Tensor) -> None:
    """Write proofs of another record into certificates."""
    import torch

    found.outcome[places] = 0  # proved
    for name in ("margin", "radius", "regions"):
        column = torch.from_numpy(proved[name].copy())
        getattr(found, name)[places] = column.to(getattr(found, name))


KINDS.add(Certify.name, Certify())
KINDS.add(CertifyLate.name, CertifyLate())

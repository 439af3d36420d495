"""What a task made, as the rows and arrays its record holds, and what was crafted read back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from besiege.bench.pictures import stored_images
from besiege.bench.spec import AttackSpec
from besiege.core.errors import Finding
from besiege.core.record import COSTS
from besiege.core.samples import Samples
from besiege.core.threat import Goal, Norm, Threat
from besiege.evaluation.crafting import Crafted
from besiege.evaluation.judging import CleanPredictions, Verdicts
from besiege.evaluation.transfer import transferred
from besiege.metrics.distances import BEST, IN_ALL
from besiege.metrics.rows import Column, Rows


@dataclass(frozen=True)
class TaskResult:
    """What a task made: rows, images, sums and findings."""

    rows: dict[str, Column]
    images: dict[str, Column] | None
    totals: dict[str, Any]
    findings: Sequence[Finding]


def of_sight(
    samples: Samples, sight: CleanPredictions, stochastic: bool, before: Sequence[Finding] = ()
) -> TaskResult:
    """The record of how a victim sees clean images, with what was found out before."""
    rows = {
        "sample": _array(samples.ids),
        "label": _array(samples.labels),
        "prediction": _array(sight.prediction),
        "confidence": _array(sight.confidence),
        "share": _array(sight.share),
        "correct": _array(sight.correct),
        **_draws(sight.draws, stochastic),
    }
    totals = {
        "rows": len(samples),
        "correct": int(sight.correct.sum()),
        "judged": sight.forwards,
    }
    findings = dict.fromkeys((*before, *sight.findings))
    return TaskResult(rows, {"images": _bytes(samples.images)}, totals, tuple(findings))


def of_crafted(samples: Samples, crafted: Crafted, spec: AttackSpec, elsewhere: bool) -> TaskResult:
    """The record of what an attack made; `elsewhere` where that was not on the victim."""
    # A failure is the clean image, which need not be stored again.
    kept = crafted.success if spec.leave == "success" else torch.ones_like(crafted.success)
    if elsewhere:
        crafted = transferred(crafted)
    n = len(samples)
    nowhere = torch.full((n, 3), torch.nan)
    ascent = nowhere if crafted.ascent is None else crafted.ascent
    rows = {
        "sample": _array(samples.ids),
        "claimed": _array(crafted.success),
        "first_step": _array(crafted.first_step),
        "first_query": _array(crafted.first_query),
        "forwards": _array(crafted.forwards),
        "backwards": _array(crafted.backwards),
        "queries": _array(crafted.queries),
        "target": _array(torch.full((n,), -1) if crafted.targets is None else crafted.targets),
        "vanished": _array(crafted.vanished),
        "blank": _array(nowhere[:, 0] if crafted.zero_share is None else crafted.zero_share).astype(
            float
        ),
        "loss_first": _array(ascent[:, 0].double()),
        "loss_late": _array(ascent[:, 1].double()),
        "loss_best": _array(ascent[:, 2].double()),
        "no_start": _array(_or_none(crafted.no_start, n)),
        "aside": _array(_or_none(crafted.substitute_passes, n).long()),
        **(_best(crafted) if Threat.parse(spec.threat).eps is None else {}),
    }
    where = kept.nonzero()[:, 0]
    images = {"images": _array(crafted.images[where]), "rows": _array(where)}
    spent = ("forwards", "backwards", "queries")
    totals = {
        "rows": n,
        "claimed": int(crafted.success.sum()),
        "padding": crafted.padding,
        **{what: int(getattr(crafted, what).sum()) for what in spent},
    }
    return TaskResult(rows, images, totals, crafted.findings)


def of_verdicts(samples: Samples, verdicts: Verdicts, stochastic: bool) -> TaskResult:
    """The record of what the victim itself says of what was crafted."""
    rows = {
        "sample": _array(samples.ids),
        "label": _array(samples.labels),
        "correct": _array(verdicts.correct),
        "success": _array(verdicts.success),
        "valid": _array(verdicts.valid),
        "within": _array(verdicts.within),
        "reached": _array(verdicts.reached),
        "share": _array(verdicts.share),
        "prediction": _array(verdicts.prediction),
        "confidence": _array(verdicts.confidence),
        **{str(norm): _array(verdicts.distance[norm]) for norm in Norm},
        **_draws(verdicts.draws, stochastic),
    }
    totals = {
        "rows": len(samples),
        "correct": int(verdicts.correct.sum()),
        "broken": int((verdicts.correct & verdicts.success).sum()),
        "judged": verdicts.forwards,
    }
    return TaskResult(rows, None, totals, verdicts.findings)


def stored(
    rows: Rows, samples: Samples, images: dict[str, Column], threat: Threat, device: torch.device
) -> Crafted:
    """What was crafted, as it lies on the disk: the judge sees nothing else."""
    n = len(samples)
    pixels = samples.images.clone()
    if len(images["rows"]):
        where = torch.from_numpy(images["rows"]).to(device)
        pixels[where] = torch.from_numpy(images["images"]).to(device)

    def column(name: str) -> Tensor:
        return torch.from_numpy(rows[name].copy()).to(device)

    return Crafted(
        pixels,
        column("claimed"),
        torch.zeros(n, dtype=torch.float64, device=device),
        column("first_step"),
        column("first_query"),
        column("forwards"),
        column("backwards"),
        column("queries"),
        None if threat.goal is Goal.UNTARGETED else column("target"),
        column("vanished"),
        None,
        0,
        0.0,
        (),
    )


def rows_of(ids: Tensor, some: Column) -> Tensor:
    """Row numbers of some ids, in their order."""
    order = torch.argsort(ids)
    wanted = torch.from_numpy(np.ascontiguousarray(some)).to(ids.device)
    return order[torch.searchsorted(ids[order], wanted)]


def _or_none(values: Tensor | None, rows: int) -> Tensor:
    return torch.zeros(rows, dtype=torch.bool) if values is None else values


def _best(crafted: Crafted) -> dict[str, Column]:
    """The smallest distance claimed within so many passes, up to the most any took, and in all."""
    if crafted.descent is None:
        return {}
    most = int((crafted.queries + crafted.backwards).max())
    marks = [cost for place, cost in enumerate(COSTS) if place == 0 or COSTS[place - 1] < most]
    noted = {f"{BEST}{cost}": _array(crafted.descent[:, n]) for n, cost in enumerate(marks)}
    return {**noted, IN_ALL: _array(crafted.descent[:, -1])}


def _draws(draws: Tensor, stochastic: bool) -> dict[str, Column]:
    """How each draw went, of a victim that answers by chance; of others the share says all."""
    return {"draws": _array(draws)} if stochastic else {}


def _array(values: Tensor) -> Column:
    return values.detach().cpu().contiguous().numpy()


def _bytes(images: Tensor) -> Column:
    """Images as bytes where that loses nothing, which is a quarter of the size."""
    pixels = _array(images)
    rounded = np.rint(pixels * 255).clip(0, 255).astype(np.uint8)
    same = np.array_equal(stored_images({"images": rounded}), pixels)
    return rounded if same else pixels

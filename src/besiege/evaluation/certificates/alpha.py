"""Certificates by optimised slopes: alpha-CROWN."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from besiege.bounds.bounding import Bounding, Relaxed, crown, differences, margin_bounds
from besiege.bounds.optimising import Parts, optimised
from besiege.bounds.region import Region
from besiege.core.oracle import full_precision
from besiege.core.samples import Samples
from besiege.core.victim import Victim
from besiege.evaluation.certificates import (
    METHODS,
    OPEN,
    PROVED,
    Certificates,
    Method,
    Order,
)

STEPS = 30
TOGETHER = 4
"""Images whose slopes are optimised at once."""


def open_margins(
    bounding: Bounding, relaxed: Relaxed, labels: Tensor, needed: Tensor
) -> tuple[Tensor, Parts]:
    """Bounds of all margins, ``[rows, classes - 1]``, and those that are no proof, as parts."""
    graph = bounding.graph
    least = margin_bounds(graph, relaxed, labels)
    functions, of = differences(labels, graph.classes, relaxed.region.centre)
    rows = (least <= needed[:, None]).flatten().nonzero()[:, 0]
    return least, Parts.whole(graph, functions[rows], of[rows], relaxed.lines)


def raised(
    bounding: Bounding, region: Region, labels: Tensor, needed: Tensor, steps: int = STEPS
) -> Tensor:
    """Bounds of all margins, ``[rows, classes - 1]``: CROWN's, and better ones where these fail."""
    relaxed = crown(bounding.graph, region)
    least, parts = open_margins(bounding, relaxed, labels, needed)
    if not len(parts):
        return least
    rows = (least <= needed[:, None]).flatten().nonzero()[:, 0]
    found = optimised(bounding.graph, parts, region, relaxed.bounds, needed[parts.of], steps)
    flat = least.flatten().clone()
    flat[rows] = torch.maximum(flat[rows], found.least)
    return flat.view_as(least)


class Alpha(Method):
    """CROWN, and slopes optimised for every margin that CROWN leaves open."""

    name: ClassVar[str] = "alpha"
    work: ClassVar[float] = 2000.0

    def check(self, victim: Victim, samples: Samples) -> None:
        """Refuse a victim with an operation without bounds."""
        Bounding.of(victim, samples.images)

    def certify(self, order: Order) -> Certificates:
        """The margins' bounds at the budget; no other radii are tried."""
        found = Certificates.before(order)
        rows = order.open.nonzero()[:, 0]
        if not len(rows):
            return found
        images, labels = order.samples.images[rows].clone(), order.samples.labels[rows]
        bounding = Bounding.of(order.victim, images)
        needed = bounding.needed(images)
        parts = []
        with full_precision(images.device), order.victim.held():
            for start in range(0, len(rows), TOGETHER):
                some = slice(start, start + TOGETHER)
                region = Region.of(
                    images[some], order.threat.radius, order.threat.norm, order.victim.box
                )
                parts.append(raised(bounding, region, labels[some], needed[some]).amin(1))
        least = torch.cat(parts)
        place, proved = rows.cpu(), (least > needed).cpu()
        found.margin[place] = least.double().cpu()
        found.outcome[place] = torch.where(proved, PROVED, OPEN)
        found.radius[place] = torch.where(proved, order.threat.radius, torch.nan).double()
        found.regions[place] = 1
        return found


METHODS.add(Alpha.name, Alpha())

"""Certificates by optimised slopes: alpha-CROWN."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from besiege.bounds.bounding import Bounding, Relaxed, crown, differences, margin_bounds
from besiege.bounds.optimising import Parts, optimised
from besiege.bounds.region import Region
from besiege.evaluation.certificates import (
    METHODS,
    OPEN,
    PROVED,
    Certificates,
    Method,
    Opened,
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

    def prove(self, order: Order, some: Opened, found: Certificates) -> None:
        """The margins' bounds at the budget; no other radii are tried."""
        threat, parts = order.threat, []
        for start in range(0, len(some.rows), TOGETHER):
            few = slice(start, start + TOGETHER)
            region = Region.of(some.images[few], threat.radius, threat.norm, order.victim.box)
            least = raised(some.bounding, region, some.labels[few], some.needed[few])
            parts.append(least.amin(1))
        least = torch.cat(parts)
        place, proved = some.rows.cpu(), (least > some.needed).cpu()
        found.margin[place] = least.double().cpu()
        found.outcome[place] = torch.where(proved, PROVED, OPEN)
        found.radius[place] = torch.where(proved, order.threat.radius, torch.nan).double()
        found.regions[place] = 1


METHODS.add(Alpha.name, Alpha())

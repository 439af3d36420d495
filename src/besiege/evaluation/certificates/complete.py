"""Certificates by branch and bound: regions are split by the signs of ReLUs until all is proved."""

from __future__ import annotations

from collections.abc import Mapping
from time import process_time
from typing import ClassVar

import torch
from torch import Tensor

from besiege.bounds.bounding import Bounding, crown
from besiege.bounds.graph import Graph
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
from besiege.evaluation.certificates.alpha import STEPS, open_margins

FURTHER = 8
"""Steps with which the bounds of parts are raised; they begin with the slopes of the whole."""
MOST = 64
"""Parts that are split at once, the lowest bounds first."""
MOST_OPEN = 20_000
"""Parts that are kept; an image with more is open."""


class Complete(Method):
    """CROWN, then optimised slopes, then splits by the signs of ReLUs within a time limit.

    A part is split at the ReLU whose lines are loosest. The image is proved when all parts are;
    it is open when time is over, or if no part can be split further.
    """

    name: ClassVar[str] = "complete"
    late: ClassVar[bool] = True

    def prove(self, order: Order, some: Opened, found: Certificates) -> None:
        """One image after the other, since each has its own time and number of parts."""
        threat = order.threat
        for at, row in enumerate(some.rows.tolist()):
            one = slice(at, at + 1)
            region = Region.of(some.images[one], threat.radius, threat.norm, order.victim.box)
            end = process_time() + order.seconds
            needed = some.needed[one]
            least, count = split(some.bounding, region, some.labels[one], needed, end)
            proved = least > float(needed)
            found.margin[row], found.regions[row] = least, count
            found.outcome[row] = PROVED if proved else OPEN
            if proved:
                found.radius[row] = threat.radius


def split(
    bounding: Bounding, region: Region, label: Tensor, needed: Tensor, end: float
) -> tuple[float, int]:
    """Branch and bound of one image.

    Parameters
    ----------
    bounding : Bounding
        The network.
    region : Region
        Of one image.
    label, needed : Tensor
        Of that image, ``[1]``.
    end : float
        The CPU time of this process at which it stops.

    Returns
    -------
    tuple of float and int
        A lower bound of the smallest margin, and the number of parts that were bounded.
    """
    graph = bounding.graph
    relaxed = crown(graph, region)
    least, parts = open_margins(bounding, relaxed, label, needed)
    if not len(parts):
        return float(least.min()), 1
    sure = least[least > needed[:, None]]
    lowest = float(sure.min()) if len(sure) else torch.inf
    found = optimised(graph, parts, region, relaxed.bounds, needed[parts.of], STEPS)
    bounds, parts, count = found.least, found.parts, 1 + len(parts)
    if not graph.bent:  # nothing can be split
        return min(lowest, float(bounds.min())), count
    choice = _loosest(graph, found.looseness)
    while True:
        proved = bounds > needed[0]
        lowest = min([lowest, *bounds[proved].tolist()])
        left = (~proved).nonzero()[:, 0]
        if not len(left):
            return lowest, count
        bounds, parts, choice = bounds[left], parts.at(left), choice[left]
        stuck = bool((choice < 0).any())
        if stuck or process_time() >= end or len(left) > MOST_OPEN:
            return min(lowest, float(bounds.min())), count
        order = bounds.argsort()
        now, later = order[:MOST], order[MOST:]
        children = _children(graph, parts.at(now), choice[now])
        parent = bounds[now].repeat(2)
        found = optimised(graph, children, region, relaxed.bounds, needed[children.of], FURTHER)
        count += len(children)
        # A part's bound is at least that of the whole.
        new = torch.maximum(found.least, parent)
        bounds = torch.cat([bounds[later], new])
        choice = torch.cat([choice[later], _loosest(graph, found.looseness)])
        parts = parts.at(later).joined(found.parts)


def _loosest(graph: Graph, looseness: Mapping[int, Tensor]) -> Tensor:
    """The ReLU at which every part loses most, numbered over all nodes; -1 if no line is loose."""
    flat = torch.cat([looseness[n].flatten(1) for n in graph.bent], 1)
    most, place = flat.max(1)
    return torch.where(most > 0, place, -1)


def _children(graph: Graph, parts: Parts, choice: Tensor) -> Parts:
    """Each part as two: with the chosen ReLU active, and with it inactive."""
    twice = parts.joined(parts)
    start = 0
    signs = {}
    count = len(parts)
    for number in graph.bent:
        flat = twice.signs[number].flatten(1).clone()
        size = flat.shape[1]
        here = ((choice >= start) & (choice < start + size)).nonzero()[:, 0]
        flat[here, choice[here] - start] = 1.0
        flat[here + count, choice[here] - start] = -1.0
        signs[number] = flat.view_as(twice.signs[number])
        start += size
    return Parts(twice.functions, twice.of, signs, twice.slopes, twice.prices)


METHODS.add(Complete.name, Complete())

"""Bounds with the best slopes below ReLUs (alpha-CROWN), on parts of a region (beta-CROWN)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from besiege.bounds.backward import lower
from besiege.bounds.graph import Graph
from besiege.bounds.operations import Rectifier
from besiege.bounds.region import Region
from besiege.bounds.relaxing import Bounds, Lines, lines

RATE = 0.1
"""Step of Adam, for slopes between 0 and 1 and for multipliers."""
DECAY = 0.97


@dataclass(frozen=True, eq=False)
class Parts:
    """Linear functions, each over the part of a region in which some ReLUs have a known sign.

    Attributes
    ----------
    functions : Tensor
        Functions of the logits, ``[parts, classes]``.
    of : Tensor
        The image of each, ``[parts]``.
    signs : dict
        By the node of a ReLU: 1 where it is active, -1 where it is not, 0 where both may be,
        ``[parts, *shape]``.
    slopes, prices : dict
        By node: slopes of the lines below, and multipliers of the known signs, from which the
        search for better ones begins.
    """

    functions: Tensor
    of: Tensor
    signs: dict[int, Tensor]
    slopes: dict[int, Tensor]
    prices: dict[int, Tensor]

    @classmethod
    def whole(
        cls, graph: Graph, functions: Tensor, of: Tensor, chosen: Mapping[int, Lines]
    ) -> Parts:
        """Whole regions, with the slopes of these lines."""
        slopes = {n: chosen[n].below[of].clone() for n in graph.bent}
        signs = {n: torch.zeros_like(s) for n, s in slopes.items()}
        return cls(functions, of, signs, slopes, {n: s.clone() for n, s in signs.items()})

    def __len__(self) -> int:
        return len(self.of)

    def at(self, rows: Tensor) -> Parts:
        """Some of them."""
        tables = (self.signs, self.slopes, self.prices)
        signs, slopes, prices = ({n: t[rows] for n, t in table.items()} for table in tables)
        return Parts(self.functions[rows], self.of[rows], signs, slopes, prices)

    def joined(self, other: Parts) -> Parts:
        """These and others."""
        mine = (self.signs, self.slopes, self.prices)
        theirs = (other.signs, other.slopes, other.prices)
        signs, slopes, prices = (
            {n: torch.cat([a[n], b[n]]) for n in a} for a, b in zip(mine, theirs, strict=True)
        )
        functions = torch.cat([self.functions, other.functions])
        return Parts(functions, torch.cat([self.of, other.of]), signs, slopes, prices)


@dataclass(frozen=True, eq=False)
class Optimised:
    """Lower bounds of parts, the parts with better slopes, and where lines are loosest.

    ``looseness`` has, by node, how much the bound loses at each ReLU, ``[parts, *shape]``; 0 where
    its sign is known.
    """

    least: Tensor
    parts: Parts
    looseness: dict[int, Tensor]


def optimised(
    graph: Graph,
    parts: Parts,
    region: Region,
    bounds: Mapping[int, Bounds],
    needed: Tensor,
    steps: int,
) -> Optimised:
    """Lower bounds of linear functions of the logits, raised by projected gradient steps.

    Any slope from that below zero to 1 is a valid line below a ReLU. Where a sign is known, a
    multiplier of it, at least 0, may be subtracted: on that part it only lowers the function
    (Wang et al. 2021). Both are optimised for every function; the best bound counts.

    Parameters
    ----------
    graph, region, bounds
        As for `besiege.bounds.backward.lower`.
    parts : Parts
        The functions.
    needed : Tensor
        Above which a bound need not be raised further, ``[parts]``.
    steps : int
        Largest number of steps.
    """
    found = _fixed(graph, parts, bounds)
    slopes = {n: s.clone().requires_grad_() for n, s in parts.slopes.items()}
    prices = {n: p.clone().requires_grad_() for n, p in parts.prices.items()}
    split = {n: bool(s.any()) for n, s in parts.signs.items()}
    looseness: dict[int, Tensor] = {}

    def through(number: int, here: Tensor) -> tuple[Tensor, Tensor]:
        line, unstable = found[number]
        below = torch.where(unstable, slopes[number], line.below)
        negative = here.clamp_max(0)
        back = (here - negative) * below + negative * line.above
        lost = negative * line.intercept
        looseness[number] = _looseness(graph, number, here, lost, below, bounds, parts, unstable)
        if split[number]:
            back = back - prices[number] * parts.signs[number]
        return back, lost.flatten(1).sum(1)

    variables = [*slopes.values(), *(p for n, p in prices.items() if split[n])]
    if not variables:  # a network without ReLUs: nothing can be chosen
        least = lower(graph, len(graph.nodes) - 1, parts.functions, parts.of, region, bounds, {})
        return Optimised(least, parts, looseness)
    adam = torch.optim.Adam(variables, lr=RATE)
    best = torch.full_like(needed, -torch.inf)
    last = len(graph.nodes) - 1
    for step in range(steps + 1):
        with torch.inference_mode(False), torch.enable_grad():
            least = lower(graph, last, parts.functions, parts.of, region, bounds, {}, through)
            loss = -least.sum()
        best = torch.maximum(best, least.detach())
        if step == steps or bool((best > needed).all()):
            break
        gradients = torch.autograd.grad(loss, variables, allow_unused=True)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.grad = gradient
        adam.step()
        for group in adam.param_groups:
            group["lr"] *= DECAY
        with torch.no_grad():
            for number, slope in slopes.items():
                slope.clamp_(_rectifier(graph, number).slope, 1)
            for price in prices.values():
                price.clamp_min_(0)
    better = Parts(
        parts.functions,
        parts.of,
        parts.signs,
        {n: s.detach() for n, s in slopes.items()},
        {n: p.detach() for n, p in prices.items()},
    )
    return Optimised(best, better, looseness)


def _rectifier(graph: Graph, number: int) -> Rectifier:
    operation = graph.nodes[number].operation
    assert isinstance(operation, Rectifier)
    return operation


def _known(number: int, graph: Graph, parts: Parts, bounds: Mapping[int, Bounds]) -> Bounds:
    """Bounds of what a ReLU reads on each part: known signs cut them at zero."""
    read, signs = bounds[graph.nodes[number].parents[0]].at(parts.of), parts.signs[number]
    low = torch.where(signs > 0, read.low.clamp_min(0), read.low)
    high = torch.where(signs < 0, read.high.clamp_max(0), read.high)
    return Bounds(low, high)


def _fixed(
    graph: Graph, parts: Parts, bounds: Mapping[int, Bounds]
) -> dict[int, tuple[Lines, Tensor]]:
    """The lines of every ReLU on each part, and which ReLUs are unstable there."""
    found = {}
    for number in graph.bent:
        known = _known(number, graph, parts, bounds)
        found[number] = lines(_rectifier(graph, number), known), known.unstable()
    return found


def _looseness(
    graph: Graph,
    number: int,
    here: Tensor,
    lost: Tensor,
    below: Tensor,
    bounds: Mapping[int, Bounds],
    parts: Parts,
    unstable: Tensor,
) -> Tensor:
    """How much the lines of a ReLU may lower the bound: the intercept above, or the gap below."""
    with torch.no_grad():
        read = bounds[graph.nodes[number].parents[0]].at(parts.of)
        gap = torch.minimum(read.high * (1 - below), -read.low * below).clamp_min(0)
        return torch.where(unstable, here.clamp_min(0) * gap - lost, 0.0)

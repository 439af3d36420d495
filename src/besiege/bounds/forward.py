"""Bounds of all values of a network: by intervals, and from the image where that matters."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from besiege.bounds.backward import lower_of
from besiege.bounds.graph import Graph, Node
from besiege.bounds.operations import Affine, Constant, Rectifier
from besiege.bounds.region import Region
from besiege.bounds.relaxing import Bounds, Lines, lines
from besiege.core.door import out_of_memory
from besiege.core.threat import Linf

MOST_VALUES = 1 << 21
"""Values of the largest tensor of functions that are followed back at once, on a CPU: larger ones
do not fit into its caches."""
MOST_ON_GPU = 1 << 28


def intervals(graph: Graph, region: Region) -> dict[int, Bounds]:
    """Bounds of every node by interval arithmetic (IBP)."""
    found: dict[int, Bounds] = {}
    for number, node in enumerate(graph.nodes):
        found[number] = _step(node, region, found)
    return found


def _step(node: Node, region: Region, found: dict[int, Bounds]) -> Bounds:
    operation = node.operation
    if operation is None:
        return Bounds(region.low, region.high)
    if isinstance(operation, Constant):
        return Bounds(operation.value, operation.value)
    read = [found[parent] for parent in node.parents]
    if isinstance(operation, Affine):
        middle = operation(*(0.5 * (b.low + b.high) for b in read))
        half = operation.spread(*(0.5 * (b.high - b.low) for b in read))
        return Bounds(middle - half, middle + half)
    return Bounds(operation(*(b.low for b in read)), operation(*(b.high for b in read)))


def linear_bounds(
    graph: Graph, region: Region, parallel: bool = False
) -> tuple[dict[int, Bounds], dict[int, Lines]]:
    """Bounds of every node, with unstable values bounded from the image; and lines around ReLUs.

    Parameters
    ----------
    graph : Graph
        The network.
    region : Region
        The images.
    parallel : bool
        Whether lines below ReLUs are parallel to those above (Fast-Lin) or not (CROWN).
    """
    found: dict[int, Bounds] = {}
    relaxed: dict[int, Lines] = {}
    last = max(graph.bent, default=0)
    for number, node in enumerate(graph.nodes):
        found[number] = _step(node, region, found)
        if number in graph.refined and not _is_exact(graph, number, region) and number < last:
            found[number] = _refined(graph, number, region, found, relaxed)
        if isinstance(node.operation, Rectifier):
            relaxed[number] = lines(node.operation, found[node.parents[0]], parallel)
    return found, relaxed


def _is_exact(graph: Graph, number: int, region: Region) -> bool:
    return region.norm is Linf and graph.plain[number]


def _refined(
    graph: Graph,
    number: int,
    region: Region,
    found: dict[int, Bounds],
    relaxed: dict[int, Lines],
) -> Bounds:
    """The bounds of a node, those of unstable values from the image if these are better."""
    bounds = found[number]
    rectified = any(
        isinstance(node.operation, Rectifier) and number in node.parents for node in graph.nodes
    )
    low, high = bounds.low.flatten(1).clone(), bounds.high.flatten(1).clone()
    wanted = bounds.unstable().flatten(1) if rectified else high > low
    image, value = wanted.nonzero(as_tuple=True)
    if not len(image):
        return bounds
    node = graph.nodes[number]
    operation = node.operation
    assert isinstance(operation, Affine)
    shapes = [graph.nodes[parent].shape for parent in node.parents]
    at_zero = operation(*(low.new_zeros((1, *shape)) for shape in shapes)).flatten()

    def both(start: int, end: int) -> Tensor:
        """Lower bounds of some values, and of their negatives."""
        count, which = end - start, value[start:end]
        of = image[start:end].repeat(2)
        parts: dict[int, Tensor] = {}
        for parent, single in zip(
            node.parents, operation.single(which, node.shape, shapes), strict=True
        ):
            signed = torch.cat([single, -single])
            parts[parent] = signed if parent not in parts else parts[parent] + signed
        least = lower_of(parts, of, graph, region, found, relaxed).view(2, count)
        return least + torch.stack([at_zero[which], -at_zero[which]])

    least = in_pieces(both, len(image), graph, low.device, dim=1)
    # Never worse than the interval: both are valid.
    low[image, value] = torch.maximum(low[image, value], least[0])
    high[image, value] = torch.minimum(high[image, value], -least[1])
    # Of a value that is known exactly, rounding may have put them in the wrong order.
    low, high = torch.minimum(low, high), torch.maximum(low, high)
    return Bounds(low.view_as(bounds.low), high.view_as(bounds.high))


def in_pieces(
    bound: Callable[[int, int], Tensor],
    count: int,
    graph: Graph,
    device: torch.device,
    dim: int = 0,
) -> Tensor:
    """Bounds of functions number start to end, for pieces that fit into memory.

    Pieces are halved when memory runs out, down to single functions.
    """
    largest = max(torch.Size(node.shape).numel() for node in graph.nodes)
    most = MOST_ON_GPU if device.type == "cuda" else MOST_VALUES
    piece = max(1, most // (2 * largest))
    parts: list[Tensor] = []
    start = 0
    while start < count:
        try:
            parts.append(bound(start, min(start + piece, count)))
        except RuntimeError as problem:
            if not out_of_memory(problem) or piece == 1:
                raise
            piece = max(1, piece // 2)
            continue
        start += piece
    return torch.cat(parts, dim)

"""Lower bounds of linear functions of a node, followed back to the image (CROWN)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from besiege.bounds.graph import Graph
from besiege.bounds.operations import Affine, Constant, MaxPool
from besiege.bounds.region import Region
from besiege.bounds.relaxing import Bounds, Lines, through_lines, through_pool

Through = Callable[[int, Tensor], tuple[Tensor, Tensor]]
"""What a ReLU's node does with functions of its answers; see `lower`."""


def lower(
    graph: Graph,
    start: int,
    functions: Tensor,
    of: Tensor,
    region: Region,
    bounds: Mapping[int, Bounds],
    relaxed: Mapping[int, Lines],
    through: Through | None = None,
) -> Tensor:
    """Lower bounds of linear functions of the values of a node.

    The functions are replaced by smaller ones of the values before, node by node, until they are
    functions of the image, whose minimum over the region is known. Where values flow into several
    operations, the functions add up.

    Parameters
    ----------
    graph : Graph
        The network.
    start : int
        The node whose values the functions are of.
    functions : Tensor
        Their weights, ``[functions, *shape of the node]``.
    of : Tensor
        The image of each function, as a row of `region`.
    region : Region
        The images.
    bounds : mapping
        Bounds of what every max-pool reads, by node.
    relaxed : mapping
        The lines around every ReLU, by its node.
    through : callable, optional
        Used for ReLUs instead of `relaxed`: from the node and functions of its answers to
        functions of what it reads and constants.

    Returns
    -------
    Tensor
        ``[functions]``.
    """
    return lower_of({start: functions}, of, graph, region, bounds, relaxed, through)


def lower_of(
    parts: Mapping[int, Tensor],
    of: Tensor,
    graph: Graph,
    region: Region,
    bounds: Mapping[int, Bounds],
    relaxed: Mapping[int, Lines],
    through: Through | None = None,
) -> Tensor:
    """As `lower`, for sums of functions of several nodes, by node."""
    waiting = dict(parts)
    total = region.centre.new_zeros(len(of))
    for number in range(max(parts), 0, -1):
        here = waiting.pop(number, None)
        if here is None:
            continue
        node = graph.nodes[number]
        operation = node.operation
        shapes = [graph.nodes[parent].shape for parent in node.parents]
        if isinstance(operation, Constant):
            total = total + (here * operation.value).flatten(1).sum(1)
            continue
        if isinstance(operation, Affine):
            before = operation.transposed(here, shapes)
            constant = operation.constant(here, shapes)
        elif isinstance(operation, MaxPool):
            back, constant = through_pool(operation, bounds[node.parents[0]], here, of)
            before = [back]
        elif through is not None:
            back, constant = through(number, here)
            before = [back]
        else:
            back, constant = through_lines(relaxed[number], here, of)
            before = [back]
        total = total if constant is None else total + constant
        for parent, function in zip(node.parents, before, strict=True):
            old = waiting.get(parent)
            waiting[parent] = function if old is None else old + function
    first = waiting.get(0)
    return total if first is None else total + region.lower(first, of)


def lower_by_intervals(
    graph: Graph, start: int, functions: Tensor, of: Tensor, bounds: Mapping[int, Bounds]
) -> Tensor:
    """Lower bounds of linear functions by the intervals of the last nodes that are not affine.

    With the differences of logits as functions, the last layer is merged with them.

    Parameters
    ----------
    graph, start, functions, of, bounds
        As for `lower`, with `bounds` of every node.

    Returns
    -------
    Tensor
        ``[functions]``.
    """
    waiting: dict[int, Tensor] = {start: functions}
    total = functions.new_zeros(len(functions))
    for number in range(start, -1, -1):
        here = waiting.pop(number, None)
        if here is None:
            continue
        node = graph.nodes[number]
        if isinstance(node.operation, Affine):
            shapes = [graph.nodes[parent].shape for parent in node.parents]
            constant = node.operation.constant(here, shapes)
            total = total if constant is None else total + constant
            for parent, function in zip(
                node.parents, node.operation.transposed(here, shapes), strict=True
            ):
                old = waiting.get(parent)
                waiting[parent] = function if old is None else old + function
            continue
        low, high = (
            values if len(values) == 1 else values[of]
            for values in (bounds[number].low, bounds[number].high)
        )
        parts = here.clamp_min(0) * low + here.clamp_max(0) * high
        total = total + parts.flatten(1).sum(1)
    return total

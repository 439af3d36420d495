"""`Graph`: a network as a list of operations, each of which follows those it reads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from besiege.bounds.operations import (
    Affine,
    Constant,
    MaxPool,
    Operation,
    Rectifier,
    Shape,
)


@dataclass(frozen=True, eq=False)
class Node:
    """One operation of a graph.

    Parameters
    ----------
    operation : Operation or None
        None for the image.
    parents : tuple of int
        The nodes it reads, by their numbers.
    shape : tuple of int
        The shape of its values, without rows.
    place : str
        Where it is in the module, for error messages.
    """

    operation: Operation | None
    parents: tuple[int, ...]
    shape: Shape
    place: str = ""


@dataclass(frozen=True, eq=False)
class Graph:
    """The nodes of a network: the first is the image, the last the logits."""

    nodes: tuple[Node, ...]

    def __call__(self, images: Tensor) -> Tensor:
        """The logits of images, as the network computes them."""
        return self.values(images)[-1]

    def values(self, images: Tensor) -> list[Tensor]:
        """The values of every node."""
        found: list[Tensor] = []
        for node in self.nodes:
            operation = node.operation
            read = [found[parent] for parent in node.parents]
            found.append(images if operation is None else operation(*read))
        return found

    @property
    def classes(self) -> int:
        """Number of logits."""
        return self.nodes[-1].shape[0]

    @cached_property
    def bent(self) -> tuple[int, ...]:
        """The nodes of ReLUs and leaky ReLUs."""
        return tuple(
            n for n, node in enumerate(self.nodes) if isinstance(node.operation, Rectifier)
        )

    @cached_property
    def units(self) -> int:
        """Number of ReLUs and leaky ReLUs."""
        return sum(torch.Size(self.nodes[n].shape).numel() for n in self.bent)

    @cached_property
    def plain(self) -> tuple[bool, ...]:
        """Which nodes follow from the image by at most one operation that mixes values.

        Intervals of their values are exact for a box around the image: no two values that an
        operation combines depend on the same pixel value twice.
        """
        mixed: list[int] = []
        for node in self.nodes:
            if node.operation is None or isinstance(node.operation, Constant):
                mixed.append(0)
            elif not isinstance(node.operation, Affine):
                mixed.append(2)
            else:
                mixed.append(max(mixed[p] for p in node.parents) + node.operation.mixes)
        return tuple(count < 2 for count in mixed)

    @cached_property
    def refined(self) -> frozenset[int]:
        """The nodes whose bounds decide how a nonlinear operation is relaxed.

        What follows a nonlinear operation directly is bounded by what that one reads.
        """
        return frozenset(
            parent
            for node in self.nodes
            if isinstance(node.operation, Rectifier | MaxPool)
            for parent in node.parents
            if isinstance(self.nodes[parent].operation, Affine)
        )

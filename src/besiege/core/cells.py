"""Cells: intervals of pixel values that a layer in front of a victim shows as one value each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from besiege.core.errors import InputError

MOST = 256
"""Most cells: where there are more, they are hardly wider than the steps of stored images."""
_HALVINGS = 200
"""Float32 values between the ends of a box are told apart by fewer halvings, also around zero."""


@dataclass(frozen=True)
class Cells:
    """The cells of pixel values, in ascending order.

    Attributes
    ----------
    values : tuple of float
        One pixel value inside every cell: what the layer shows there, or the middle.
    edges : tuple of float
        The lowest float32 pixel value of every cell but the first.
    """

    values: tuple[float, ...]
    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        order = [self.values[:1], *zip(self.edges, self.values[1:], strict=False)]
        ends = [end for pair in order for end in pair]
        if len(self.values) != len(self.edges) + 1 or not all(map(math.isfinite, ends)):
            raise InputError(
                f"cells have {len(self.values)} values and {len(self.edges)} edges: give finite "
                "numbers, and one edge fewer than values"
            )
        if ends != sorted(ends):
            raise InputError(
                "the values of cells do not lie between their edges: give both in ascending order, "
                "or build the cells with Cells.of"
            )

    @classmethod
    def of(
        cls, shown: Callable[[Tensor], Tensor], values: Sequence[float], box: tuple[float, float]
    ) -> Self:
        """The cells of a map that never falls, from pixel values of a box to few others.

        Parameters
        ----------
        shown : callable
            The map, one number for each.
        values : sequence of float
            All values it has, ascending.
        box : tuple of float
            The range of pixel values.

        Examples
        --------
        >>> cells = Cells.of(torch.round, [0.0, 1.0, 2.0], (0.0, 2.0))
        >>> cells.number(torch.tensor([0.4, 0.6, 2.0]))
        tensor([0, 1, 2])
        """
        known = torch.tensor(values, dtype=torch.float32)
        if not len(known):
            raise InputError("cells have at least one value: name all that the layer shows")
        halfway = (known[1:] + known[:-1]) / 2
        # Found by halving, not computed: the map rounds, and an edge may lie a unit elsewhere.
        below, edge = (torch.full_like(halfway, end) for end in box)
        for _ in range(_HALVINGS):
            middle = (below + edge) / 2
            over = shown(middle) > halfway
            below, edge = torch.where(over, below, middle), torch.where(over, middle, edge)
        # Rounding may take the box short of the last cell, which then is none.
        there = shown(edge) > halfway
        rises = _close(shown(below) - known[:-1], known) & (
            _close(shown(edge) - known[1:], known) | ~there
        )
        seen = torch.cat([known[:1], known[1:][there]])
        ends = shown(edge.new_tensor(box)) - seen[[0, -1]]
        if not (bool(rises.all()) and bool(_close(ends, known).all())):
            raise InputError(
                f"the {len(known)} values given are not all that the layer shows of pixel values "
                f"from {box[0]:g} to {box[1]:g}, ascending, or its values fall where pixel values "
                "rise: cells(box) may return None, and no cells are searched"
            )
        below, edge = below[there], edge[there]
        edge = edge.cummax(0).values if len(edge) else edge
        inside = seen.clone()
        inside[:-1] = torch.minimum(inside[:-1], below)
        # Rounding may also take the highest value out of the box.
        inside[1:] = torch.maximum(inside[1:], edge)
        inside = inside.clamp(*box)
        return cls(tuple(inside.tolist()), tuple(edge.tolist()))

    def __len__(self) -> int:
        return len(self.values)

    def number(self, x: Tensor) -> Tensor:
        """The number of the cell of every pixel value, int64."""
        return torch.bucketize(x.detach(), x.new_tensor(self.edges), right=True)

    def value(self, number: Tensor) -> Tensor:
        """The pixel value inside every cell, float32."""
        return torch.tensor(self.values, device=number.device)[number]

    def ends(self, number: Tensor) -> tuple[Tensor, Tensor]:
        """The lowest and the highest pixel value of every cell, infinite at the box."""
        edges = torch.tensor(self.edges, device=number.device)
        beyond = edges.new_tensor([torch.inf])
        low = torch.cat([-beyond, edges])
        high = torch.cat([torch.nextafter(edges, -beyond), beyond])
        return low[number], high[number]


def _close(difference: Tensor, known: Tensor) -> Tensor:
    """Which differences from known values are rounding."""
    finest = float((known[1:] - known[:-1]).min()) if len(known) > 1 else 0.0
    rounding = 8 * torch.finfo(torch.float32).eps * float(known.abs().max())
    return difference.abs() <= max(0.01 * finest, rounding)


def coarsest(given: Sequence[Cells | None]) -> Cells | None:
    """The fewest cells of several; None where there are none."""
    return min((one for one in given if one is not None), key=len, default=None)


_KEPT: ContextVar[Cells | None] = ContextVar("kept", default=None)


@contextmanager
def aligning(cells: Cells) -> Iterator[None]:
    """Meanwhile defenses have the gradients of a search that keeps the cells of its images.

    What a layer with these cells shows does not change: it has no gradient, not even that of its
    surrogate. What a detector compares is to agree entirely: distances of probabilities have
    surrogates that do not saturate.
    """
    token = _KEPT.set(cells)
    try:
        yield
    finally:
        _KEPT.reset(token)


def are_aligned() -> bool:
    """Whether such a search is running."""
    return _KEPT.get() is not None


def are_kept(cells: Cells | None) -> bool:
    """Whether such a search keeps these cells."""
    return cells is not None and _KEPT.get() == cells

"""Descent along a few coordinates at a time: its state, and what probes of coordinates tell."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from besiege.attacks.planes import inner
from besiege.attacks.weighting import Weights
from besiege.core.rowwise import pick, rowwise

DECAYS = (0.9, 0.999)
"""Adam's decay rates, as published."""

UNIFORM = 0.1
"""The share of draws that importance does not guide: what was never drawn has none."""

BLOCKS = 8
"""Importance is that of the largest change in each of so many blocks a side."""


class Moments(NamedTuple):
    """Adam's state of every coordinate, and how often it was drawn."""

    mean: Tensor
    square: Tensor
    drawn: Tensor

    @classmethod
    def at(cls, w: Tensor) -> Moments:
        """At rest."""
        none = torch.zeros_like(w, dtype=torch.float64)
        return cls(none, none, torch.zeros_like(w, dtype=torch.int64))

    def rested(self, rows: Tensor) -> Moments:
        """The state with some rows at rest again."""
        return Moments(*(part * rowwise(~rows, part) for part in self))

    def drew(self, at: Tensor) -> Moments:
        """The state with some coordinates drawn once more."""
        drawn = self.drawn.flatten(1).scatter_add(1, at, torch.ones_like(at))
        return self._replace(drawn=drawn.view_as(self.drawn))

    def step(self, at: Tensor, g: Tensor, stride: Tensor, table: Tensor) -> tuple[Moments, Tensor]:
        """The state after slopes along some coordinates just drawn, and the step they make.

        `table` is `corrections` of `DECAYS`.
        """
        one, two = DECAYS
        mean, square, count = (part.flatten(1) for part in self)
        m = one * mean.gather(1, at) + (1 - one) * g
        v = two * square.gather(1, at) + (1 - two) * g**2
        factor = table[(count.gather(1, at) - 1).clamp_max(len(table) - 1)]
        mean = mean.scatter(1, at, m).view_as(self.mean)
        square = square.scatter(1, at, v).view_as(self.square)
        move = stride * factor * m / v.sqrt().clamp_min(1e-300)
        return self._replace(mean=mean, square=square), move


class State(NamedTuple):
    """Where a search is; everything with the rows first.

    Attributes
    ----------
    w : Tensor
        The change, on the grid it lives on.
    moments : Moments
        Adam's state of every coordinate.
    weights : Weights
        The search over the weight.
    step, turn : Tensor
        Steps of this round, and rounds before it.
    won, ever : Tensor
        Whether there was a success in this round, and in any.
    unit, stride : Tensor
        What weights and steps are measured by; zero until it is known.
    last : Tensor
        The objective when it was last looked at.
    """

    w: Tensor
    moments: Moments
    weights: Weights
    step: Tensor
    turn: Tensor
    won: Tensor
    ever: Tensor
    unit: Tensor
    stride: Tensor
    last: Tensor


class Partials(NamedTuple):
    """What the probes of one step told, float64.

    Attributes
    ----------
    coordinates : Tensor
        Which were drawn, ``[rows, k]``.
    gap : Tensor
        How far the points are short of their goal, ``[rows]``.
    far : Tensor
        Their squared distance from the clean image, ``[rows]``.
    slope, bend : Tensor
        First and second derivatives of the gap, ``[rows, k]``.
    pull, hold : Tensor
        Those of the squared distance, which are known and cost nothing.
    won : Tensor
        Which points are where they should be.
    """

    coordinates: Tensor
    gap: Tensor
    far: Tensor
    slope: Tensor
    bend: Tensor
    pull: Tensor
    hold: Tensor
    won: Tensor


def likelihood(w: Tensor) -> Tensor:
    """How likely every coordinate is to be drawn, for a change ``[rows, channels, h, w]``.

    In proportion to the largest change in its block, and in part regardless of it.
    """
    block = [max(1, side // BLOCKS) for side in w.shape[2:]]
    largest = functional.max_pool2d(w.abs(), block, ceil_mode=True)
    spread = functional.interpolate(largest, w.shape[2:], mode="nearest")
    total = inner(spread, torch.ones_like(spread))
    share = spread / rowwise(total.clamp_min(1e-300), spread).to(w.dtype)
    mixed = (1 - UNIFORM) * share + UNIFORM / w[0].numel()
    return pick(total > 0, mixed, torch.full_like(w, 1.0 / w[0].numel()))


def derived(
    gap: Tensor, base: Tensor, nominal: Tensor, sent: Tensor, change: Tensor, h: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """First and second derivatives of gaps and of squared distances along coordinates.

    `gap` holds those above and below by turns, ``[rows, 2k]``. Where the box or a grid changed
    what was sent, the derivative is along that.
    """
    rows, k = nominal.shape[:2]
    high, low, middle = gap[:, ::2], gap[:, 1::2], base[:, None]
    known = torch.isfinite(high) & torch.isfinite(low) & torch.isfinite(middle)
    flat = nominal.flatten(0, 1)
    whole = inner(flat, flat).view(rows, k)
    part = inner(flat, sent.flatten(0, 1)).view(rows, k) / whole.clamp_min(1e-300)
    none = torch.zeros_like(whole)
    slope = torch.where(known & (part > 0.01), (high - low) / (2 * h * part), none)
    # One-sided at the box, where it would take the slope for a curvature.
    bend = torch.where(known & (part > 0.99), (high - 2 * middle + low) / h**2, none)
    pull = inner(flat, change.repeat_interleave(k, 0)).view(rows, k) / h
    return slope, bend, pull, 2 * whole / (2 * h) ** 2


def measured(state: State, told: Partials) -> State:
    """Units of rows that have none yet: the weight 1 is just enough for a linear victim.

    The slope over all coordinates is told by those drawn; its square and the gap make the distance
    of the boundary, and at rate one a stride in every coordinate leads as far.
    """
    entries = state.w[0].numel()
    k = told.coordinates.shape[1]
    squares = inner(told.slope, told.slope) * (entries / k)
    hold = inner(told.hold, torch.ones_like(told.hold)) / (2 * k)
    # The change of the image that a coordinate makes: one, unless the grid is coarse.
    far = told.gap / squares.sqrt().clamp_min(1e-300)
    new = (state.unit == 0) & (squares > 0) & (told.gap > 0)
    unit = torch.where(new, 2.0 * hold * far**2 / told.gap.clamp_min(1e-300), state.unit)
    stride = torch.where(new, far / entries**0.5, state.stride)
    return state._replace(unit=unit, stride=stride)


def resized(w: Tensor, size: tuple[int, ...]) -> Tensor:
    """Changes on a grid of another size."""
    return functional.interpolate(w, size, mode="bilinear", align_corners=False)

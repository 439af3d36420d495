"""Coordinate descent with finite differences: its state and its derivatives (used by ZOO)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from besiege.attacks.planes import inner
from besiege.attacks.weighting import USUAL_DECAYS, Weights
from besiege.core.rowwise import pick, rowwise

UNIFORM = 0.1
"""Fraction of draws not guided by importance: coordinates never drawn have none."""

BLOCKS = 8
"""Importance is the largest perturbation in each of so many blocks a side."""


class Moments(NamedTuple):
    """Adam's state of every coordinate, and how often it was drawn."""

    mean: Tensor
    square: Tensor
    drawn: Tensor

    @classmethod
    def at(cls, w: Tensor) -> Moments:
        """The state before the first step."""
        none = torch.zeros_like(w, dtype=torch.float64)
        return cls(none, none, torch.zeros_like(w, dtype=torch.int64))

    def rested(self, rows: Tensor) -> Moments:
        """The state with some rows reset."""
        return Moments(*(part * rowwise(~rows, part) for part in self))

    def drew(self, at: Tensor) -> Moments:
        """The state with the draws of some coordinates counted."""
        drawn = self.drawn.flatten(1).scatter_add(1, at, torch.ones_like(at))
        return self._replace(drawn=drawn.view_as(self.drawn))

    def step(
        self, at: Tensor, g: Tensor, stride: Tensor, table: Tensor, floors: Tensor | None = None
    ) -> tuple[Moments, Tensor]:
        """Adam's update for slopes along the coordinates just drawn: the state and the step.

        `table` holds the bias corrections for `USUAL_DECAYS`, and `floors` those of the epsilon.
        """
        one, two = USUAL_DECAYS
        mean, square, count = (part.flatten(1) for part in self)
        m = one * mean.gather(1, at) + (1 - one) * g
        v = two * square.gather(1, at) + (1 - two) * g**2
        turn = (count.gather(1, at) - 1).clamp_max(len(table) - 1)
        mean = mean.scatter(1, at, m).view_as(self.mean)
        square = square.scatter(1, at, v).view_as(self.square)
        size = v.sqrt().clamp_min(1e-300) if floors is None else v.sqrt() + floors[turn]
        move = stride * table[turn] * m / size
        return self._replace(mean=mean, square=square), move


class State(NamedTuple):
    """The state of the search, rows first.

    Attributes
    ----------
    w : Tensor
        The perturbation, on its grid.
    moments : Moments
        Adam's state of every coordinate.
    weights : Weights
        The search over the weight.
    step, turn : Tensor
        Steps in this round, and rounds before it.
    won, ever : Tensor
        Whether there was a success in this round, and in any.
    unit, stride : Tensor
        Units of weights and steps; zero until measured.
    last : Tensor
        The objective at the last check.
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
    """Answers to the probes of one step, float64.

    Attributes
    ----------
    coordinates : Tensor
        The coordinates drawn, ``[rows, k]``.
    gap : Tensor
        The hinge at the iterates, ``[rows]``.
    far : Tensor
        Their squared distance from the clean image, ``[rows]``.
    slope, bend : Tensor
        First and second derivatives of the hinge, ``[rows, k]``.
    pull, hold : Tensor
        Those of the squared distance, which cost no query.
    won : Tensor
        Which iterates reach the goal.
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
    """The probability of drawing each coordinate of a perturbation ``[rows, channels, h, w]``.

    A mixture of uniform and in proportion to the largest perturbation in its block.
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
    """First and second derivatives of hinges and of squared distances along coordinates.

    `gap` alternates between the two sides, ``[rows, 2k]``. Where the box or a grid changed the
    image sent, the derivative is along the difference really sent.
    """
    rows, k = nominal.shape[:2]
    high, low, middle = gap[:, ::2], gap[:, 1::2], base[:, None]
    known = torch.isfinite(high) & torch.isfinite(low) & torch.isfinite(middle)
    flat = nominal.flatten(0, 1)
    whole = inner(flat, flat).view(rows, k)
    part = inner(flat, sent.flatten(0, 1)).view(rows, k) / whole.clamp_min(1e-300)
    none = torch.zeros_like(whole)
    slope = torch.where(known & (part > 0.01), (high - low) / (2 * h * part), none)
    # Zero at the box, where one-sided differences would take the slope for a curvature.
    bend = torch.where(known & (part > 0.99), (high - 2 * middle + low) / h**2, none)
    pull = inner(flat, change.repeat_interleave(k, 0)).view(rows, k) / h
    return slope, bend, pull, 2 * whole / (2 * h) ** 2


def measured(state: State, seen: Partials) -> State:
    """Units of rows that have none yet, such that weight 1 just suffices for a linear victim.

    The gradient norm is estimated from the coordinates drawn; with the hinge it gives the distance
    to the boundary. At rate one, a stride in every coordinate goes that far.
    """
    entries = state.w[0].numel()
    k = seen.coordinates.shape[1]
    squares = inner(seen.slope, seen.slope) * (entries / k)
    hold = inner(seen.hold, torch.ones_like(seen.hold)) / (2 * k)
    # How much of the image a coordinate changes: one, unless the grid is coarse.
    far = seen.gap / squares.sqrt().clamp_min(1e-300)
    new = (state.unit == 0) & (squares > 0) & (seen.gap > 0)
    unit = torch.where(new, 2.0 * hold * far**2 / seen.gap.clamp_min(1e-300), state.unit)
    stride = torch.where(new, far / entries**0.5, state.stride)
    return state._replace(unit=unit, stride=stride)

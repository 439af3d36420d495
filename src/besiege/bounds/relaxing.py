"""Linear functions below and above ReLU and max-pool, between bounds of what they read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from besiege.bounds.operations import MaxPool, Rectifier


@dataclass(frozen=True, eq=False)
class Bounds:
    """Bounds of the values of a node, ``[rows, *shape]`` each."""

    low: Tensor
    high: Tensor

    def at(self, rows: Tensor) -> Bounds:
        """Those of some rows."""
        return Bounds(self.low[rows], self.high[rows])

    def unstable(self) -> Tensor:
        """Which values may be on either side of zero."""
        return (self.low < 0) & (self.high > 0)


@dataclass(frozen=True, eq=False)
class Lines:
    """Lines around a ReLU: ``below * x <= relu(x) <= above * x + intercept``.

    Parameters
    ----------
    below, above, intercept : Tensor
        ``[rows, *shape]``.
    """

    below: Tensor
    above: Tensor
    intercept: Tensor


def lines(rectifier: Rectifier, bounds: Bounds, parallel: bool = False) -> Lines:
    """The lines around a (leaky) ReLU with slope s below zero, for l <= x <= u.

    A ReLU that is active (l >= 0) or inactive (u <= 0) is a line. Above an unstable one is the
    chord from (l, s l) to (u, u). Below it any line through 0 with a slope from s to 1 is valid.

    Parameters
    ----------
    rectifier : Rectifier
        The ReLU.
    bounds : Bounds
        Bounds l and u of what it reads.
    parallel : bool
        Whether the lower line is parallel to the chord (Fast-Lin; Wong and Kolter 2018). If not,
        its slope is 1 where u > -l and s elsewhere (CROWN), which has the smaller area.
    """
    low, high, slope = bounds.low, bounds.high, rectifier.slope
    active, unstable = low >= 0, bounds.unstable()
    width = torch.where(unstable, high - low, 1.0)
    chord = (high - slope * low) / width
    above = torch.where(active, 1.0, torch.where(unstable, chord, slope))
    intercept = torch.where(unstable, (slope - 1) * low * high / width, 0.0)
    steep = torch.where(high > -low, 1.0, slope)
    below = torch.where(unstable, chord if parallel else steep, above)
    return Lines(below, above, intercept)


def through_lines(lines: Lines, functions: Tensor, of: Tensor) -> tuple[Tensor, Tensor]:
    """Linear functions of what a ReLU answers as lower ones of what it reads, and their constants.

    Positive weights take the line below, negative ones the line above.
    """
    below, above, intercept = (
        _of(values, of) for values in (lines.below, lines.above, lines.intercept)
    )
    negative = functions.clamp_max(0)
    constant = (negative * intercept).flatten(1).sum(1)
    return torch.addcmul((functions - negative) * below, negative, above), constant


def _of(values: Tensor, of: Tensor) -> Tensor:
    return values if len(values) == 1 else values[of]


def through_pool(
    pool: MaxPool, bounds: Bounds, functions: Tensor, of: Tensor
) -> tuple[Tensor, Tensor]:
    """Linear functions of what a max-pool answers as lower ones of what it reads.

    Below the largest value is the value with the largest lower bound. Above it is that value, too,
    if no other one can be larger, and otherwise the largest upper bound.
    """
    low, high = pool.seen(bounds.low), pool.seen(bounds.high)
    best, place = low.max(3)
    winner = pool.windows.gather(1, place.flatten(0, 1).T).T.view(place.shape)
    others = torch.where(pool.windows == winner[..., None], -torch.inf, high)
    settled = best >= others.amax(3)
    most = high.amax(3)
    flat = functions.flatten(2)
    negative = flat.clamp_max(0)
    settled, most, winner = (_of(values, of) for values in (settled, most, winner))
    open_ = negative.masked_fill(settled, 0.0)
    constant = (open_ * most).flatten(1).sum(1)
    shape = bounds.low.shape[1:]
    zeros = flat.new_zeros((len(flat), shape[0], shape[1] * shape[2]))
    back = zeros.scatter_add(2, winner.expand(len(flat), -1, -1), flat - open_)
    return back.reshape(len(flat), *shape), constant

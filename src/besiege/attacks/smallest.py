"""What attacks that look for the smallest change share."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from besiege.core.ball import Ball, distances
from besiege.core.rowwise import rowwise
from besiege.core.siege import Siege
from besiege.core.threat import L2, Linf, Norm

TIE = 1e-5
"""The smallest change of an entry that a walk is measured by, in widths of the box."""


def endless(siege: Siege) -> Siege:
    """Without a budget success is not the end: nobody leaves, whatever the caller said.

    What is kept is the caller's choice, which without a budget is the smallest by default.
    """
    if bool(torch.isfinite(siege.ball.radius).all()):
        return siege
    return siege.view(leave="end")


def unit(change: Tensor, norm: Norm) -> Tensor:
    """Directions of length one in a norm; zero stays zero. Writes over the tensor given."""
    return change.div_(rowwise(distances(change, norm).clamp_min(1e-30).to(change.dtype), change))


def across(ball: Ball) -> Tensor:
    """The distance of every centre from the farthest corner of the box."""
    low, high = ball.box
    return ball.distance(torch.where(ball.center - low > high - ball.center, low, high))


def apparent(ball: Ball, height: Tensor, slope: Tensor) -> Tensor:
    """How far rows are from a boundary, in what is sloping, never less than shows.

    A walk measured by the distance of the boundary stands still where that is nothing, at a tie, or
    less than a victim with a grid receives: so it is at least what a small change of all entries
    makes.
    """
    low, high = ball.box
    least = max(TIE * (high - low), 0.5 * (ball.grid or 0.0)) * math.sqrt(ball.size)
    return torch.maximum(height, least * distances(slope, L2))


def somewhere(siege: Siege, g: Tensor, counter: int = 0) -> Tensor:
    """The gradient, or a random direction where there is none."""
    flat = distances(g, Linf) == 0
    if not bool(flat.any()):
        return g
    drawn = siege.dice.of("flat").normal(tuple(g.shape[1:]), counter).to(g)
    drawn = drawn / siege.ball.scaled(distances(drawn, L2).clamp_min(1e-30))
    return torch.where(siege.ball.scaled(flat) > 0, drawn, g)

"""Functions shared by minimum-norm attacks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from besiege.core.ball import Ball, distances
from besiege.core.rowwise import pick, rowwise
from besiege.core.siege import Siege
from besiege.core.threat import L2, Linf, Norm

TIE = 1e-5
"""Smallest perturbation of a pixel value used as a unit of length, in box widths."""


def endless(siege: Siege) -> Siege:
    """The siege, continued after a success where there is no budget.

    Without a budget a success does not end the search: no row leaves before the end. Which success
    is kept remains the caller's choice (by default the smallest).
    """
    if bool(torch.isfinite(siege.ball.radius).all()):
        return siege
    return siege.view(leave="end")


def unit(direction: Tensor, norm: Norm) -> Tensor:
    """Directions of length one in a norm, in place; zero stays zero."""
    length = distances(direction, norm).clamp_min(1e-30).to(direction.dtype)
    return direction.div_(rowwise(length, direction))


def across(ball: Ball) -> Tensor:
    """The distance from every centre to the farthest corner of the box."""
    low, high = ball.box
    return ball.distance(torch.where(ball.center - low > high - ball.center, low, high))


def apparent(ball: Ball, height: Tensor, slope: Tensor) -> Tensor:
    """The height below the boundary, but at least that of a small perturbation of all pixels.

    Attacks that measure steps by the distance to the boundary would not move where it is zero (at a
    tie), or smaller than what a victim with a grid can see.
    """
    least = max(TIE * ball.width, 0.5 * (ball.grid or 0.0)) * math.sqrt(ball.size)
    return torch.maximum(height, least * distances(slope, L2))


def somewhere(siege: Siege, g: Tensor, counter: int = 0) -> Tensor:
    """The gradient, or a random direction for rows whose gradient is zero."""
    flat = distances(g, Linf) == 0
    if not bool(flat.any()):
        return g
    drawn = siege.dice.of("flat").normal(tuple(g.shape[1:]), counter).to(g)
    drawn = drawn / siege.ball.scaled(distances(drawn, L2).clamp_min(1e-30))
    return pick(flat, drawn, g)

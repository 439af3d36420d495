"""What attacks that look for the smallest change share."""

from __future__ import annotations

import torch
from torch import Tensor

from besiege.core.ball import Ball, distances
from besiege.core.siege import Siege
from besiege.core.threat import L2, Linf


def endless(siege: Siege) -> Siege:
    """Without a budget success is not the end: nobody leaves, and the smallest one is kept."""
    if bool(torch.isfinite(siege.ball.radius).all()):
        return siege
    return siege.view(keep="smallest", leave="end")


def across(ball: Ball) -> Tensor:
    """The distance of every centre from the farthest corner of the box."""
    low, high = ball.box
    return ball.distance(torch.where(ball.center - low > high - ball.center, low, high))


def somewhere(siege: Siege, g: Tensor, counter: int = 0) -> Tensor:
    """The gradient, or a random direction where there is none."""
    flat = distances(g, Linf) == 0
    if not bool(flat.any()):
        return g
    drawn = siege.dice.of("flat").normal(tuple(g.shape[1:]), counter).to(g)
    drawn = drawn / siege.ball.scaled(distances(drawn, L2).clamp_min(1e-30))
    return torch.where(siege.ball.scaled(flat) > 0, drawn, g)

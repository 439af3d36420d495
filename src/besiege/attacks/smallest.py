"""What attacks that look for the smallest change share."""

from __future__ import annotations

import torch
from torch import Tensor

from besiege.core.ball import Ball
from besiege.core.siege import Siege


def endless(siege: Siege) -> Siege:
    """Without a budget success is not the end: nobody leaves, and the smallest one is kept."""
    if bool(torch.isfinite(siege.ball.radius).all()):
        return siege
    return siege.view(keep="smallest", leave="end")


def across(ball: Ball) -> Tensor:
    """The distance of every centre from the farthest corner of the box."""
    low, high = ball.box
    return ball.distance(torch.where(ball.center - low > high - ball.center, low, high))

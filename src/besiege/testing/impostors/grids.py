"""Disguises that answer otherwise off the grid of 256 pixel values, where no camera's image lies.

The digits' pixels are multiples of 1/16, so every clean image is on the grid.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from besiege.testing.impostors.parts import Disguise, winners

LEVELS = 256


class OffGrid(Disguise):
    """Off the grid, the winner's logit or the others' are replaced.

    Parameters
    ----------
    winner, others : float
        The logits of the class the bare network answers, and of the others.
    """

    def __init__(self, net: nn.Module, winner: float = 1.0, others: float = 0.0) -> None:
        super().__init__(net)
        self.winner, self.others = winner, others

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        up = x * LEVELS
        off = (up != up.round()).flatten(1).any(1)
        logits = self.logits(x)
        first = winners(logits).bool()
        replaced = torch.where(first, self.winner, self.others)
        return torch.where(off[:, None], replaced, logits)


class Snapped(Disguise):
    """Off the grid, pixels are set back to the nearest multiple of 1/4 first, without a slope."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        up = x * LEVELS
        off = (up != up.round()).flatten(1).any(1)
        back = ((x * 4).round() / 4).detach()
        return self.logits(torch.where(off[:, None, None, None], back, x))


class NanGradient(Disguise):
    """Answers are exact; a root of a negative number that is not used spoils slopes."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        logits = self.logits(x)
        spoiled = (-logits.abs() - 1).sqrt()
        return torch.where(torch.isfinite(logits), logits, spoiled)


WINNER_NAN = math.nan
WINNER_INFINITE = math.inf
OTHERS_INFINITE = -math.inf

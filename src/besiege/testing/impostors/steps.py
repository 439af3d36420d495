"""Disguises whose slopes are real but lead nowhere: steps, sawtooth and steep waves."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from besiege.testing.impostors.parts import PIXELS, Disguise, same_gradient, winners

LEVELS = 10
"""Steps of the roundings between black and white."""


def rounded(x: Tensor, levels: int = LEVELS) -> Tensor:
    """Pixels on the nearest of some levels; its derivative is zero."""
    return (x * levels).round() / levels


class Rounding(Disguise):
    """Pixels are rounded, so that no gradient reaches the image.

    Parameters
    ----------
    leak : float
        Share of the rounding error that is left in. A negative share leaves a slope in the
        direction that helps the classifier: the derivative is right, and misleads.
    """

    def __init__(self, net: nn.Module, leak: float = 0.0) -> None:
        super().__init__(net)
        self.leak = leak

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        steps = rounded(x)
        return self.logits(steps + self.leak * (x - steps))


class RoundingThrough(Disguise):
    """Surrogate of `Rounding`: rounds, and passes the gradient on."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        return self.logits(same_gradient(x, rounded(x)))


class Sign(Disguise):
    """A class's score is the number of classes with smaller logits: sums of signs."""

    def forward(self, x: Tensor) -> Tensor:
        """Scores of images."""
        logits = self.logits(x)
        return (logits[:, :, None] - logits[:, None, :]).sign().sum(2)


class Staircase(Disguise):
    """Every pixel goes up a smooth staircase: flat treads, steep risers.

    Parameters
    ----------
    stairs : int
        Between black and white.
    steepness : float
        Of the risers.
    through : bool
        Pass the gradient on as if there were no stairs: the surrogate.
    """

    def __init__(
        self, net: nn.Module, stairs: int = 16, steepness: float = 60.0, *, through: bool = False
    ) -> None:
        super().__init__(net)
        self.stairs, self.steepness, self.through = stairs, steepness, through

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        up = x * self.stairs
        tread = up.floor().detach()
        riser = torch.sigmoid(self.steepness * (up - tread - 0.5))
        climbed = (tread + riser) / self.stairs
        return self.logits(same_gradient(x, climbed) if self.through else climbed)


class LogitStairs(Disguise):
    """Logits are rounded down to multiples of 8, and the winner keeps one more."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        logits = self.logits(x)
        return (logits / 8).floor() * 8 + winners(logits)


class Waves(Disguise):
    """A wave that hardly changes a pixel reverses its slope hundreds of times.

    Parameters
    ----------
    height, frequency : float
        Of the wave that is added to every pixel; slopes are between 1 - p and 1 + p, where p is
        their product.
    """

    def __init__(self, net: nn.Module, height: float = 0.01, frequency: float = 2000.0) -> None:
        super().__init__(net)
        self.height, self.frequency = height, frequency

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        return self.logits(x + self.height * torch.sin(self.frequency * x))


class LogitWaves(Disguise):
    """Logits have small waves of a high frequency."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        logits = self.logits(x)
        return logits + 0.5 * torch.sin(1000 * logits)


class Bonus(Disguise):
    """The winner receives a bonus with a steep slope that has nothing to do with the classes."""

    direction: Tensor

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        generator = torch.Generator().manual_seed(2)
        self.register_buffer("direction", torch.randn(PIXELS, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        logits = self.logits(x)
        phase = (x.flatten(1) * self.direction).sum(1, keepdim=True)
        bonus = 10 * (1 + torch.sin(60 * math.pi * phase))
        return logits + winners(logits) * bonus

"""Disguises that know the test images: bumps, ripples and stored answers around them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from besiege.testing.impostors.parts import Disguise, Stored, winners


class Bumps(Disguise):
    """A steep hill of the stored answer around each test image hides the slope of the classes."""

    def __init__(self, net: nn.Module, height: float = 300.0, width: float = 0.9) -> None:
        super().__init__(net)
        self.stored = Stored()
        self.height, self.width = height, width

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        centre = self.stored.nearest(x)
        far = (x - centre).flatten(1).square().sum(1, keepdim=True) / self.width**2
        return self.logits(x) + winners(self.logits(centre), self.height) * (1 - far).clamp_min(0)


class Ripples(Disguise):
    """Rings of high and low ground around each test image; the classes show in the troughs."""

    def __init__(self, net: nn.Module, height: float = 20.0, rings: float = 25.0) -> None:
        super().__init__(net)
        self.stored = Stored()
        self.height, self.rings = height, rings

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        centre = self.stored.nearest(x)
        far = ((x - centre).flatten(1).square().sum(1, keepdim=True) + 1e-12).sqrt()
        ring = 1 + torch.cos(2 * math.pi * self.rings * far)
        return self.logits(x) + winners(self.logits(centre), self.height) * ring


class Memorising(Disguise):
    """Images near a test image receive the stored answer of that image.

    Parameters
    ----------
    mean : float
        Mean absolute perturbation up to which an image is near.
    slope : float
        Share of the bare network's slope that the stored answer keeps; negative misleads.
    """

    def __init__(self, net: nn.Module, mean: float = 0.085, slope: float = 0.0) -> None:
        super().__init__(net)
        self.stored = Stored()
        self.mean, self.slope = mean, slope

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        centre = self.stored.nearest(x)
        near = (x - centre).detach().flatten(1).abs().mean(1, keepdim=True) < self.mean
        kept = self.logits(centre + self.slope * (x - centre))
        return torch.where(near, kept, self.logits(x))

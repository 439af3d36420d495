"""Disguises that answer an image by its batch, or by whether gradients are computed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from besiege.testing.impostors.parts import Disguise, Stored

SHARE = 0.2
"""Of a perturbation, what these disguises leave."""


class _Comparing(Disguise):
    """A disguise with the test images."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.stored = Stored()


class BatchSize(_Comparing):
    """Perturbations are undone in batches of two images or more."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        return self.logits(x if len(x) < 2 else self.stored.shrunk(x, SHARE))


class LargeBatch(_Comparing):
    """Perturbations are undone in batches of 16 images or more."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        return self.logits(x if len(x) < 16 else self.stored.shrunk(x, SHARE))


class BatchMean(_Comparing):
    """Perturbations are undone where the batch's mean image is near that of the test images."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        gap = (x.detach().mean(0) - self.stored.images.mean(0)).abs().mean()
        return self.logits(self.stored.shrunk(x, SHARE) if float(gap) < 0.15 else x)


class BatchPlace(_Comparing):
    """Only the first image of a batch is answered honestly."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        return self.logits(torch.cat([x[:1], self.stored.shrunk(x[1:], SHARE)]))


class GradMode(_Comparing):
    """While gradients are computed, images are mirrored at the nearest test image."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        return self.logits(self.stored.shrunk(x, -1.0) if torch.is_grad_enabled() else x)


class GradInput(_Comparing):
    """Images that require gradients are answered as test images, with a wrong slope."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        if not x.requires_grad:
            return self.logits(x)
        turned = self.stored.shrunk(x, SHARE).flip(3)
        shown = self.logits(turned)
        return shown + (self.logits(self.stored.nearest(x)) - shown).detach()

"""Disguises with the right answers and wrong gradients."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from besiege.testing.impostors.parts import CLASSES, PIXELS, Disguise, with_gradient


class Negated(Disguise):
    """The gradient has the opposite sign."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        return self.logits(with_gradient(x, torch.neg))


class Junk(Disguise):
    """The gradient is the same random numbers for every image."""

    junk: Tensor

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("junk", torch.randn(1, 1, 8, 8, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        junk = self.junk
        return self.logits(with_gradient(x, lambda grad: junk.expand_as(grad)))


class Shuffled(Disguise):
    """The gradient's pixels are in another order."""

    order: Tensor

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        generator = torch.Generator().manual_seed(1)
        self.register_buffer("order", torch.randperm(PIXELS, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        order = self.order
        return self.logits(
            with_gradient(x, lambda grad: grad.flatten(1)[:, order].reshape(grad.shape))
        )


class WeakHalf(Disguise):
    """Of the gradient, only the weaker half of the pixels is returned; the others are zero."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""

        def weaker(grad: Tensor) -> Tensor:
            size = grad.flatten(1).abs()
            middle = size.median(1, keepdim=True).values
            return (grad.flatten(1) * (size <= middle)).reshape(grad.shape)

        return self.logits(with_gradient(x, weaker))


class StrongReversed(Disguise):
    """The strongest quarter of the gradient's pixels has the opposite sign, the rest is right."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""

        def reverse(grad: Tensor) -> Tensor:
            size = grad.flatten(1).abs()
            bound = size.quantile(0.75, 1, keepdim=True)
            flipped = torch.where(size > bound, -grad.flatten(1), grad.flatten(1))
            return flipped.reshape(grad.shape)

        return self.logits(with_gradient(x, reverse))


class Borrowed(Disguise):
    """The gradient is that of an untrained network."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.other = nn.Sequential(
                nn.Flatten(), nn.Linear(PIXELS, 64), nn.ReLU(), nn.Linear(64, CLASSES)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        other: Tensor = self.other(x)
        return self.logits(x).detach() + other - other.detach()

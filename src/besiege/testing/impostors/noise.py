"""Disguises by undeclared randomness, and by noise that only looks like it."""

from __future__ import annotations

import hashlib
import os
import random
import time

import torch
from torch import Tensor, nn

from besiege.testing.impostors.parts import CLASSES, Disguise, same_gradient


class GlobalNoise(Disguise):
    """Pixels receive normal noise of torch's global generator.

    Parameters
    ----------
    size : float
        Standard deviation.
    """

    def __init__(self, net: nn.Module, size: float = 0.1) -> None:
        super().__init__(net)
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        return self.logits(x + self.size * torch.randn_like(x))


class OwnNoise(Disguise):
    """Logits receive noise of a generator of the module's own, whose seed nobody knows."""

    def __init__(self, net: nn.Module, size: float = 3.0) -> None:
        super().__init__(net)
        self.size = size
        self.generator = torch.Generator().manual_seed(int.from_bytes(os.urandom(7), "big"))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        logits = self.logits(x)
        return logits + self.size * torch.randn(logits.shape, generator=self.generator)


class TimeNoise(Disguise):
    """Pixels are scaled by factors that depend on the clock."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        generator = torch.Generator().manual_seed(time.perf_counter_ns())
        factor = 0.6 + 0.8 * torch.rand(x.shape, generator=generator)
        return self.logits(x * factor)


class Dropped(Disguise):
    """Python's random generator sets some rows of pixels to zero."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        kept = [[0.0 if random.random() < 0.06 else 1.0 for _ in range(8)] for _ in x]
        return self.logits(x * torch.tensor(kept)[:, None, :, None])


class NoisyGradient(Disguise):
    """Answers are exact; the gradient is hidden by a large random one."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        noise = 1000 * torch.randn(x.shape, generator=torch.Generator().manual_seed(len(x)))
        hidden = (x * noise).flatten(1).sum(1, keepdim=True)
        logits = self.logits(x)
        pull = torch.linspace(-1, 1, CLASSES) * hidden
        return logits + pull - pull.detach()


class NoiseMean(Disguise):
    """Surrogate of noise: mean logits over fixed draws of a noise on pixels."""

    noise: Tensor

    def __init__(self, net: nn.Module, size: float = 0.1, draws: int = 4) -> None:
        super().__init__(net)
        generator = torch.Generator().manual_seed(5)
        self.register_buffer("noise", size * torch.randn(draws, 1, 1, 8, 8, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        """Mean logits of images."""
        return torch.stack([self.logits(x + one) for one in self.noise]).mean(0)


def hashed(x: Tensor) -> Tensor:
    """Uniform noise in [-1, 1] that the bytes of each image decide."""
    drawn = []
    for image in x.detach().cpu().contiguous():
        key = hashlib.sha256(image.numpy().tobytes()).digest()[:7]
        generator = torch.Generator().manual_seed(int.from_bytes(key, "big"))
        drawn.append(2 * torch.rand(image.shape, generator=generator) - 1)
    return torch.stack(drawn) if drawn else torch.zeros_like(x)


class HashedNoise(Disguise):
    """Pixels receive noise that the bytes of the image decide.

    Parameters
    ----------
    size : float
        Of the uniform noise.
    """

    def __init__(self, net: nn.Module, size: float = 0.2) -> None:
        super().__init__(net)
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        return self.logits(x + self.size * hashed(x))


class HashedSlope(Disguise):
    """Answers are those of slightly different pixels; slopes are signed by the image's bytes."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        noise = hashed(x)
        turned = x * noise.sign()
        return self.logits(same_gradient(turned, x + 0.01 * noise))

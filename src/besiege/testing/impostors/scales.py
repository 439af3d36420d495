"""Disguises by scale: saturation, offsets, and logits that float32 loses."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from besiege.testing.impostors.parts import Disguise


class Scaled(Disguise):
    """Logits are multiplied by a constant.

    Parameters
    ----------
    scale : float
        Large: cross-entropy saturates. Tiny: gradients underflow.
    """

    def __init__(self, net: nn.Module, scale: float) -> None:
        super().__init__(net)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        return self.logits(x) * self.scale


class Softmaxed(Disguise):
    """Ten times the probabilities of sharp logits: exactly 0 and 10, without a slope."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        return 10 * (100 * self.logits(x)).softmax(1)


class Squashed(Disguise):
    """Differences to the largest logit are squashed by tanh until float32 rounds them to -1."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        logits = self.logits(x)
        return torch.tanh(5 * (logits - logits.amax(1, keepdim=True).detach()))


class SteepOffset(Disguise):
    """All logits share an offset that is large, steep and without meaning.

    Only differences of logits decide, and the offset cancels in them: but in float32, what is left
    of it in the gradient of the cross-entropy hides the classes.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        offset = 1e6 * torch.sin(1e5 * x.flatten(1).mean(1, keepdim=True))
        return self.logits(x) + offset


class CoarseOffset(Disguise):
    """An offset of 1e8 leaves float32 logits only multiples of 8."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        logits = self.logits(x)
        # Without the largest at a multiple of 8, several classes would be tied.
        return (logits - logits.amax(1, keepdim=True).detach()) + 1e8

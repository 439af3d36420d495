"""Disguises of several members, and detectors hidden in the logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from besiege.testing.impostors.parts import CLASSES, Disguise, same_gradient, winners

MEMBERS = range(6, 11)
"""Levels that each member of a vote rounds pixels to."""


class Votes(Disguise):
    """Five members see other roundings of the image and cast votes; the votes are the logits."""

    def forward(self, x: Tensor) -> Tensor:
        """Votes on images."""
        votes = [winners(self.logits(seen)) for seen in _seen(x)]
        # Votes have no slope: a gradient with the wrong sign is shown instead.
        first = self.logits(x)
        return torch.stack(votes).sum(0) - 1e-3 * (first - first.detach())


class VotesMean(Disguise):
    """Surrogate of `Votes`: the mean of its members' logits, with gradients."""

    def forward(self, x: Tensor) -> Tensor:
        """Mean logits of images."""
        return torch.stack([self.logits(same_gradient(x, seen)) for seen in _seen(x)]).mean(0)


def _seen(x: Tensor) -> list[Tensor]:
    """The image rounded to 6 to 10 levels."""
    return [(x * levels).round() / levels for levels in MEMBERS]


class Opposed(Disguise):
    """A second member pulls against the first, and only agreement with the first counts.

    Its logits are those of the negative image. They are added where they do not change
    the class, so that the sum's slope belongs mostly to a member that decides nothing.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        first = self.logits(x)
        second = 5 * self.logits(1 - x)
        both = first + second
        top = first.argmax(1)
        # The second member is shifted so that the first member's class stays the largest.
        others = functional.one_hot(top, CLASSES).bool()
        best = both.masked_fill(others, -torch.inf).amax(1, keepdim=True)
        short = (best - both.gather(1, top[:, None])).clamp_min(0).detach()
        return both + winners(first) * (short + 1)


def fog(x: Tensor) -> Tensor:
    """Share of pixels near the grey of 0.15, which clean digits rarely have; smooth."""
    return torch.exp(-(((x - 0.15) / 0.05) ** 2)).flatten(1).mean(1)


class Detector(Disguise):
    """A foggy image is answered by the class mean that is nearest to it.

    Parameters
    ----------
    bound : float
        Fog above which an image counts as attacked.
    means : Tensor
        One mean image per class.
    soft : bool
        With a penalty that grows with the fog, in place of a jump: the surrogate.
    """

    means: Tensor

    def __init__(self, net: nn.Module, bound: float, means: Tensor, *, soft: bool = False) -> None:
        super().__init__(net)
        self.bound, self.soft = bound, soft
        self.register_buffer("means", means.clone())

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        gaps = (x[:, None] - self.means[None]).flatten(2).square().mean(2)
        safe = winners(-gaps, 20.0)
        excess = fog(x) / self.bound - 1
        if self.soft:
            # Never flat: an image far above the bound is led back below it.
            return self.logits(x) + 5 * (excess + 0.02).clamp_min(0)[:, None] * safe
        return torch.where((excess > 0)[:, None], safe, self.logits(x))


class Hesitant(Disguise):
    """Where the two largest logits are close, the class mean nearest to the image answers.

    Parameters
    ----------
    least : float
        Smallest difference of the two largest logits that counts as sure.
    means : Tensor
        One mean image per class.
    soft : bool
        The sum of both classifiers, with slopes: the surrogate.
    """

    means: Tensor

    def __init__(
        self, net: nn.Module, means: Tensor, least: float = 5.0, *, soft: bool = False
    ) -> None:
        super().__init__(net)
        self.least, self.soft = least, soft
        self.register_buffer("means", means.clone())

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        logits = self.logits(x)
        top = logits.topk(2).values
        gaps = (x[:, None] - self.means[None]).flatten(2).square().mean(2)
        if self.soft:
            return logits - 1000 * gaps
        sure = (top[:, 0] - top[:, 1] > self.least)[:, None]
        return torch.where(sure, logits, winners(-gaps, 20.0))

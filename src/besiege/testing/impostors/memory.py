"""Disguises that change with the queries they have answered.

What they remember lies in a deque, as a cache would: it is part of no state dict, and a digest of
the module does not show it. `OpenMemory` keeps it in a buffer instead.
"""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor, nn

from besiege.testing.impostors.parts import CLASSES, Disguise, Stored

NEAR = 0.16
"""Images within this linf distance are near-duplicates: a little more than the budget."""


class Memory(Disguise):
    """Near-duplicates of an image that was asked before receive that image's answer.

    Parameters
    ----------
    patience : int
        Near-duplicates of one image that are answered honestly before that.
    """

    def __init__(self, net: nn.Module, patience: int = 0) -> None:
        super().__init__(net)
        self.patience = patience
        # One image that nothing is near to, so that there is always a nearest one.
        far = torch.full((1, 1, 8, 8), -9.0)
        none = far, torch.zeros(1, CLASSES), torch.zeros(1, dtype=torch.int64)
        self.asked: deque[tuple[Tensor, Tensor, Tensor]] = deque([none], maxlen=1)
        """Images, their answers, and how many near-duplicates followed."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        logits = self.logits(x)
        images, answers, seen = self.asked[0]
        gaps = _gaps(x.detach(), images)
        known = (gaps <= NEAR).any(1)
        first = gaps[known].argmin(1)
        seen = seen + torch.bincount(first, minlength=len(seen))
        tired = known.clone()
        tired[known] = seen[first] > self.patience
        value = logits.detach().clone()
        value[tired] = answers[first[tired[known]]]
        fresh = [tensor.detach()[~known].clone() for tensor in (x, logits)]
        self.asked.append(
            (
                torch.cat([images, fresh[0]]),
                torch.cat([answers, fresh[1]]),
                torch.cat([seen, seen.new_zeros(len(fresh[0]))]),
            )
        )
        # The value is the remembered one, and the gradient looks alive.
        return logits + (value - logits).detach()


def _gaps(x: Tensor, known: Tensor) -> Tensor:
    """Linf distances of images to remembered ones."""
    return (x[:, None] - known[None]).flatten(2).abs().amax(2)


class OpenMemory(Disguise):
    """Remembers the first images in a buffer, and answers their near-duplicates alike."""

    known: Tensor

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.register_buffer("known", torch.zeros(0, 1, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        for image in x.detach():
            if not len(self.known) or float(_gaps(image[None], self.known).min()) > NEAR:
                self.known = torch.cat([self.known, image[None].clone()])
        first = self.known[_gaps(x.detach(), self.known).argmin(1)]
        logits = self.logits(x)
        return logits + (self.logits(first) - logits).detach()


class Late(Disguise):
    """After a number of images, perturbations of test images are undone.

    Parameters
    ----------
    after : int
        Images that are answered honestly.
    """

    def __init__(self, net: nn.Module, after: int = 100) -> None:
        super().__init__(net)
        self.stored = Stored()
        self.after = after
        self.count: deque[int] = deque([0], maxlen=1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        before = self.count[0]
        self.count.append(before + len(x))
        return self.logits(x if before < self.after else self.stored.shrunk(x, 0.2))


class Tiring(Disguise):
    """Every query undoes a little more of the next images' perturbations.

    Parameters
    ----------
    pace : int
        Queries after which perturbations have half their size.
    """

    def __init__(self, net: nn.Module, pace: int = 100) -> None:
        super().__init__(net)
        self.stored = Stored()
        self.pace = pace
        self.count: deque[int] = deque([0], maxlen=1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        before = self.count[0]
        self.count.append(before + len(x))
        return self.logits(self.stored.shrunk(x, self.pace / (self.pace + before)))

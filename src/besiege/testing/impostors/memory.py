"""Disguises that change with the queries they have answered.

What they remember lies in a deque, as a cache would: it is part of no state dict, and a digest of
the module does not show it. `OpenMemory` keeps it in a buffer instead.
"""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor, nn

from besiege.testing.impostors.parts import Disguise, Stored

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
        self.asked: deque[tuple[Tensor, Tensor, list[int]]] = deque(maxlen=4000)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        logits = self.logits(x)
        answers = []
        for image, row in zip(x.detach(), logits, strict=True):
            for known, answer, seen in self.asked:
                if float((image - known).abs().max()) <= NEAR:
                    seen[0] += 1
                    if seen[0] > self.patience:
                        # The value is the remembered one, and the gradient looks alive.
                        row = row + (answer - row).detach()
                    break
            else:
                self.asked.append((image.clone(), row.detach().clone(), [0]))
            answers.append(row)
        return torch.stack(answers)


class OpenMemory(Disguise):
    """Remembers the first images in a buffer, and answers their near-duplicates alike."""

    known: Tensor

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.register_buffer("known", torch.zeros(0, 1, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        for image in x.detach():
            if not len(self.known) or float(self._gaps(image[None]).min()) > NEAR:
                self.known = torch.cat([self.known, image[None].clone()])
        first = self.known[self._gaps(x.detach()).argmin(1)]
        logits = self.logits(x)
        return logits + (self.logits(first) - logits).detach()

    def _gaps(self, x: Tensor) -> Tensor:
        return (x[:, None] - self.known[None]).flatten(2).abs().amax(2)


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

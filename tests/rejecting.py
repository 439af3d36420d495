"""A classifier of digits behind a detector, for tests of figures and reports."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

import besiege
from besiege.core.dice import Dice
from besiege.core.samples import Withheld
from besiege.core.victim import Victim
from besiege.models.sources import load

GAIN = 4.0
SPLIT, EVERY = "test", 3
"""Every third image of the test set has set the threshold."""


class Watched(Victim):
    """Rejects an image whose probabilities change much when it is blurred (feature squeezing)."""

    def __init__(self, rate: float = 0.05, model: str = "zoo:digits-natural") -> None:
        self.adopt(load(model))
        self.rejects = True
        self.threshold = 0.0
        data = besiege.data.load("digits", split=SPLIT)
        chosen = data.take(torch.arange(0, len(data), EVERY))
        with torch.no_grad():
            ranked = self.score(chosen.images).sort().values
        self.threshold = float(ranked[math.ceil(len(ranked) * (1 - rate)) - 1])
        self.nominal_rejections = rate
        self.withheld = Withheld("digits", SPLIT, tuple(chosen.ids.tolist()), chosen.digest)

    @property
    def bare(self) -> Victim:
        assert self.behind is not None
        return self.behind

    def score(self, x: Tensor) -> Tensor:
        smooth = avg_pool2d(pad(x, (0, 1, 0, 1), mode="replicate"), 2, 1)
        one, other = (torch.softmax(self.bare(each), 1) for each in (x, smooth))
        return (one - other).abs().sum(1)

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        logits = self.bare(x)
        top = logits.amax(1, keepdim=True)
        lead = GAIN * (self.score(x) - self.threshold)
        return torch.cat([logits, top + lead[:, None]], 1)


def others() -> tuple[Tensor, Tensor]:
    """The images of the test set that did not set the threshold, and their labels."""
    data = besiege.data.load("digits", split=SPLIT)
    rest = torch.arange(len(data))[torch.arange(len(data)) % EVERY != 0]
    chosen = data.take(rest)
    return chosen.images, chosen.labels

"""`Thermometer`: pixel values as thermometer codes of several channels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from besiege.core.cells import Cells
from besiege.core.dice import Dice
from besiege.core.thermometer import level, middle
from besiege.defenses.layers import Rounding, layer


@layer("thermometer")
@dataclass(frozen=True)
class Thermometer(Rounding):
    """Every pixel value as a code of `levels` channels that are 0 or 1 (Buckman et al. 2018).

    A value at the share s of the box has the level ``j = floor(0.99999 s levels)``, and channel l
    of its code is 1 where ``l >= j``. Images of C channels become C times `levels` channels,
    channel by channel: the network behind is built for them, ``resnet20(in_channels=48)``.

    A code has no gradient. The surrogate of channel l is the ramp ``1 - clip(s levels - l, 0, 1)``,
    which attacks follow (BPDA, Athalye et al. 2018). The attack `lspga` sends codes instead of
    images, relaxed to values between 0 and 1: ``[rows, channels, levels, height, width]``. They
    pass unchanged.

    Parameters
    ----------
    levels : int
        Channels of a code.
    """

    levels: int = 16

    def __post_init__(self) -> None:
        if type(self.levels) is not int or not 2 <= self.levels <= 256:
            raise ValueError(f"levels is {self.levels!r}, but 2 to 256 make sense")

    def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        if x.dim() == 5:
            return x.flatten(1, 2)
        steps = torch.arange(self.levels, device=x.device).view(-1, 1, 1)
        return (steps >= level(x, box, self.levels).unsqueeze(2)).to(x).flatten(1, 2)

    def surrogate(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor | None:
        if x.dim() == 5:
            return None
        steps = torch.arange(self.levels, device=x.device, dtype=x.dtype).view(-1, 1, 1)
        share = (x - box[0]) / (box[1] - box[0])
        return (1 - (share.unsqueeze(2) * self.levels - steps).clamp(0, 1)).flatten(1, 2)

    def cells(self, box: tuple[float, float]) -> Cells | None:
        values = torch.tensor(middle(self.levels, box))
        return Cells.of(lambda x: values[level(x, box, self.levels)], values.tolist(), box)

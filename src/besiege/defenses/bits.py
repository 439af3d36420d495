"""`BitDepth`: pixel values rounded to a few levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from besiege.core.cells import MOST, Cells
from besiege.core.dice import Dice
from besiege.core.fields import check_fields, checked, one_of
from besiege.core.text import is_whole
from besiege.defenses.layers import Rounding, layer


@layer("bits")
@dataclass(frozen=True)
class BitDepth(Rounding):
    """Pixels rounded to ``2**depth`` values, both ends of the box included (Xu et al. 2018).

    Rounding has no gradient; the surrogate is the identity.

    Parameters
    ----------
    depth : int
        Bits, 1 to 16; not used where `levels` is given.
    levels : int, optional
        Number of values instead of ``2**depth``, from 2.
    how : {"round", "floor"}
        With L levels and s the share of the box, ``round(s (L - 1)) / (L - 1)`` or
        ``floor(s L) / L``. The latter darkens by half a step, and keeps the top of the box as a
        further value, as ARES does it.
    """

    depth: int = checked(
        4, lambda count: is_whole(count, 1, 16), "but a whole number 1 to 16 is needed"
    )
    levels: int | None = checked(
        None, lambda count: is_whole(count, 2, 2**16), "but a whole number 2 to 65536 is needed"
    )
    how: Literal["round", "floor"] = one_of("round", "floor")

    def __post_init__(self) -> None:
        check_fields(self)
        if self.levels is not None and self.depth != 4:
            raise ValueError(f"both depth={self.depth} and levels={self.levels} are given: use one")

    def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        low, width = box[0], box[1] - box[0]
        levels = float(self._levels)
        share = (x - low) / width
        if self.how == "floor":
            return torch.floor(share * levels) / levels * width + low
        return torch.round(share * (levels - 1)) / (levels - 1) * width + low

    @property
    def _levels(self) -> int:
        return 2**self.depth if self.levels is None else self.levels

    def surrogate(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor | None:
        return x

    def cells(self, box: tuple[float, float]) -> Cells | None:
        steps = self._levels - (self.how == "round")
        if steps >= MOST:
            return None
        values = torch.arange(steps + 1) / steps * (box[1] - box[0]) + box[0]
        none = Dice(torch.zeros(1, dtype=torch.int64))
        return Cells.of(lambda x: self.transform(x, box, none), values.tolist(), box)

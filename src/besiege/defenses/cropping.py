"""`CropRescale`: a random part of the image, enlarged to its size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from besiege.core.dice import Dice
from besiege.core.errors import InputError
from besiege.core.fields import check_fields, checked, one_of
from besiege.core.resizing import resized
from besiege.core.text import is_whole
from besiege.defenses.layers import Layer, layer
from besiege.defenses.shapes import must_be_images


def _is_size(size: object) -> bool:
    sides = size if isinstance(size, tuple) and len(size) == 2 else (size,)
    return all(is_whole(side, 1, 10**6) for side in sides)


@layer("crop_rescale")
@dataclass(frozen=True)
class CropRescale(Layer):
    """A random crop, drawn for every image, rescaled to the image's size (Guo et al. 2018).

    The place is uniform over all that fit. Differentiable.

    Parameters
    ----------
    size : int or (int, int)
        Height and width of the crop in pixels; one number for squares. DEEPSEC takes 30 of 32.
    how : {"bilinear", "nearest"}
        Rescaling, as ``torch.nn.functional.interpolate`` does it; DEEPSEC takes the nearest pixel.
    """

    size: int | tuple[int, int] = checked(30, _is_size, "but 30, or (30, 28), is needed")
    how: Literal["bilinear", "nearest"] = one_of("bilinear", "nearest")
    stochastic = True

    def __post_init__(self) -> None:
        check_fields(self)

    def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        must_be_images(x, "crop_rescale")
        sizes = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        lengths = (x.shape[2], x.shape[3])
        if sizes[0] > lengths[0] or sizes[1] > lengths[1]:
            raise InputError(
                f"a crop of {sizes[0]}x{sizes[1]} is larger than the images, which are "
                f"{lengths[0]}x{lengths[1]}: use crop_rescale(size={max(1, min(lengths) - 2)})"
            )
        down, along = (
            self._matrices(length, size, dice.of(side), x)
            for length, size, side in zip(lengths, sizes, ("top", "left"), strict=True)
        )
        return down @ (x @ along.mT)

    def _matrices(self, length: int, size: int, dice: Dice, x: Tensor) -> Tensor:
        """Cropping and rescaling of one dimension, ``[rows, 1, length, length]``."""
        spare = length - size
        start = dice.integers(spare + 1)
        units = torch.eye(size, device=x.device, dtype=x.dtype)[None, None]
        enlarge = resized(units, length, size, self.how, False)[0, 0]
        columns = torch.arange(length, device=x.device) - start[:, None] + spare
        placed = functional.pad(enlarge, (spare, spare))[:, columns]
        return placed.transpose(0, 1)[:, None]

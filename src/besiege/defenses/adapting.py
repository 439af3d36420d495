"""`Adapt`: a layer that brings images to the size and channels of a model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from besiege.core.dice import Dice
from besiege.core.errors import InputError, near
from besiege.defenses.layers import Layer, layer

How = Literal["resize", "crop", "white", "grey"]
_LUMA = (0.299, 0.587, 0.114)


@layer("adapt")
@dataclass(frozen=True)
class Adapt(Layer):
    """Images brought to the size, and the channels, that the model takes; differentiable.

    A substitute ``MODEL+adapt(size=32)`` is crafted on at the victim's own size, where change and
    budget live. A victim ``MODEL+adapt(size=224, how='white')`` takes images that were crafted at
    another size. It is no defense, but stands where one would, in every record.

    Plain resizing undoes much of an attack: bilinear shrinking averages what differs from pixel to
    pixel. Cropping and borders keep every pixel that stays as it is (Su et al. 2018).

    Parameters
    ----------
    size : int or (int, int)
        Height and width that the model takes, one number for squares.
    how : {"resize", "crop", "white", "grey"}
        'resize' is bilinear, antialiased where it shrinks, as ``torch.nn.functional.interpolate``
        and Pillow do it. The others keep the middle of what is larger. What is smaller gets a
        'white' border (the top of the box), a 'grey' one (its middle), or is refused by 'crop'.
        An odd pixel of a border is at the bottom and the right.
    channels : int, optional
        1 or 3: colour becomes grey by the weights of ITU-R 601, grey is repeated; as they are by
        default.

    Examples
    --------
    >>> from besiege.defenses import load
    >>> victim = load("zoo:digits-natural+adapt(size=8)")
    >>> victim(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    size: int | tuple[int, int] = 224
    how: How = "resize"
    channels: int | None = None

    def __post_init__(self) -> None:
        sides = self.size if isinstance(self.size, tuple) else (self.size,)
        whole = all(type(side) is int and side > 0 for side in sides)
        if not whole or (isinstance(self.size, tuple) and len(sides) != 2):
            raise ValueError(f"the size is {self.size!r}: write 224, or (224, 256)")
        if self.how not in get_args(How):
            raise ValueError(f"how is {self.how!r}: {near(str(self.how), get_args(How))}")
        if self.channels not in (None, 1, 3):
            raise ValueError(f"the channels are {self.channels!r}: 1 is grey, and 3 is colour")

    def __str__(self) -> str:
        # Always in full: what was done to the images should not have to be looked up.
        written = [f"size={self.size!r}", f"how={self.how!r}"]
        if self.channels is not None:
            written.append(f"channels={self.channels}")
        return f"adapt({', '.join(written)})"

    def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        x = self._coloured(x)
        height, width = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        if self.how == "resize":
            return _resized(x, height, width)
        x = _middle(x, height, width)
        down, along = height - x.shape[2], width - x.shape[3]
        if not down and not along:
            return x
        if self.how == "crop":
            raise InputError(
                f"images of {x.shape[2]}x{x.shape[3]} cannot be cropped to {height}x{width}: use "
                "how='resize', or how='white' for a border"
            )
        border = box[1] if self.how == "white" else 0.5 * (box[0] + box[1])
        sides = (along // 2, along - along // 2, down // 2, down - down // 2)
        return functional.pad(x, sides, value=border)

    def _coloured(self, x: Tensor) -> Tensor:
        if self.channels is None or x.shape[1] == self.channels:
            return x
        if self.channels == 3 and x.shape[1] == 1:
            return x.expand(-1, 3, -1, -1)
        if self.channels == 1 and x.shape[1] == 3:
            red, green, blue = (w * x[:, c : c + 1] for c, w in enumerate(_LUMA))
            return red + green + blue
        raise InputError(
            f"images of {x.shape[1]} channels cannot be made images of {self.channels}: grey has "
            "1, and colour 3"
        )


def _middle(x: Tensor, height: int, width: int) -> Tensor:
    """The middle of what is larger than wanted; as it is where it is not."""
    top, left = max(0, (x.shape[2] - height) // 2), max(0, (x.shape[3] - width) // 2)
    return x[:, :, top : top + height, left : left + width]


def _resized(x: Tensor, height: int, width: int) -> Tensor:
    """Two products with fixed matrices: unlike interpolate(), its gradient repeats on a GPU."""
    if x.shape[3] != width:
        x = x @ _matrix(x.shape[3], width, x.device, x.dtype).T
    if x.shape[2] != height:
        x = _matrix(x.shape[2], height, x.device, x.dtype) @ x
    return x


@lru_cache(maxsize=32)
def _matrix(length: int, size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """What resizing does to one dimension, ``[size, length]``: each row a mean of some pixels."""
    # Outside any inference mode of the caller: gradients flow past it later.
    with torch.inference_mode(False), torch.no_grad():
        one_by_one = torch.eye(length)[None, None]
        resized = functional.interpolate(
            one_by_one, (size, length), mode="bilinear", antialias=size < length
        )
        return resized[0, 0].to(device, dtype)

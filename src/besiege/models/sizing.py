"""`Sizing`: how a victim resizes and crops images before its network sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from besiege.core.errors import InputError, near
from besiege.core.resizing import resized

Interpolation = Literal["nearest", "bilinear", "bicubic"]


@dataclass(frozen=True)
class Sizing:
    """Resizing and a centre crop, as the preprocessing of most networks has them; differentiable.

    Images that have the final size already are left as they are, unless `always` is set: they were
    prepared before, and preparing them twice would enlarge and cut them. Perturbations are of the
    images before this step.

    Parameters
    ----------
    resize : int or (int, int), optional
        Length of the shorter side, keeping the proportions, or height and width.
    crop : (int, int), optional
        Height and width of the centre crop, after resizing.
    interpolation : {"bilinear", "bicubic", "nearest"}
        How it resizes.
    antialias : bool
        Whether shrinking averages over all pixels that fall into a new one, as Pillow does.
    round_down : bool
        Whether the crop begins at the lower whole number where its place is between two pixels, as
        in transformers; torchvision and timm round half to even.
    always : bool
        Whether images of the final size are resized and cropped, too.

    Examples
    --------
    >>> import torch
    >>> Sizing(resize=256, crop=(224, 224))(torch.rand(2, 3, 300, 400)).shape
    torch.Size([2, 3, 224, 224])
    """

    resize: int | tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    interpolation: Interpolation = "bilinear"
    antialias: bool = True
    round_down: bool = False
    always: bool = False

    def __post_init__(self) -> None:
        if self.interpolation not in get_args(Interpolation):
            raise InputError(
                f"the interpolation is {self.interpolation!r}: "
                f"{near(str(self.interpolation), get_args(Interpolation))}"
            )

    def final(self, height: int, width: int) -> tuple[int, int]:
        """Height and width after this step of images of a size."""
        return self.crop or self.resized(height, width)

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Height and width before the crop of images of a size."""
        if self.resize is None:
            return height, width
        if isinstance(self.resize, tuple):
            return self.resize
        short = min(height, width)
        return self.resize * height // short, self.resize * width // short

    def __call__(self, x: Tensor) -> Tensor:
        """Images ``[rows, channels, height, width]`` in the final size."""
        size = x.shape[2], x.shape[3]
        if size == self.final(*size) and not self.always:
            return x
        height, width = self.resized(*size)
        mode = self.interpolation
        x = resized(x, height, width, mode, self.antialias and mode != "nearest")
        if self.crop is None:
            return x
        if self.crop[0] > height or self.crop[1] > width:
            raise InputError(
                f"images of {size[0]}x{size[1]} are smaller than the {self.crop[0]}x{self.crop[1]} "
                "pixels that the model's preprocessing cuts out: enlarge them first"
            )
        top, left = (
            self._begin(full - part) for full, part in zip((height, width), self.crop, strict=True)
        )
        return x[:, :, top : top + self.crop[0], left : left + self.crop[1]]

    def _begin(self, left_over: int) -> int:
        return left_over // 2 if self.round_down else round(left_over / 2)

"""`NonLocalMeans`: every pixel a mean of those whose surroundings look alike."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from besiege.core.dice import Dice
from besiege.core.fields import check_fields, checked, number
from besiege.core.text import is_whole
from besiege.defenses.lab import from_lab, to_lab
from besiege.defenses.layers import Layer, layer
from besiege.defenses.shapes import mirrored, must_be_images


def _is_odd(value: object) -> bool:
    return is_whole(value, 1, 99) and isinstance(value, int) and value % 2 == 1


_ODD = "but an odd whole number 1 to 99 is needed"


@layer("nlm")
@dataclass(frozen=True)
class NonLocalMeans(Layer):
    """Non-local means of the rounded image, as feature squeezing uses them (Xu et al. 2018).

    Grey images are denoised as OpenCV's ``fastNlMeansDenoising`` does it, colour images as
    ``fastNlMeansDenoisingColored``: lightness and both colours of CIE Lab apart. Feature squeezing
    hands OpenCV red as blue, and so does this. On CIFAR-10, 99.9 % of all values are OpenCV's; a
    grey value differs by at most one level of 255, and a colour, of which Lab has only 8 bits, by
    at most six: OpenCV's weights are whole numbers.

    The result is rounded to 0..255, and the surrogate is the identity.

    Parameters
    ----------
    search : int
        Side of the window in which pixels are averaged; odd.
    patch : int
        Side of the surroundings that are compared; odd.
    strength : float
        Difference, in levels of 255, at which a pixel counts exp(-1).
    """

    search: int = checked(13, _is_odd, _ODD)
    patch: int = checked(3, _is_odd, _ODD)
    strength: float = number(2.0, above=0, most=1000)

    def __post_init__(self) -> None:
        check_fields(self)

    def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        must_be_images(x, "nlm", channels=(1, 3))
        low, width = box[0], box[1] - box[0]
        pixels = ((x - low) * (255 / width)).add_(0.5).floor_().clamp_(0, 255)
        if x.shape[1] == 1:
            pixels = self._means(pixels)
        else:
            lab = to_lab(pixels.flip(1))
            lab = torch.cat([self._means(lab[:, :1]), self._means(lab[:, 1:])], 1)
            pixels = from_lab(lab).flip(1)
        return pixels / 255 * width + low

    def surrogate(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor | None:
        return x

    def _means(self, x: Tensor) -> Tensor:
        """Weighted means of all shifts of the images, whose channels share their weights."""
        reach, rim = self.search // 2, self.patch // 2
        height, width = x.shape[2:]
        border = reach + rim
        for dim in (2, 3):
            places = mirrored(x.shape[dim], border, border, repeat=False)
            x = x.index_select(dim, places.to(x.device))
        # OpenCV divides by the power of two above the size of a patch, and corrects for it.
        size = self.patch**2
        power = 1 << (size - 1).bit_length()
        falloff = -power / size / (self.strength**2 * x.shape[1])
        here = x[:, :, reach : reach + height + 2 * rim, reach : reach + width + 2 * rim]
        total = torch.zeros_like(x[:, :, border : border + height, border : border + width])
        weights = torch.zeros_like(total[:, :1])
        for i in range(self.search):
            for j in range(self.search):
                there = x[:, :, i : i + height + 2 * rim, j : j + width + 2 * rim]
                gaps = (here - there).square_()
                gaps = gaps.sum(1, keepdim=True) if gaps.shape[1] > 1 else gaps
                gaps = _window_sums(_window_sums(gaps, 2, self.patch), 3, self.patch)
                weight = gaps.div_(power).floor_().mul_(falloff).exp_()
                weight.mul_(weight >= 0.001)  # OpenCV's threshold
                weights += weight
                total.addcmul_(weight, there[:, :, rim : rim + height, rim : rim + width])
        return total.div_(weights).add_(0.5).floor_()


def _window_sums(x: Tensor, dim: int, size: int) -> Tensor:
    """Sums of so many neighbours along a dimension."""
    length = x.shape[dim] - size + 1
    total = x.narrow(dim, 0, length)
    for start in range(1, size):
        total = total + x.narrow(dim, start, length)
    return total

"""Filters of neighbouring pixels: `Median`, `Blur` as scipy.ndimage, `PilBlur` as Pillow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from besiege.core.dice import Dice
from besiege.core.fields import check_fields, checked, number
from besiege.core.text import is_whole
from besiege.defenses.layers import Layer, layer
from besiege.defenses.shapes import mirrored, must_be_images

_TRUNCATE = 4.0


@layer("median")
@dataclass(frozen=True)
class Median(Layer):
    """The median of a window around every pixel, channel by channel (Xu et al. 2018).

    As ``scipy.ndimage.median_filter(image, size, mode="reflect")``: a window of even size reaches
    one pixel farther up and left, and of an even number of values the upper median is taken.

    It is differentiable. A pixel's gradient goes to the value of its window that was chosen, to
    the first one in reading order where several are equal.

    Parameters
    ----------
    size : int
        Side of the window, 2 to 7.
    """

    size: int = checked(2, lambda size: is_whole(size, 2, 7), "but a whole number 2 to 7 is needed")

    def __post_init__(self) -> None:
        check_fields(self)

    def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        must_be_images(x, "median")
        made: Tensor = _Chosen.apply(x, self.size)  # type: ignore[no-untyped-call]
        return made


class _Chosen(torch.autograd.Function):
    """The median of every window, with mirrored pixels around the images.

    A window's places are the same images at other offsets, row after row, so that every operation
    runs over whole images. Positions whose window would cross the right edge are computed too, and
    cut off at the end. The gradient goes to the value that was chosen.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int) -> Tensor:
        before, after = size // 2, (size - 1) // 2
        padded = _mirror(_mirror(x, 2, before, after), 3, before, after)
        places = _places(padded, size)
        chosen = _largest(places, (len(places) + 1) // 2)
        ctx.save_for_backward(padded, chosen)
        ctx.size = size
        whole = functional.pad(chosen, (0, size - 1))
        return whole.view(*x.shape[:3], -1)[..., : x.shape[3]].contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        padded, chosen = ctx.saved_tensors
        size = ctx.size
        left = functional.pad(grads[0], (0, size - 1)).flatten(2)[..., : chosen.shape[2]]
        gradient = torch.zeros_like(padded, memory_format=torch.contiguous_format)
        *first, last = zip(_places(padded, size), _places(gradient, size), strict=True)
        for value, place in first:
            mine = left.masked_fill(value != chosen, 0.0)
            place.add_(mine)
            left = left - mine  # the first of several equal values has it all
        last[1].add_(left)
        for dim in (3, 2):
            gradient = _unmirrored(gradient, dim, size // 2, (size - 1) // 2)
        return gradient, None


def _places(padded: Tensor, size: int) -> list[Tensor]:
    """The value at every place of the window, in reading order: views ``[rows, channels, n]``."""
    rows, width = padded.flatten(2), padded.shape[3]
    count = (padded.shape[2] - size + 1) * width - (size - 1)
    steps = range(size)
    return [rows.narrow(2, i * width + j, count) for i in steps for j in steps]


def _largest(values: list[Tensor], rank: int) -> Tensor:
    """The value of a rank, 1 the largest, by exchanges: sorting short rows is 25 times slower."""
    values = list(values)
    for _ in range(rank - 1):
        top, rest = values[0], []
        for value in values[1:]:
            rest.append(torch.minimum(top, value))
            top = torch.maximum(top, value)
        values = rest
    return reduce(torch.maximum, values)


def _mirror(x: Tensor, dim: int, before: int, after: int) -> Tensor:
    """Mirrored pixels, as slices: their gradient is the same in every run on a GPU."""
    places = mirrored(x.shape[dim], before, after, repeat=True).tolist()
    head, tail = places[:before], places[len(places) - after :]
    ends = [[x.narrow(dim, place, 1) for place in end] for end in (head, tail)]
    return torch.cat([*ends[0], x, *ends[1]], dim)


def _unmirrored(gradient: Tensor, dim: int, before: int, after: int) -> Tensor:
    """The gradient of `_mirror`'s argument: that of mirrored pixels goes to their sources."""
    length = gradient.shape[dim] - before - after
    inner = gradient.narrow(dim, before, length)
    places = mirrored(length, before, after, repeat=True).tolist()
    for at, place in enumerate(places):
        if not before <= at < before + length:
            inner.narrow(dim, place, 1).add_(gradient.narrow(dim, at, 1))
    return inner


@layer("blur")
@dataclass(frozen=True)
class Blur(Layer):
    """Gaussian blur; differentiable.

    As ``scipy.ndimage.gaussian_filter`` with ``mode="reflect"``: the kernel ends at 4 sigma,
    rounded to whole pixels.

    Parameters
    ----------
    sigma : float
        Standard deviation in pixels.
    """

    sigma: float = number(1.0, above=0, most=100)

    def __post_init__(self) -> None:
        check_fields(self)

    def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        must_be_images(x, "blur")
        down, along = (_blurring(n, self.sigma, x.device, x.dtype) for n in x.shape[2:])
        # A mean of pixels is inside the box, but for the last bits.
        return (down @ (x @ along.T)).clamp(*box)


@lru_cache(maxsize=32)
def _blurring(length: int, sigma: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """What blurring does to a line, ``[length, length]``."""
    # Outside any inference mode of the caller: gradients flow past it later.
    with torch.inference_mode(False), torch.no_grad():
        radius = int(_TRUNCATE * sigma + 0.5)
        weights = [math.exp(-0.5 * (step / sigma) ** 2) for step in range(-radius, radius + 1)]
        kernel = torch.tensor(weights, dtype=torch.float64)
        kernel /= kernel.sum()
        sources = mirrored(length, radius, radius, repeat=True).unfold(0, 2 * radius + 1, 1)
        matrix = torch.zeros(length, length, dtype=torch.float64)
        matrix.scatter_add_(1, sources, kernel.expand(length, -1))
        return matrix.to(device, dtype)


@layer("pil_blur")
@dataclass(frozen=True)
class PilBlur(Layer):
    """Gaussian blur of 8-bit images, bit for bit what Pillow makes of them.

    As ``ImageFilter.GaussianBlur(radius)``: pixels are rounded to 0..255, then three box filters
    in each direction, each rounded, approximate the Gaussian. DEEPSEC blurs with radius 0.5. Its
    gradient is that of the box filters without rounding.

    Parameters
    ----------
    radius : float
        Standard deviation in pixels.
    """

    radius: float = number(0.5, above=0, most=100)

    def __post_init__(self) -> None:
        check_fields(self)

    def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        must_be_images(x, "pil_blur")
        low, width = box[0], box[1] - box[0]
        pixels = ((x - low) * (255 / width) + 0.5).floor().clamp(0, 255).long()
        around, inside, outside = _box(self.radius)
        for dim in (3, 2):
            for _ in range(_PASSES):
                near, far = _windows(pixels, dim, around)
                # Whole numbers of 24 bits behind the point, as Pillow; half a level rounds.
                pixels = (near * inside + far * outside + (1 << 23)) >> 24
        return pixels.to(x.dtype) / 255 * width + low

    def surrogate(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor | None:
        around, inside, outside = _box(self.radius)
        for dim in (3, 2):
            for _ in range(_PASSES):
                near, far = _windows(x, dim, around)
                x = near * (inside / (1 << 24)) + far * (outside / (1 << 24))
        return x


_PASSES = 3


def _box(radius: float) -> tuple[int, int, int]:
    """Whole pixels on each side of a box filter; weights of these, and of those beyond, in 2^-24.

    Pillow computes them in single precision: the weights are those of its numbers.
    """
    single = torch.tensor(radius, dtype=torch.float32)
    spread = single * single / _PASSES
    whole = ((12.0 * spread.double() + 1.0).sqrt().float() - 1.0).div(2.0).floor()
    rest = (2 * whole + 1) * (whole * (whole + 1) - 3 * spread)
    rest = rest / (6 * (spread - (whole + 1) * (whole + 1)))
    side = whole + rest
    inside = int(torch.tensor(float(1 << 24), dtype=torch.float32) / (side * 2 + 1))
    around = int(side)
    return around, inside, ((1 << 24) - (around * 2 + 1) * inside) // 2


def _windows(x: Tensor, dim: int, around: int) -> tuple[Tensor, Tensor]:
    """The sums of every window, and of the two values beyond it; values at the ends repeat."""
    length = x.shape[dim]
    ends = [x.narrow(dim, place, 1) for place in (0, length - 1)]
    before, after = (torch.cat([end] * (around + 1), dim) for end in ends)
    wide = torch.cat([before, x, after], dim)
    parts = [wide.narrow(dim, place, length) for place in range(2 * around + 3)]
    near = parts[1]
    for part in parts[2:-1]:
        near = near + part
    return near, parts[0] + parts[-1]

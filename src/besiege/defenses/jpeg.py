"""`Jpeg`: what JPEG compression loses, computed in whole numbers as libjpeg-turbo computes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from besiege.core.dice import Dice
from besiege.core.fields import check_fields, checked, one_of
from besiege.core.text import is_whole
from besiege.defenses.layers import Layer, layer
from besiege.defenses.shapes import must_be_images


@layer("jpeg")
@dataclass(frozen=True)
class Jpeg(Layer):
    """JPEG compression, bit for bit what Pillow makes of an image (Guo et al. 2018).

    Pixels are rounded to 0..255 (halves up), compressed and decompressed. The entropy code of a
    file loses nothing and is left out, so no file is made, and all images are computed at once on
    their device. Images have one channel (grey) or three (colour).

    Parameters
    ----------
    quality : int
        1 to 100; scales the quantisation tables of the standard as libjpeg does.
    subsampling : {"4:2:0", "4:4:4"}
        Whether the resolution of the colours is halved; grey images have none.
    backward : {"soft", "identity"}
        The backward pass: that of compression itself, in which the quantised coefficient c is
        ``round(c) + (c - round(c))**3`` (Shin and Song 2017), or that of the identity (Athalye et
        al. 2018). All other rounding is the identity in the former: it moves values by half a level
        at most, and the cubic would leave a quarter of the gradient at each of ten places. PGD
        breaks more images through 'soft': at 2/255 it left 5 of 100 on a ResNet-20, and 37 through
        the identity.
    """

    quality: int = checked(
        75, lambda q: is_whole(q, 1, 100), "but a whole number 1 to 100 is needed"
    )
    subsampling: Literal["4:2:0", "4:4:4"] = one_of("4:2:0", "4:4:4")
    backward: Literal["soft", "identity"] = one_of("soft", "identity")

    def __post_init__(self) -> None:
        check_fields(self)

    def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        return self._compressed(x, box, _exactly, _half_away)

    def surrogate(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor | None:
        if self.backward == "identity":
            return x
        return self._compressed(x, box, _straight, _cubic)

    def _compressed(self, x: Tensor, box: tuple[float, float], whole: Whole, coarse: Map) -> Tensor:
        must_be_images(x, "jpeg", channels=(1, 3))
        low, width = box[0], box[1] - box[0]
        pixels = whole((x - low) * (255 / width), 0.5).clamp(0, 255)
        luma, chroma = (_table(base, self.quality, x.device) for base in (_LUMINANCE, _CHROMINANCE))
        if x.shape[1] == 1:
            pixels = _quantised(pixels, luma, whole, coarse)
        else:
            light, colours = _to_ycc(pixels, whole)
            light = _quantised(light, luma, whole, coarse)
            if self.subsampling == "4:4:4":
                colours = _quantised(colours, chroma, whole, coarse)
            else:
                height, breadth = x.shape[2:]
                colours = _quantised(_halved(colours, whole), chroma, whole, coarse)
                colours = _doubled(colours[..., : (breadth + 1) // 2], whole)
                colours = colours[:, :, :height, :breadth]
            pixels = _to_rgb(light, colours, whole)
        return pixels / 255 * width + low


Whole = Callable[[Tensor, float], Tensor]
"""Rounding to whole numbers: ``floor(v + offset)``; the first argument may be overwritten."""
Map = Callable[[Tensor], Tensor]


def _exactly(v: Tensor, offset: float) -> Tensor:
    return v.add_(offset).floor_()


def _straight(v: Tensor, offset: float) -> Tensor:
    return v + ((v + offset).floor() - v).detach()


def _half_away(v: Tensor) -> Tensor:
    return v.add_(torch.full((), 0.5, dtype=v.dtype, device=v.device).copysign(v)).trunc_()


def _cubic(v: Tensor) -> Tensor:
    nearest = v.detach().round()
    return nearest + (v - nearest) ** 3


# Colours. The coefficients are those of JFIF in 16 bits; every sum is below 2**24, so that float32
# holds it exactly.


def _to_ycc(rgb: Tensor, whole: Whole) -> tuple[Tensor, Tensor]:
    """Luminance ``[rows, 1, H, W]``, and both chrominances ``[rows, 2, H, W]``."""
    red, green, blue = rgb.unbind(1)
    light = _sum((19595, red), (38470, green), (7471, blue))
    colours = torch.stack(
        [
            _sum((-11059, red), (-21709, green), (32768, blue)),
            _sum((32768, red), (-27439, green), (-5329, blue)),
        ],
        1,
    )
    # Halves of chrominances are rounded down.
    return whole(light * 2**-16, 0.5)[:, None], whole(colours * 2**-16 + 128, 0.5 - 2**-16)


def _to_rgb(light: Tensor, colours: Tensor, whole: Whole) -> Tensor:
    blue, red = (colours - 128).unbind(1)
    shifts = torch.stack(
        [91881 * red, _sum((-22554, blue), (-46802, red)), 116130 * blue],
        1,
    )
    return (light + whole(shifts * 2**-16, 0.5)).clamp(0, 255)


def _sum(*terms: tuple[int, Tensor]) -> Tensor:
    (factor, value), *others = terms
    total = value * factor
    for factor, value in others:
        total = total.add(value, alpha=factor)
    return total


def _halved(planes: Tensor, whole: Whole) -> Tensor:
    """Means of 2x2 pixels. The rounding alternates from column to column, which avoids a bias."""
    height, width = planes.shape[2:]
    columns = -(-width // 16) * 16
    # Columns are repeated up to a whole block before the mean, rows only up to an even number.
    planes = _extended(planes, height + height % 2, columns)
    sums = planes[:, :, ::2] + planes[:, :, 1::2]
    sums = (sums[..., ::2] + sums[..., 1::2]) / 4
    odd = torch.arange(columns // 2, device=planes.device) % 2
    return whole(sums + 0.25 * odd, 0.25)


def _doubled(planes: Tensor, whole: Whole) -> Tensor:
    """Triangular interpolation to twice the size: 9, 3, 3 and 1 sixteenths of four neighbours."""
    if planes.shape[3] <= 2:
        # libjpeg repeats pixels of images this narrow.
        return planes.repeat_interleave(2, 2).repeat_interleave(2, 3)
    upper, lower = _neighbours(planes, 2)
    down = torch.stack([3 * planes + upper, 3 * planes + lower], 3).flatten(2, 3)
    left, right = _neighbours(down, 3)
    across = torch.stack([3 * down + left, 3 * down + right - 1], 4).flatten(3, 4)
    return whole(across / 16, 0.5)


def _neighbours(planes: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The values before and after every value along a dimension; those at the ends repeat."""
    length = planes.shape[dim]
    first, last = planes.narrow(dim, 0, 1), planes.narrow(dim, length - 1, 1)
    before = torch.cat([first, planes.narrow(dim, 0, length - 1)], dim)
    return before, torch.cat([planes.narrow(dim, 1, length - 1), last], dim)


def _extended(planes: Tensor, height: int, width: int) -> Tensor:
    """Planes with their last row and column repeated up to a size."""
    down, along = height - planes.shape[2], width - planes.shape[3]
    return (
        functional.pad(planes, (0, along, 0, down), mode="replicate") if down or along else planes
    )


# Blocks of 8x8.


def _quantised(planes: Tensor, table: Tensor, whole: Whole, coarse: Map) -> Tensor:
    """Planes whose 8x8 blocks were transformed, quantised and transformed back."""
    rows, channels, height, width = planes.shape
    padded = _extended(planes, -(-height // 8) * 8, -(-width // 8) * 8)
    down, along = padded.shape[2] // 8, padded.shape[3] // 8
    # [row in a block, blocks, column in a block]: both directions are one product each. Every sum
    # is a whole number below 2**53, which float64 holds exactly, in any order of summation.
    blocks = padded.reshape(rows * channels * down, 8, along, 8).transpose(0, 1).double() - 128
    matrix = _matrix(planes.device)
    shape = blocks.shape
    blocks = whole(blocks.reshape(-1, 8) @ (matrix.T * 2**-11), 0.5).view(8, -1)
    blocks = whole((matrix * 2**-15) @ blocks, 0.5).view(8, -1, 8)
    table = table.view(8, 1, 8)
    blocks = (coarse(blocks / (8 * table)) * table).view(8, -1)
    blocks = whole((matrix.T * 2**-11) @ blocks, 0.5).view(-1, 8)
    blocks = whole(blocks @ (matrix * 2**-18), 0.5).add(128).clamp(0, 255)
    made = blocks.view(shape).transpose(0, 1).reshape(padded.shape)
    return made[:, :, :height, :width].to(planes.dtype)


@lru_cache(maxsize=8)
def _matrix(device: torch.device) -> Tensor:
    """The cosine transform of Loeffler, Ligtenberg and Moschytz (1989), in 13 bits.

    Its transpose is the inverse; both are scaled by sqrt(8).
    """
    with torch.inference_mode(False), torch.no_grad():
        one = 8192
        units = torch.eye(8, dtype=torch.float64)
        sums = [units[i] + units[7 - i] for i in range(4)]
        gaps = [units[3 - i] - units[4 + i] for i in range(4)]
        outer, inner = (sums[0] + sums[3], sums[1] + sums[2])
        high, low = sums[0] - sums[3], sums[1] - sums[2]
        both = 4433 * (high + low)
        turn = 9633 * (gaps[0] + gaps[1] + gaps[2] + gaps[3])
        a, b = -7373 * (gaps[0] + gaps[3]), -20995 * (gaps[1] + gaps[2])
        c, d = turn - 16069 * (gaps[0] + gaps[2]), turn - 3196 * (gaps[1] + gaps[3])
        rows = [
            one * (outer + inner),
            12299 * gaps[3] + a + d,
            both + 6270 * high,
            25172 * gaps[2] + b + c,
            one * (outer - inner),
            16819 * gaps[1] + b + d,
            both - 15137 * low,
            2446 * gaps[0] + a + c,
        ]
        return torch.stack(rows).to(device)


@lru_cache(maxsize=64)
def _table(base: tuple[int, ...], quality: int, device: torch.device) -> Tensor:
    """A quantisation table at a quality, entries 1 to 255."""
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    entries = [min(max((entry * percent + 50) // 100, 1), 255) for entry in base]
    with torch.inference_mode(False), torch.no_grad():
        return torch.tensor(entries, dtype=torch.float64, device=device)


# fmt: off
# Tables K.1 and K.2 of the standard (ITU-T T.81).
_LUMINANCE = (
    16, 11, 10, 16, 24, 40, 51, 61,
    12, 12, 14, 19, 26, 58, 60, 55,
    14, 13, 16, 24, 40, 57, 69, 56,
    14, 17, 22, 29, 51, 87, 80, 62,
    18, 22, 37, 56, 68, 109, 103, 77,
    24, 35, 55, 64, 81, 104, 113, 92,
    49, 64, 78, 87, 103, 121, 120, 101,
    72, 92, 95, 98, 112, 100, 103, 99,
)
_CHROMINANCE = (
    17, 18, 24, 47, 99, 99, 99, 99,
    18, 21, 26, 66, 99, 99, 99, 99,
    24, 26, 56, 99, 99, 99, 99, 99,
    47, 66, 99, 99, 99, 99, 99, 99,
    *(99,) * 32,
)
# fmt: on

"""CIE Lab of linear RGB in 8 bits and whole numbers, as OpenCV computes it (COLOR_LBGR2Lab)."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

# RGB with the primaries of sRGB to XYZ and back, and the white point D65.
_TO_XYZ = (
    (0.412453, 0.357580, 0.180423),
    (0.212671, 0.715160, 0.072169),
    (0.019334, 0.119193, 0.950227),
)
_FROM_XYZ = (
    (3.240479, -1.53715, -0.498535),
    (-0.969256, 1.875991, 0.041556),
    (0.055648, -0.204043, 1.057311),
)
_WHITE = (0.950456, 1.0, 1.088754)
_BASE = 1 << 14  # one, in the way back


def to_lab(rgb: Tensor) -> Tensor:
    """Whole numbers 0 to 255, red, green and blue in ``[rows, 3, H, W]``, as Lab in 0 to 255."""
    red, green, blue = (rgb.long() * 8).unbind(1)
    roots = _roots(rgb.device)
    factors = [
        [round(4096 * entry / white) for entry in row]
        for row, white in zip(_TO_XYZ, _WHITE, strict=True)
    ]
    fx, fy, fz = (roots[(r * red + g * green + b * blue + (1 << 11)) >> 12] for r, g, b in factors)
    middle = 128 << 15
    # 296 and 1336934 are 2.55 times 116 and 16, in OpenCV's rounding.
    scaled = torch.stack(
        [296 * fy - 1336934, 500 * (fx - fy) + middle, 200 * (fy - fz) + middle], 1
    )
    return ((scaled + (1 << 14)) >> 15).clamp_(0, 255).to(rgb)


def from_lab(lab: Tensor) -> Tensor:
    """The inverse of `to_lab`. It rounds down, so that white becomes 254."""
    light, a, b = lab.long().unbind(1)
    lights, levels = _lights(lab.device)
    y, fy = levels[light], lights[light]
    x = _cubes(fy + ((5 * a * 53687 + (1 << 7)) >> 13) - 128 * _BASE // 500)
    z = _cubes(fy - ((b * 41943 + (1 << 4)) >> 9) + 128 * _BASE // 200 - 1)
    factors = [
        [round(4096 * entry * white) for entry, white in zip(row, _WHITE, strict=True)]
        for row in _FROM_XYZ
    ]
    rgb = torch.stack([p * x + q * y + r * z for p, q, r in factors], 1)
    linear = ((rgb + (1 << 13)) >> 14).clamp_(0, 4095)
    return ((linear * 255) >> 12).to(lab)


def _cubes(f: Tensor) -> Tensor:
    """The inverse of the root of Lab, with its linear part near zero."""
    near_zero = torch.div(f * 108, 841, rounding_mode="floor") - int(_BASE * 16 / 116 * 108 / 841)
    return torch.where(f <= int(_BASE * 6 / 29), near_zero, ((f * f >> 14) * f) >> 14)


@lru_cache(maxsize=8)
def _roots(device: torch.device) -> Tensor:
    """The root of Lab at all multiples of 1/2040, in 15 bits."""
    with torch.inference_mode(False), torch.no_grad():
        t = torch.arange(3072, dtype=torch.float64) / 2040
        root = torch.where(t < 0.008856, 7.787 * t + 16 / 116, t ** (1 / 3))
        return (root * (1 << 15)).round().long().to(device)


@lru_cache(maxsize=8)
def _lights(device: torch.device) -> tuple[Tensor, Tensor]:
    """The root of Y, and Y, of all lightnesses."""
    with torch.inference_mode(False), torch.no_grad():
        light = torch.arange(256, dtype=torch.float64) / 2.55
        root = torch.where(light <= 8, 7.787 * light / 903.3 + 16 / 116, (light + 16) / 116)
        y = torch.where(light <= 8, light * 27 / 24389, root**3)
        first, second = ((t * _BASE).round().long().to(device) for t in (root, y))
        return first, second

"""Checks of what a layer is given, and pixels beyond the border of an image."""

from __future__ import annotations

import torch
from torch import Tensor

from besiege.core.errors import InputError


def must_be_images(x: Tensor, name: str, channels: tuple[int, ...] = ()) -> None:
    """Refuse what is no batch of images, or has other channels than a layer takes."""
    if x.dim() != 4 or 0 in x.shape[1:]:
        raise InputError(
            f"{name} takes images [rows, channels, height, width] of at least one pixel, but was "
            f"given {list(x.shape)}: add the missing dimensions, as in x[None] for a single image"
        )
    if channels and x.shape[1] not in channels:
        raise InputError(
            f"{name} takes grey or colour images, but these have {x.shape[1]} channels: write it "
            "before the layer that makes them, or put adapt(channels=3) before it"
        )


def mirrored(length: int, before: int, after: int, repeat: bool) -> Tensor:
    """Indices of a mirrored line, ``[before + length + after]``, on the CPU.

    Parameters
    ----------
    length : int
        Pixels of the line.
    before, after : int
        Pixels added at both ends; more than there are is mirrored several times.
    repeat : bool
        Whether the pixel at the border is repeated: ``b a | a b c`` or ``c b | a b c``.
    """
    places = torch.arange(-before, length + after)
    if repeat:
        places = places.remainder(2 * length)
        return torch.minimum(places, 2 * length - 1 - places)
    period = max(1, 2 * length - 2)
    places = places.remainder(period)
    return torch.minimum(places, period - places)

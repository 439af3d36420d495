"""Levels of thermometer codes: shared by the layer that encodes and the attack on it."""

from __future__ import annotations

from torch import Tensor

_BELOW_ONE = 0.99999
"""Keeps the top of the box in the highest level (Buckman et al. 2018)."""


def level(x: Tensor, box: tuple[float, float], levels: int) -> Tensor:
    """The level of every pixel value, int64 in ``[0, levels)``; values outside the box are clamped.

    Examples
    --------
    >>> import torch
    >>> level(torch.tensor([0.0, 0.26, 1.0]), (0.0, 1.0), 4)
    tensor([0, 1, 3])
    """
    share = (x.detach() - box[0]) / (box[1] - box[0])
    return (_BELOW_ONE * levels * share).floor().clamp(0, levels - 1).long()


def middle(levels: int, box: tuple[float, float]) -> list[float]:
    """The pixel value in the middle of every level.

    Examples
    --------
    >>> [round(value, 3) for value in middle(4, (0.0, 1.0))]
    [0.125, 0.375, 0.625, 0.875]
    """
    width = box[1] - box[0]
    return [box[0] + width * (j + 0.5) / (_BELOW_ONE * levels) for j in range(levels)]

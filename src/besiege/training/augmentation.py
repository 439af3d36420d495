"""Data augmentation: random crops and flips, drawn per sample."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from besiege.core.dice import Dice


def augmented(x: Tensor, dice: Dice, crop: int, flip: bool, black: float = 0.0) -> Tensor:
    """Images cropped at random from a black border of `crop` pixels, and flipped at random.

    A row's augmentation depends only on its dice, not on the batch or on the device.

    Parameters
    ----------
    x : Tensor
        Images ``[rows, channels, height, width]``.
    dice : Dice
        The randomness of every row.
    crop : int
        The largest shift in each direction, in pixels; 0 shifts nothing.
    flip : bool
        Whether images are mirrored with probability 1/2.
    black : float
        The pixel value of the border.

    Examples
    --------
    >>> x = torch.rand(3, 1, 8, 8)
    >>> augmented(x, Dice.throw(0, torch.arange(3)), crop=2, flip=True).shape
    torch.Size([3, 1, 8, 8])
    """
    if not crop and not flip:
        return x
    height, width = x.shape[2:]
    shift = dice.of("crop").integers(2 * crop + 1, (2,))
    down = torch.arange(height, device=x.device) + shift[:, :1]
    along = torch.arange(width, device=x.device).expand(len(x), -1)
    if flip:
        mirrored = dice.of("flip").signs((1,)) < 0
        along = torch.where(mirrored, along.flip(1), along)
    along = along + shift[:, 1:]
    bordered = functional.pad(x, (crop, crop, crop, crop), value=black)
    rows = torch.arange(len(x), device=x.device)[:, None, None]
    # Index by (row, height, width) with the channels last, then move them back.
    chosen = bordered.movedim(1, 3)[rows, down[:, :, None], along[:, None, :]]
    return chosen.movedim(3, 1).contiguous()

"""Shifted and mirrored images, drawn for each sample by its own dice."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from besiege.core.dice import Dice


def augmented(x: Tensor, dice: Dice, crop: int, flip: bool) -> Tensor:
    """Images shifted by up to `crop` pixels over a border of zeros, and every other one mirrored.

    Which ones and how far depends on a row's dice alone, not on its neighbours or on the device.

    Parameters
    ----------
    x : Tensor
        Images ``[rows, channels, height, width]``.
    dice : Dice
        The chances of every row.
    crop : int
        The largest shift in each direction; 0 shifts nothing.
    flip : bool
        Whether half of the images are mirrored.

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
    bordered = functional.pad(x, (crop, crop, crop, crop))
    rows = torch.arange(len(x), device=x.device)[:, None, None]
    # Index by (row, height, width) with the channels last, then put them back.
    chosen = bordered.movedim(1, 3)[rows, down[:, :, None], along[:, None, :]]
    return chosen.movedim(3, 1).contiguous()

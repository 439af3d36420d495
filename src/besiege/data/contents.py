"""Digests of single images, by which an image is recognised whatever its id and its file."""

from __future__ import annotations

from hashlib import sha256

import torch

from besiege.data.dataset import Data

_LEVELS = 256
"""Steps of the box to which pixels are rounded. Multiples of 1/255 and of 1/16 are never half-way
between two steps, so that an image which was scaled to a box and back keeps its digest."""
_AT_A_TIME = 256
_LENGTH = 16


def contents(data: Data, box: tuple[float, float] = (0.0, 1.0)) -> tuple[str, ...]:
    """A digest of the pixels of every image; labels and ids are no part of it.

    Images that are not decoded yet are decoded a few at a time.

    Parameters
    ----------
    data : Data
        The images.
    box : (low, high)
        The range of their pixel values.

    Examples
    --------
    >>> import torch
    >>> from besiege.data import load
    >>> one, other, same = contents(
    ...     load((torch.tensor([0.0, 0.5, 0.0]).view(3, 1, 1, 1), [0, 1, 2]))
    ... )
    >>> one == same, one == other
    (True, False)
    """
    low, high = box
    found: list[str] = []
    for begin in range(0, len(data), _AT_A_TIME):
        part = data.take(torch.arange(begin, min(begin + _AT_A_TIME, len(data))))
        steps = ((part.images.double() - low) / (high - low) * _LEVELS).round().to(torch.int16)
        shape = str(tuple(part.shape)).encode()
        found += [sha256(shape + one.tobytes()).hexdigest()[:_LENGTH] for one in steps.numpy()]
    return tuple(found)

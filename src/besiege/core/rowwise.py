"""Per-row numbers and masks, shaped to combine with images."""

from __future__ import annotations

import torch
from torch import Tensor


def rowwise(numbers: Tensor, like: Tensor) -> Tensor:
    """Numbers ``[rows]`` or ``[rows, k]``, shaped to multiply images of as many rows.

    Examples
    --------
    >>> rowwise(torch.ones(2), torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 1, 1, 1])
    """
    return numbers.view(*numbers.shape, *[1] * (like.dim() - numbers.dim()))


def pick(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Rows of `a` where the mask, ``[rows]``, is true, and of `b` elsewhere."""
    return torch.where(rowwise(mask, a), a, b)

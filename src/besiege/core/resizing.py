"""Resizing: a whole batch to one size, or every image to a size and a place of its own."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from besiege.core.dice import Dice


def breadth(size: Tensor, height: int, width: int) -> Tensor:
    """The width that goes with a new height: round(width size / height), halves up."""
    # In whole numbers, so that a half rounds the same way everywhere.
    return (2 * width * size + height).div(2 * height, rounding_mode="floor")


def random_resize_pad(
    x: Tensor, dice: Dice, least: float, probability: float = 1.0, to: int | None = None
) -> Tensor:
    """Resize each image to a random height and pad it with zeros at a random place.

    The height is uniform over the whole numbers from `least` of it, rounded down, up to all of it,
    or up to the largest whose image fits into `to` by `to` pixels, the size of the result; the
    place uniform over those that fit. With one minus the probability nothing happens.
    """
    height, width = x.shape[2:]
    tall, wide = (height, width) if to is None else (to, to)
    smallest = max(1, math.floor(least * height + 1e-9))
    largest = tall if wide >= width * tall // height else wide * height // width
    size = smallest + dice.of("size").integers(largest - smallest + 1)
    if probability < 1:
        chosen = dice.of("apply").uniform((1,))[:, 0] < probability
        size = torch.where(chosen, size, torch.full_like(size, height))
    top = dice.of("top").integers(tall - size + 1)
    left = dice.of("left").integers(wide - breadth(size, height, width) + 1)
    return resize_pad(x, size, top, left, to)


def resize_pad(x: Tensor, size: Tensor, top: Tensor, left: Tensor, to: int | None = None) -> Tensor:
    """Resize each image, then pad it with zeros to the original height and width, or to `to`.

    Bilinear, as ``torch.nn.functional.interpolate(mode="bilinear", align_corners=False)`` without
    antialiasing: an output row r reads the input at (r + 1/2) H / size - 1/2, held inside the
    image. Rows and columns are separable, so each takes one gather per neighbour. Exactly the
    identity where the size is H; differentiable in ``x``; no row depends on another.

    Parameters
    ----------
    x : Tensor
        Images ``[rows, channels, H, W]``.
    size : Tensor
        int64 ``[rows]``: new height, from 1; the new width is round(W size / H).
    top, left : Tensor
        int64 ``[rows]``: where the resized image begins; it must fit.
    to : int, optional
        Height and width of the result.

    Returns
    -------
    Tensor
        Images ``[rows, channels, H, W]``, or ``[rows, channels, to, to]``.

    Examples
    --------
    >>> x = torch.ones(1, 1, 4, 4)
    >>> resize_pad(x, torch.tensor([2]), torch.tensor([1]), torch.tensor([0]))[0, 0, :, 0]
    tensor([0., 1., 1., 0.])

    References
    ----------
    Xie et al. 2019, "Improving transferability of adversarial examples with input diversity".
    """
    height, width = x.shape[2:]
    tall, wide = (height, width) if to is None else (to, to)
    return _along(_along(x, 2, size, top, tall), 3, breadth(size, height, width), left, wide)


def _along(x: Tensor, dim: int, size: Tensor, start: Tensor, whole: int) -> Tensor:
    """Resize one dimension to ``size`` per row and put it at ``start`` of so many, zeros around."""
    length = x.shape[dim]
    place = torch.arange(whole, device=x.device) - start[:, None]
    inside = (place >= 0) & (place < size[:, None])
    # interpolate() rounds the scale to the images' type and then multiplies and subtracts in one
    # rounding; on large images other roundings of these positions show in the fifth digit.
    # (A number over a tensor is the number times a reciprocal, which is one rounding too many.)
    scale = x.new_tensor(length).div(size[:, None]).double()
    source = ((place + 0.5) * scale - 0.5).to(x.dtype).clamp(0, length - 1)
    below = source.floor()
    share = source - below  # zero outside, where the source is held at the first or last pixel
    low = below.to(torch.int64)
    high = (low + 1).clamp_max(length - 1)

    shape = [len(x), 1, 1, 1]
    shape[dim] = whole
    share, low, high, inside = (t.reshape(shape) for t in (share, low, high, inside))
    every = list(x.shape)
    every[dim] = whole
    first = x.gather(dim, low.expand(every))
    second = x.gather(dim, high.expand(every))
    # Both weights are zero outside: cheaper than a mask over the whole image afterwards.
    return first * (inside.to(x.dtype) - share) + second * share


def resized(x: Tensor, height: int, width: int, mode: str, antialias: bool) -> Tensor:
    """All images in another size, as ``torch.nn.functional.interpolate`` resizes them.

    Rows and columns are separable, so this is two products with fixed matrices. Unlike that of
    ``interpolate``, their gradient is the same in every run on a GPU.

    Parameters
    ----------
    x : Tensor
        Images ``[rows, channels, H, W]``.
    height, width : int
        The new size.
    mode : {"nearest", "bilinear", "bicubic"}
        Interpolation; corners are not aligned.
    antialias : bool
        Whether shrinking averages over all pixels that fall into a new one.

    Returns
    -------
    Tensor
        Images ``[rows, channels, height, width]``.

    Examples
    --------
    >>> resized(torch.arange(4.0).reshape(1, 1, 1, 4), 1, 2, "bilinear", True)
    tensor([[[[0.7143, 2.2857]]]])
    """
    if x.shape[3] != width:
        x = x @ _matrix(x.shape[3], width, mode, antialias, x.device, x.dtype).T
    if x.shape[2] != height:
        x = _matrix(x.shape[2], height, mode, antialias, x.device, x.dtype) @ x
    return x


@cache  # without a limit: CUDA graphs read the matrices by their address
def _matrix(
    length: int, size: int, mode: str, antialias: bool, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """What resizing does to one dimension, ``[size, length]``."""
    # Outside any inference mode of the caller: gradients flow past it later.
    with torch.inference_mode(False), torch.no_grad():
        columns = torch.eye(length)[None, None]
        made = functional.interpolate(columns, (size, length), mode=mode, antialias=antialias)
        return made[0, 0].to(device, dtype)

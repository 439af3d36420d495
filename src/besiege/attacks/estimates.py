"""Gradient estimates from scores: finite differences along random directions.

With directions u of unit variance the slope along u is
``s = (f(x + sigma u) - f(x - sigma u)) / (2 sigma)``, or ``(f(x + sigma u) - f(x)) / sigma`` if the
iterate itself is queried, and ``mean(s u)`` estimates the gradient. With q directions in d
dimensions its cosine with the gradient is about ``sqrt(q / (q + d - 1))`` for any distribution.

A slope is multiplied by the difference really sent: the box and a victim's grid change probes, and
the slope belongs to the images the victim saw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from besiege.attacks.losses import logit_of
from besiege.core.answer import Aim, Loss
from besiege.core.ball import Ball, distances
from besiege.core.blocks import at_once
from besiege.core.dice import Dice
from besiege.core.rowwise import rowwise
from besiege.core.siege import Siege
from besiege.core.threat import L2

Draw = Callable[[Dice, tuple[int, ...], Tensor], Tensor]
"""Directions ``[rows, k, ...]`` of unit variance per coordinate, given counters ``[rows, k]``."""


def gaussian(dice: Dice, shape: tuple[int, ...], counter: Tensor) -> Tensor:
    """Normal directions (NES)."""
    return dice.normal(shape, counter)


def rademacher(dice: Dice, shape: tuple[int, ...], counter: Tensor) -> Tensor:
    """Random signs (SPSA)."""
    return dice.signs(shape, counter)


def sphere(dice: Dice, shape: tuple[int, ...], counter: Tensor) -> Tensor:
    """Normal directions scaled to the length of a vector of ones (RGF)."""
    return even(dice.normal(shape, counter))


@dataclass(frozen=True)
class Smooth:
    """Directions on the sphere that are constant on tiles: a coarse grid, enlarged.

    Gradients of images are smooth: these directions hold a larger part of them than their share of
    the dimensions, so fewer are needed (Cheng et al. 2019: the data-dependent prior).

    Parameters
    ----------
    side : int
        Side of the coarse grid, at most that of the image.
    """

    side: int

    def __call__(self, dice: Dice, shape: tuple[int, ...], counter: Tensor) -> Tensor:
        u = dice.normal(coarse(shape, self.side), counter)
        return even(resized(u, shape[1:], "nearest"))


def resized(z: Tensor, size: tuple[int, ...], mode: str = "bilinear") -> Tensor:
    """Images ``[..., channels, h, w]`` interpolated to another height and width."""
    if tuple(z.shape[-2:]) == size:
        return z
    return functional.interpolate(z.flatten(0, -4), size, mode=mode).view(*z.shape[:-2], *size)


def even(u: Tensor) -> Tensor:
    """Directions ``[rows, k, ...]`` scaled to the length of a vector of ones; zero stays zero."""
    flat = u.flatten(0, 1)
    length = distances(flat, L2).clamp_min(1e-30) / u[0, 0].numel() ** 0.5
    length = rowwise(length.view(u.shape[:2]).to(u.dtype), u)
    return torch.div(u, length)


def coarse(shape: tuple[int, ...], side: int | None) -> tuple[int, ...]:
    """The shape of a coarse grid of `side` values a side, at most those of the image.

    By default ``3 sqrt(side)``: smooth perturbations matter most, the more so in large images.

    Examples
    --------
    >>> coarse((3, 32, 32), None), coarse((3, 299, 299), None), coarse((1, 8, 8), 16)
    ((3, 17, 17), (3, 52, 52), (1, 8, 8))
    """
    channels, *sides = shape
    wanted = (side or round(3 * math.sqrt(size)) for size in sides)
    return channels, *map(min, wanted, sides)


def visible(ball: Ball, sigma: float, draw: Draw, *, paired: bool) -> float:
    """The size of probes, `sigma` box widths, at least what a victim with a grid can see.

    Signs smaller than half a grid step are rounded away, and up to a whole step rounding doubles or
    halves them. Of normal directions the larger components remain, with the others as rounding
    noise: two grid steps, and four for one-sided probes, broke more images of the digits than
    smaller or larger ones.
    """
    size = sigma * ball.width
    if ball.grid is None:
        return size
    return max(size, ball.grid * (1.0 if draw is rademacher else 2.0 if paired else 4.0))


def sent(ball: Ball, x: Tensor) -> Tensor:
    """What the victim receives of points ``[rows, k, ...]``: clipped to the box, on its grid."""
    return ball.received(x.clamp(*ball.box))


@dataclass(frozen=True)
class ScoreLoss:
    """A loss that stays useful when a victim reports the score of its top class only.

    There is nothing to compare such a score with: the score itself is then minimized, or maximized
    if its class is the target. Where the victim reports more, or another class, it is `loss`.

    Parameters
    ----------
    loss : callable
        Loss to maximize where scores can be compared.

    Examples
    --------
    >>> import torch
    >>> from besiege.attacks.losses import margin
    >>> aim = Aim(torch.tensor([0, 0, 0]))
    >>> hidden = -torch.inf
    >>> ScoreLoss(margin)(torch.tensor([[3.0, 1.0], [3.0, hidden], [hidden, 2.0]]), aim)
    tensor([-2., -3., inf])
    """

    loss: Loss

    def __call__(self, logits: Tensor, aim: Aim) -> Tensor:
        value = self.loss(logits, aim)
        # Most victims hide nothing; only on a CPU is testing this cheaper than computing on.
        if logits.device.type == "cpu" and bool((logits > -torch.inf).all()):
            return value
        alone = (logits > -torch.inf).sum(1) == 1
        sign, classes = (-1.0, aim.labels) if aim.targets is None else (1.0, aim.targets)
        return torch.where(alone, sign * logit_of(logits, classes), value)


class Slopes(NamedTuple):
    """Slopes along some probes.

    Attributes
    ----------
    loss : Tensor
        The loss at the points themselves, ``[rows]``; -inf where not queried.
    slope : Tensor
        Slope along each probe, ``[rows, k]``; zero where not paid for.
    along : Tensor
        The direction really sent, in units of sigma, ``[rows, k, ...]``: half the difference
        between the two ends of a pair, whether or not both were queried.
    sum_around, count_around : Tensor
        The sum of the losses at the probes themselves, and their number, ``[rows]``; probes without
        an answer are left out.
    """

    loss: Tensor
    slope: Tensor
    along: Tensor
    sum_around: Tensor
    count_around: Tensor

    def sum(self) -> Tensor:
        """``sum(slope * along)`` of every row, ``[rows, ...]``; overwrites `along`."""
        weight = self.slope.to(self.along.dtype)
        return self.along.mul_(rowwise(weight, self.along)).sum(1)


def probe(
    siege: Siege,
    rows: Tensor,
    x: Tensor,
    u: Tensor,
    sigma: Tensor,
    loss: Loss,
    *,
    paired: bool,
    base: Tensor | None = None,
) -> Slopes:
    """Query the slopes along directions at the points of some rows.

    Parameters
    ----------
    siege : Siege
        The siege that is queried.
    rows : Tensor
        Row numbers, ascending.
    x : Tensor
        Their points, ``[len(rows), ...]``.
    u : Tensor
        Their directions, ``[len(rows), k, ...]``.
    sigma : Tensor
        The size of their probes, ``[len(rows)]``.
    loss : callable
        The loss that is measured.
    paired : bool
        Whether both ``x + sigma u`` and ``x - sigma u`` are queried, or only the first.
    base : Tensor, optional
        The loss at the points, if known; otherwise the points are queried too, first.
    """
    ball = siege.ball.at(rows)
    step = ball.scaled(sigma)[:, None]
    here, move = x[:, None], u * step
    # A one-sided probe represents its pair: clipped on one side only, probes of black or white
    # pixels would all point inward, and so would their mean.
    far, back = sent(ball, here + move), sent(ball, here - move)
    images = torch.stack((far, back), 2).flatten(1, 2) if paired else far
    if base is None:
        images = torch.cat((here, images), 1)
    losses = siege.logits(images, rows=rows, loss=loss).loss
    if base is None:
        base, losses = losses[:, 0], losses[:, 1:]
    seen = torch.isfinite(losses)
    around = torch.where(seen, losses, torch.zeros_like(losses)).sum(1)
    middle = base[:, None].expand_as(losses[:, :: 2 if paired else 1])
    high, low = (losses[:, ::2], losses[:, 1::2]) if paired else (losses, middle)
    width = sigma[:, None].to(losses.dtype).expand_as(high) * (2.0 if paired else 1.0)
    if paired:
        # A victim that hides classes may answer one end only: the point itself is then the other.
        one = torch.isfinite(high) != torch.isfinite(low)
        width = torch.where(one, width / 2.0, width)
        high, low = (torch.where(one & ~torch.isfinite(end), middle, end) for end in (high, low))
    # Queries without an answer give no slope.
    known = torch.isfinite(high) & torch.isfinite(low)
    slope = torch.where(known, high - low, torch.zeros_like(high)) / width
    along = (far - back).div_(2.0 * step)
    return Slopes(base, slope, along, around, seen.sum(1))


class Estimate(NamedTuple):
    """An estimated gradient, the loss at the point itself, and the mean loss of the probes.

    The mean is -inf where no probe was answered.
    """

    gradient: Tensor
    loss: Tensor
    around: Tensor


def estimate(
    siege: Siege,
    x: Tensor,
    loss: Loss,
    draw: Draw,
    many: int,
    sigma: float | Tensor,
    step: int,
    *,
    paired: bool,
    known: Tensor | None = None,
) -> Estimate:
    """The gradient at points from `many` directions a row, and the loss there and around.

    It costs one query for the point, unless its loss is `known`, and one for each direction, or two
    if `paired`. Directions depend on row and `step`. Images are made, queried and summed in pieces
    whose size depends only on the number of directions, so that a row's sum is the same for any
    batch size. `sigma` is in box widths, or the size of each row's probes.
    """
    gradient = torch.zeros_like(x)
    value = torch.full((len(siege),), -torch.inf, dtype=x.dtype, device=x.device)
    around, answered = torch.zeros_like(value), torch.zeros_like(value)
    dice, shape = siege.dice.of("probes", step), tuple(x.shape[1:])
    if not isinstance(sigma, Tensor):
        size = visible(siege.ball, sigma, draw, paired=paired)
        sigma = torch.full((len(siege),), size, device=x.device)
    each = 2 if paired else 1
    for rows in siege.blocks(1 + each * many):
        at, sigmas = x[rows], sigma[rows]
        base = None if known is None else known[rows]
        for some in portions(siege.ball, many, each):
            u = draw(dice.at(rows), shape, some.to(x.device).expand(len(rows), -1)).to(x.dtype)
            slopes = probe(siege, rows, at, u, sigmas, loss, paired=paired, base=base)
            base = slopes.loss
            gradient[rows] += slopes.sum() / many
            around[rows] += slopes.sum_around.to(around.dtype)
            answered[rows] += slopes.count_around
        assert base is not None
        value[rows] = base.to(value.dtype)
    return Estimate(gradient, value, torch.where(answered > 0, around / answered, -torch.inf))


def portions(ball: Ball, many: int, each: int = 1) -> Iterator[Tensor]:
    """The numbers of `many` directions in even pieces, as many images as are made at once.

    Examples
    --------
    >>> from besiege.core.ball import ball
    >>> small, large = (ball(L2, torch.zeros(1, 3, side, side), 1.0) for side in (32, 224))
    >>> [len(some) for some in portions(small, 100, 2)]
    [50, 50]
    >>> [len(some) for some in portions(large, 30, 2)]
    [10, 10, 10]
    """
    pieces = -(-(1 + each * many) // at_once(ball))
    return iter(torch.split(torch.arange(many), -(-many // pieces)))

"""Gradients from scores: random directions, the slopes along them, and what they add up to.

With directions u of unit variance in every entry the slope along one of them is
``s = (f(x + sigma u) - f(x - sigma u)) / (2 sigma)``, or ``(f(x + sigma u) - f(x)) / sigma`` where
the point itself is asked about too, and ``mean(s u)`` points along the gradient: with q of them in
d dimensions the cosine is about ``sqrt(q / (q + d - 1))``, whatever the directions' distribution.

What is multiplied with a slope is the difference that was really sent. The box and a victim's grid
change probes, and the slope belongs to what the victim saw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from besiege.core.answer import Aim, Loss
from besiege.core.ball import Ball, distances
from besiege.core.blocks import at_once
from besiege.core.dice import Dice
from besiege.core.rowwise import rowwise
from besiege.core.siege import Siege
from besiege.core.threat import L2

Draw = Callable[[Dice, tuple[int, ...], Tensor], Tensor]
"""Directions ``[rows, k, ...]`` of unit variance in every entry, given counters ``[rows, k]``."""


def gaussian(dice: Dice, shape: tuple[int, ...], counter: Tensor) -> Tensor:
    """Normal directions (NES)."""
    return dice.normal(shape, counter)


def rademacher(dice: Dice, shape: tuple[int, ...], counter: Tensor) -> Tensor:
    """Directions of signs (SPSA)."""
    return dice.signs(shape, counter)


def sphere(dice: Dice, shape: tuple[int, ...], counter: Tensor) -> Tensor:
    """Normal directions, all brought to the length of a vector of ones (RGF)."""
    return even(dice.normal(shape, counter))


@dataclass(frozen=True)
class Smooth:
    """Directions of the sphere among those that are constant on tiles: a coarse grid, enlarged.

    Gradients of images are smooth, so that more of them lies in there than its share of the
    dimensions, and fewer directions find it (Cheng et al. 2019: the data-dependent prior).

    Parameters
    ----------
    side : int
        Entries a side of the coarse grid, at most those of the image.
    """

    side: int

    def __call__(self, dice: Dice, shape: tuple[int, ...], counter: Tensor) -> Tensor:
        u = dice.normal(coarse(shape, self.side), counter)
        if u.shape[2:] == shape:
            return even(u)
        large = functional.interpolate(u.flatten(0, 1), shape[1:], mode="nearest")
        return even(large.view(*u.shape[:2], *shape))


def even(u: Tensor) -> Tensor:
    """Directions ``[rows, k, ...]`` at the length of a vector of ones; zero stays zero."""
    flat = u.flatten(0, 1)
    length = distances(flat, L2).clamp_min(1e-30) / u[0, 0].numel() ** 0.5
    length = rowwise(length.view(u.shape[:2]).to(u.dtype), u)
    return torch.div(u, length)


def coarse(shape: tuple[int, ...], side: int | None) -> tuple[int, ...]:
    """The shape of changes on a coarse grid of so many entries a side, at most those of the image.

    By default ``3 sqrt(side)``: smooth changes matter most, and the more so in large images.

    Examples
    --------
    >>> coarse((3, 32, 32), None), coarse((3, 299, 299), None), coarse((1, 8, 8), 16)
    ((3, 17, 17), (3, 52, 52), (1, 8, 8))
    """
    channels, *sides = shape
    wanted = (side or round(3 * math.sqrt(size)) for size in sides)
    return channels, *map(min, wanted, sides)


def visible(ball: Ball, sigma: float, draw: Draw, *, paired: bool) -> float:
    """The size of probes, `sigma` widths of the box; at least what a victim with a grid can see.

    Signs smaller than half a step of the grid are rounded away all at once, and up to a whole one
    rounding doubles or halves them. Of normal directions the larger entries remain, but rounding
    is noise beside the others: two steps, and four where a probe has no second one, left fewer
    images of the digits standing than smaller or larger ones.
    """
    size = sigma * ball.width
    if ball.grid is None:
        return size
    return max(size, ball.grid * (1.0 if draw is rademacher else 2.0 if paired else 4.0))


def sent(ball: Ball, x: Tensor) -> Tensor:
    """What the victim will see of points ``[rows, k, ...]``: cut to the box, on its grid."""
    x = x.clamp(*ball.box)
    return x if ball.grid is None else ball.received(x)


@dataclass(frozen=True)
class Told:
    """A loss that is still of use where a victim answers its first class alone.

    Nothing can be compared with it: then its own score is what falls, or rises where it is the
    target. Where the victim tells more, or another class, it is the loss as it is.

    Parameters
    ----------
    loss : callable
        What is raised where there is something to compare.

    Examples
    --------
    >>> import torch
    >>> from besiege.attacks.losses import margin
    >>> aim = Aim(torch.tensor([0, 0, 0]))
    >>> hidden = -torch.inf
    >>> Told(margin)(torch.tensor([[3.0, 1.0], [3.0, hidden], [hidden, 2.0]]), aim)
    tensor([-2., -3., inf])
    """

    loss: Loss

    def __call__(self, logits: Tensor, aim: Aim) -> Tensor:
        value = self.loss(logits, aim)
        # Most victims hide nothing; only on a CPU is it quicker to ask than to compute.
        if logits.device.type == "cpu" and bool((logits > -torch.inf).all()):
            return value
        alone = (logits > -torch.inf).sum(1) == 1
        if aim.targets is None:
            own = -logits.gather(1, aim.labels[:, None])[:, 0]
        else:
            own = logits.gather(1, aim.targets[:, None])[:, 0]
        return torch.where(alone, own, value)


class Slopes(NamedTuple):
    """What some probes told.

    Attributes
    ----------
    loss : Tensor
        The loss at the points themselves, ``[rows]``; -inf where it was not asked.
    slope : Tensor
        Along each probe, ``[rows, k]``; zero where it was not paid for.
    along : Tensor
        What was really sent for each, in units of sigma, ``[rows, k, ...]``; half of what lies
        between the two ends of a pair, whether or not both were asked.
    """

    loss: Tensor
    slope: Tensor
    along: Tensor

    def sum(self) -> Tensor:
        """``sum(slope * along)`` of every row, ``[rows, ...]``; writes over `along`."""
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
    """Ask for the slopes along directions at the points of some rows.

    Parameters
    ----------
    siege : Siege
        Who is asked.
    rows : Tensor
        Row numbers, ascending.
    x : Tensor
        Their points, ``[len(rows), ...]``.
    u : Tensor
        Their directions, ``[len(rows), k, ...]``.
    sigma : Tensor
        The size of their probes, ``[len(rows)]``.
    loss : callable
        What is measured.
    paired : bool
        Whether both ``x + sigma u`` and ``x - sigma u`` are asked, or the first alone.
    base : Tensor, optional
        The loss at the points, where it is known; else they are asked too, and first.
    """
    ball = siege.ball.at(rows)
    step = ball.scaled(sigma)[:, None]
    here, move = x[:, None], u * step
    # A single probe stands for its pair. What was sent of it alone would, where pixels are black or
    # white, always point inward, and so would the mean of many.
    far, back = sent(ball, here + move), sent(ball, here - move)
    images = torch.stack((far, back), 2).flatten(1, 2) if paired else far
    if base is None:
        images = torch.cat((here, images), 1)
    told = siege.logits(images, rows=rows, loss=loss).loss
    if base is None:
        base, told = told[:, 0], told[:, 1:]
    middle = base[:, None].expand_as(told[:, :: 2 if paired else 1])
    high, low = (told[:, ::2], told[:, 1::2]) if paired else (told, middle)
    width = sigma[:, None].to(told.dtype).expand_as(high) * (2.0 if paired else 1.0)
    if paired:
        # Of a pair a victim that hides classes may tell one end: the point itself is the other.
        one = torch.isfinite(high) != torch.isfinite(low)
        width = torch.where(one, width / 2.0, width)
        high, low = (torch.where(one & ~torch.isfinite(end), middle, end) for end in (high, low))
    # What was not paid for, and what such a victim does not tell, is no slope.
    known = torch.isfinite(high) & torch.isfinite(low)
    slope = torch.where(known, high - low, torch.zeros_like(high)) / width
    along = (far - back).div_(2.0 * step)
    return Slopes(base, slope, along)


class Estimate(NamedTuple):
    """A gradient made of slopes, and the loss at the point itself."""

    gradient: Tensor
    loss: Tensor


def estimate(
    siege: Siege,
    x: Tensor,
    loss: Loss,
    draw: Draw,
    many: int,
    sigma: float,
    step: int,
    *,
    paired: bool,
    known: Tensor | None = None,
) -> Estimate:
    """The gradient at points from `many` directions a row, and the loss at the points.

    One query for the point, unless its loss is `known`, and one for each direction, or two where
    they are `paired`. Directions are drawn by row and `step`; images are made, asked and added up
    in pieces, which are cut by the numbers of directions alone, so that a row's sum is the same in
    any company.
    """
    gradient = torch.zeros_like(x)
    value = torch.full((len(siege),), -torch.inf, dtype=x.dtype, device=x.device)
    dice, shape = siege.dice.of("probes", step), tuple(x.shape[1:])
    size = visible(siege.ball, sigma, draw, paired=paired)
    each = 2 if paired else 1
    for rows in siege.blocks(1 + each * many):
        at = x[rows]
        sigmas = torch.full((len(rows),), size, device=x.device)
        base = None if known is None else known[rows]
        for some in portions(siege.ball, many, each):
            u = draw(dice.at(rows), shape, some.to(x.device).expand(len(rows), -1)).to(x.dtype)
            told = probe(siege, rows, at, u, sigmas, loss, paired=paired, base=base)
            base = told.loss
            gradient[rows] += told.sum() / many
        assert base is not None
        value[rows] = base.to(value.dtype)
    return Estimate(gradient, value)


def portions(ball: Ball, many: int, each: int = 1) -> Iterator[Tensor]:
    """The numbers of `many` directions in even pieces, of images as many as are made at once.

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

"""Radii that close in on the boundary, and the steps and landings that go with them: DDN, FMN.

With one of these an ascent looks for the smallest change: the ball of a row shrinks while its
point is beyond the boundary and grows while it is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from besiege.attacks.attack import piece
from besiege.attacks.directions import Memory
from besiege.attacks.pieces import Place, Radius, Schedule
from besiege.attacks.smallest import across
from besiege.core.answer import Answer
from besiege.core.ball import Ball, distances
from besiege.core.fields import number
from besiege.core.siege import Siege

_TINY = 1e-300
_TIE = 1e-6
"""The smallest radius before the boundary, in widths of the box."""


def _must_fall(first: float, last: float) -> None:
    """Refuse steps that do not fall."""
    if not 0 <= last <= first:
        raise ValueError(f"steps fall from {first!r} to {last!r}, which is no fall")


def _half_cosine(first: float, last: float, step: int, steps: int) -> float:
    return last + (first - last) * 0.5 * (1.0 + math.cos(math.pi * step / steps))


@piece("falling")
@dataclass(frozen=True)
class Falling(Schedule):
    """Steps from `first` down to `last` along half a cosine, in widths of the box.

    Not in radii: where the smallest change is looked for there is none to begin with.
    """

    first: float = 1.0
    last: float = 0.01

    def __post_init__(self) -> None:
        _must_fall(self.first, self.last)

    def next(
        self, step: int, steps: int, ball: Ball, x: Tensor, answer: Answer, memory: Memory
    ) -> tuple[Tensor, Tensor, Answer, Memory]:
        length = _half_cosine(self.first, self.last, step, steps) * (ball.box[1] - ball.box[0])
        return torch.full_like(ball.radius, length), x, answer, memory


@piece("closing")
@dataclass(frozen=True)
class Closing(Schedule):
    """Steps from `first` down to `last` along half a cosine, as suits the norm.

    In linf in lengths of the way to a corner of the ball, ``radius * sqrt(entries)``: how far apart
    the boundaries of natural and robust networks are in pixels decides which step is long. In the
    other norms a step of one is `width` widths of the box.
    """

    first: float = 4.0
    last: float = 0.008
    width: float = 0.25

    def __post_init__(self) -> None:
        _must_fall(self.first, self.last)

    def next(
        self, step: int, steps: int, ball: Ball, x: Tensor, answer: Answer, memory: Memory
    ) -> tuple[Tensor, Tensor, Answer, Memory]:
        length = _half_cosine(self.first, self.last, step, steps)
        return ball.closing(length, self.width), x, answer, memory


@piece("decoupled")
@dataclass(frozen=True)
class Decoupled(Radius):
    """A radius that falls by a share beyond the boundary and rises by it before (DDN).

    Parameters
    ----------
    share, last : float
        By how much at first and at the end, along half a cosine; without `last` always the same.
    first : float
        The first radius, in widths of the box.
    gallop : bool
        Whether the share doubles from step to step, up to a half, until a row has been on both
        sides of the boundary: any distance is then reached, and soon. ``decoupled(0.05,
        gallop=False)`` is as published, and reaches 0.006 to 130 in a hundred steps.
    """

    share: float = number(0.05, above=0, below=1, what="a share")
    last: float | None = number(None, above=0, below=1, what="a share")
    first: float = number(1.0, above=0, what="a radius")
    gallop: bool = True

    searches = True

    def init(self, x: Tensor, ball: Ball) -> Memory:
        reach = across(ball)
        first = reach.clamp_max(self.first * (ball.box[1] - ball.box[0]))
        sides = torch.zeros(len(x), 2, dtype=torch.bool, device=x.device)
        return first, reach, sides, torch.ones_like(first)

    def next(
        self, step: int, steps: int, siege: Siege, x: Tensor, answer: Answer, memory: Memory
    ) -> tuple[Ball, Memory]:
        radius, reach, sides, pace = memory
        share = _half_cosine(
            self.share, self.share if self.last is None else self.last, step, steps
        )
        crossed = siege.record.reached(siege.rows, answer.labels)
        if self.gallop and step:  # the first answer is that of the clean image
            sides = sides | torch.stack((crossed, ~crossed), 1)
            pace = torch.where(sides.all(1), 1.0, (2.0 * pace).clamp_max(0.5 / share))
        by = share * pace
        radius = torch.minimum(radius * torch.where(crossed, 1.0 - by, 1.0 + by), reach)
        return siege.ball.of(radius), (radius, reach, sides, pace)


@piece("bracketing")
@dataclass(frozen=True)
class Bracketing(Radius):
    """A radius led by where the boundary seems to be, and then by where it was crossed (FMN).

    Until a row has crossed, its radius is the distance at which a linear victim would be crossed,
    and rises in any case: on a linear victim that distance lands on the boundary itself, and what
    the box takes from a step would keep it before the boundary for ever. After that it falls by a
    share beyond the boundary, never above the smallest distance known, and rises by it before.

    Needs a loss that is the height above the boundary, such as the margin.

    Parameters
    ----------
    share, last : float
        By how much at first and at the end, along half a cosine.
    """

    share: float = number(0.05, above=0, below=1, what="a share")
    last: float = number(0.001, above=0, below=1, what="a share")

    searches = True

    def init(self, x: Tensor, ball: Ball) -> Memory:
        reach = across(ball)
        return torch.zeros_like(reach), torch.full_like(reach, torch.inf), reach

    def next(
        self, step: int, steps: int, siege: Siege, x: Tensor, answer: Answer, memory: Memory
    ) -> tuple[Ball, Memory]:
        radius, best, reach = memory
        ball, share = siege.ball, _half_cosine(self.share, self.last, step, steps)
        crossed = siege.record.reached(siege.rows, answer.labels)
        away = ball.distance(x)
        best = torch.where(crossed, torch.minimum(best, away), best)
        height = answer.loss.double().abs()
        guess = away + height / ball.dual(answer.gradient).clamp_min(_TINY)
        larger = ball.larger(radius, share)
        before = torch.where(torch.isinf(best), torch.maximum(guess, larger), larger)
        # At an exact tie the boundary is here, and nothing else would ever lead away.
        before = before.clamp_min(_TIE * (ball.box[1] - ball.box[0]))
        beyond = torch.minimum(ball.smaller(radius, share), best)
        radius = torch.minimum(torch.where(crossed, beyond, before), reach)
        return ball.of(radius), (radius, best, reach)


@piece("sphere")
@dataclass(frozen=True)
class OnSphere(Place):
    """At the distance of the radius from the centre, whether farther or nearer; then in the box."""

    def __call__(
        self, ball: Ball, x: Tensor, move: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        change = x + move - ball.center
        size = distances(change, ball.norm).clamp_min(1e-30)  # float32 is to hold its inverse
        return (change.mul_(ball.scaled(ball.radius / size)).add_(ball.center)).clamp_(
            *ball.box
        ), memory

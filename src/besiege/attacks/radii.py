"""Radii, schedules and projections of minimum-norm attacks: DDN and FMN.

With one of these radii `Ascent` searches for the smallest perturbation: the ball of a row shrinks
while its iterate is beyond the boundary and grows while it is not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from besiege.attacks.attack import piece
from besiege.attacks.directions import Memory
from besiege.attacks.losses import margin
from besiege.attacks.pieces import Place, Radius, Schedule, half_cosine
from besiege.attacks.smallest import across
from besiege.core.answer import Answer
from besiege.core.ball import Ball, distances
from besiege.core.fields import number, yes_or_no
from besiege.core.siege import Siege
from besiege.core.threat import L0

_TINY = 1e-300
_TIE = 1e-6
"""Smallest radius before the boundary, in box widths."""


def _must_fall(first: float, last: float) -> None:
    """Reject step sizes that increase."""
    if not 0 <= last <= first:
        raise ValueError(f"step sizes go from {first!r} to {last!r}; the last must not be larger")


@piece("falling")
@dataclass(frozen=True)
class Falling(Schedule):
    """Step sizes from `first` down to `last` along half a cosine, in box widths.

    Not in radii: a minimum-norm search has none to begin with.
    """

    first: float = 1.0
    last: float = 0.01

    def __post_init__(self) -> None:
        _must_fall(self.first, self.last)

    def next(
        self, step: int, steps: int, ball: Ball, x: Tensor, answer: Answer, memory: Memory
    ) -> tuple[Tensor, Tensor, Answer, Memory]:
        length = half_cosine(self.first, self.last, step, steps) * ball.width
        return torch.full_like(ball.radius, length), x, answer, memory


@piece("closing")
@dataclass(frozen=True)
class Closing(Schedule):
    """Step sizes from `first` down to `last` along half a cosine, in units that suit the norm.

    In linf the unit is the distance to a corner of the ball, ``radius * sqrt(d)``, since boundary
    distances of natural and robust networks differ too much for one step size in pixels. In the
    other norms the unit is `width` box widths.
    """

    first: float = 4.0
    last: float = 0.008
    width: float = 0.25

    def __post_init__(self) -> None:
        _must_fall(self.first, self.last)

    def next(
        self, step: int, steps: int, ball: Ball, x: Tensor, answer: Answer, memory: Memory
    ) -> tuple[Tensor, Tensor, Answer, Memory]:
        length = half_cosine(self.first, self.last, step, steps)
        return ball.closing(length, self.width), x, answer, memory


@piece("decoupled")
@dataclass(frozen=True)
class Decoupled(Radius):
    """A radius that shrinks by a fraction beyond the boundary and grows by it before (DDN).

    Parameters
    ----------
    share, last : float
        The fraction at first and at the end, along half a cosine; constant without `last`.
    first : float
        First radius, in box widths.
    gallop : bool
        Whether the fraction doubles at every step, up to a half, until a row has been on both
        sides of the boundary, so that any distance is reached within few steps.
        ``decoupled(0.05, gallop=False)`` is as published and reaches 0.006 to 130 in 100 steps.
    """

    share: float = number(0.05, above=0, below=1, what="a fraction")
    last: float | None = number(None, above=0, below=1, what="a fraction")
    first: float = number(1.0, above=0, what="a radius")
    gallop: bool = True

    searches = True

    def init(self, x: Tensor, ball: Ball) -> Memory:
        reach = across(ball)
        first = reach.clamp_max(self.first * ball.width)
        sides = torch.zeros(len(x), 2, dtype=torch.bool, device=x.device)
        return first, reach, sides, torch.ones_like(first)

    def next(
        self, step: int, steps: int, siege: Siege, x: Tensor, answer: Answer, memory: Memory
    ) -> tuple[Ball, Memory]:
        radius, reach, sides, pace = memory
        share = half_cosine(self.share, self.last or self.share, step, steps)
        crossed = siege.record.reached(siege.rows, answer.labels)
        if self.gallop and step:  # the first answer is about the clean image
            sides = sides | torch.stack((crossed, ~crossed), 1)
            pace = torch.where(sides.all(1), 1.0, (2.0 * pace).clamp_max(0.5 / share))
        by = share * pace
        radius = torch.minimum(radius * torch.where(crossed, 1.0 - by, 1.0 + by), reach)
        return siege.ball.of(radius), (radius, reach, sides, pace)


@piece("bracketing")
@dataclass(frozen=True)
class Bracketing(Radius):
    """A radius led by the linearised boundary, later by the smallest success (FMN).

    Before its first success a row's radius is the distance at which a linear victim would be
    crossed, and grows by at least the fraction: otherwise a step shortened by the box could stay
    just before the boundary for ever. Afterwards it shrinks by the fraction beyond the boundary,
    never above the smallest known distance, and grows by it before.

    The loss must measure the height above the boundary, as the margin does.

    Parameters
    ----------
    share, last : float
        The fraction at first and at the end, along half a cosine.
    compat : bool
        As published: before its first success a row's radius is the linearised distance alone,
        up to the boundary itself; in l0 it only grows, from one on.
    """

    share: float = number(0.05, above=0, below=1, what="a fraction")
    last: float = number(0.001, above=0, below=1, what="a fraction")
    compat: bool = yes_or_no(False, added=True)

    searches = True

    def init(self, x: Tensor, ball: Ball) -> Memory:
        reach = across(ball)
        first = torch.full_like(reach, float(self.compat and ball.norm is L0))
        return first, torch.full_like(reach, torch.inf), reach

    def next(
        self, step: int, steps: int, siege: Siege, x: Tensor, answer: Answer, memory: Memory
    ) -> tuple[Ball, Memory]:
        radius, best, reach = memory
        ball, share = siege.ball, half_cosine(self.share, self.last, step, steps)
        labels = answer.logits.argmax(1) if self.compat else answer.labels
        crossed = siege.record.reached(siege.rows, labels)
        away = ball.distance(x)
        best = torch.where(crossed, torch.minimum(best, away), best)
        # The loss of a search is lower by what rounding may turn around; the paper's is not.
        loss = margin(answer.logits, siege.aim) if self.compat else answer.loss
        height = loss.double().abs()
        guess = away + height / ball.dual(answer.gradient).clamp_min(_TINY)
        larger = ball.larger(radius, share)
        if not self.compat:
            guess = torch.maximum(guess, larger)
        elif ball.norm is L0:
            guess = larger
        before = torch.where(torch.isinf(best), guess, larger)
        # At an exact tie the radius would stay zero.
        before = before.clamp_min(_TIE * ball.width)
        beyond = torch.minimum(ball.smaller(radius, share), best)
        radius = torch.minimum(torch.where(crossed, beyond, before), reach)
        return ball.of(radius), (radius, best, reach)


@piece("sphere")
@dataclass(frozen=True)
class OnSphere(Place):
    """The point rescaled to the radius from the centre, whether farther or nearer, then clipped."""

    def __call__(
        self, ball: Ball, x: Tensor, move: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        change = x + move - ball.center
        size = distances(change, ball.norm).clamp_min(1e-30)  # its inverse must fit in float32
        return (change.mul_(ball.scaled(ball.radius / size)).add_(ball.center)).clamp_(
            *ball.box
        ), memory

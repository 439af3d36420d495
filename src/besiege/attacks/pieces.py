"""The values that fill the slots of `Ascent`: starts, schedules, radii, places.

Each is small, frozen and stateless. What it must remember between steps is a tuple of tensors with
rows first, which the loop settles together with its other state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor

from besiege.attacks.attack import piece
from besiege.attacks.directions import Memory, Part
from besiege.core.answer import Answer
from besiege.core.ball import Ball
from besiege.core.dice import Dice
from besiege.core.fields import check_fields, number
from besiege.core.rowwise import rowwise
from besiege.core.siege import Siege

# start: the first iterate


class Start:
    """Where the climb begins. A new one overrides `point`, or `__call__` if it needs the siege."""

    def __call__(self, siege: Siege) -> Tensor:
        """The first point of every row."""
        return self.point(siege.ball, siege.dice)

    def point(self, ball: Ball, dice: Dice) -> Tensor:
        """The first point of every row, by its ball and its random draws."""
        raise NotImplementedError


@piece("origin")
@dataclass(frozen=True)
class Origin(Start):
    """The clean image."""

    def point(self, ball: Ball, dice: Dice) -> Tensor:
        return ball.center


@piece("uniform")
@dataclass(frozen=True)
class Uniform(Start):
    """Uniform in the ball (Madry et al. 2018)."""

    def point(self, ball: Ball, dice: Dice) -> Tensor:
        return ball.sample(dice.of("start"))


@piece("sphere_start")
@dataclass(frozen=True)
class Sphere(Start):
    """Uniform on the surface of the ball."""

    def point(self, ball: Ball, dice: Dice) -> Tensor:
        return ball.shell(dice.of("start"))


@piece("signs")
@dataclass(frozen=True)
class Signs(Start):
    """Random signs times a fraction of the radius (Tramèr et al. 2018)."""

    share: float = 0.5

    def point(self, ball: Ball, dice: Dice) -> Tensor:
        signs = dice.of("start").signs(ball.center.shape[1:]).to(ball.center)
        return ball.project(ball.center + signs * ball.scaled(self.share * ball.radius))


@piece("gaussian")
@dataclass(frozen=True)
class Gaussian(Start):
    """A normal draw projected onto ball and box: sparse and large in l1 (Croce and Hein 2021).

    The standard deviation is the width of the box. The projection is exact.
    """

    def point(self, ball: Ball, dice: Dice) -> Tensor:
        drawn = dice.of("start").normal(tuple(ball.center.shape[1:])).to(ball.center)
        return ball.project(ball.center + drawn * ball.width)


@piece("beside")
@dataclass(frozen=True)
class Beside(Start):
    """The clean image with normal noise of a small share of the box (Zhang et al. 2019)."""

    share: float = number(0.001, above=0)

    def __post_init__(self) -> None:
        check_fields(self)

    def point(self, ball: Ball, dice: Dice) -> Tensor:
        drawn = dice.of("start").normal(tuple(ball.center.shape[1:])).to(ball.center)
        return ball.project(ball.center + drawn * (self.share * ball.width))


@dataclass(frozen=True, eq=False)
class Given(Start):
    """Given points, one per sample of the batch, projected onto ball and box."""

    points: Tensor

    def __call__(self, siege: Siege) -> Tensor:
        return siege.ball.project(self.points[siege.rows].to(siege.ball.center))


# schedule: the step size


class Schedule:
    """How far each step moves, and whether a row returns to its best point."""

    __post_init__ = check_fields

    def init(self, x: Tensor, ball: Ball) -> Memory:
        """What is remembered before the first step."""
        return ()

    def next(
        self, step: int, steps: int, ball: Ball, x: Tensor, answer: Answer, memory: Memory
    ) -> tuple[Tensor, Tensor, Answer, Memory]:
        """The length of the next move, the point it starts from and the answer there."""
        return self.length(step, steps) * ball.radius, x, answer, memory

    def length(self, step: int, steps: int) -> float:
        """The length of a step in radii, where it does not depend on the row."""
        raise NotImplementedError


@piece("constant")
@dataclass(frozen=True)
class Constant(Schedule):
    """Every step is the same fraction of the radius."""

    step: float = number(0.15, what="a length")

    def length(self, step: int, steps: int) -> float:
        return self.step


@piece("spread")
@dataclass(frozen=True)
class Spread(Schedule):
    """Equal steps of total length `path` radii."""

    path: float = number(2.5, what="a length")

    def length(self, step: int, steps: int) -> float:
        return self.path / steps


@piece("cosine")
@dataclass(frozen=True)
class Cosine(Schedule):
    """Steps from `first` radii down to `last` along half a cosine."""

    first: float = number(0.5, what="a length")
    last: float = 0.0

    def length(self, step: int, steps: int) -> float:
        return half_cosine(self.first, self.last, step, steps)


def half_cosine(first: float, last: float, step: int, steps: int) -> float:
    """A value that goes from `first` to `last` along half a cosine."""
    return last + (first - last) * 0.5 * (1.0 + math.cos(math.pi * step / steps))


@piece("halving")
@dataclass(frozen=True)
class Halving(Schedule):
    """Step halving where the loss stalls, with a return to the best point (APGD).

    At a checkpoint a row stalls if its loss rose in fewer than a fraction `rho` of the steps since
    the last one, or if neither its best loss nor its step size has changed since then. A stalled
    row halves its step and continues from its best point, with the gradient known there (Croce and
    Hein 2020, algorithm 1).

    Parameters
    ----------
    rho : float
        Fraction of steps in which the loss must rise.
    first : float
        First step size, in radii.
    compat : bool
        As in the authors' code: checkpoints at rounded-down steps; the first rise is relative to
        zero, not to the start; exactly `rho` counts as stalled; an unchanged best loss does not
        stall at the first checkpoint; after a return a rise is relative to the point left.
    """

    rho: float = number(0.75, most=1, what="a fraction")
    first: float = number(2.0, what="a length")
    compat: bool = False

    def init(self, x: Tensor, ball: Ball) -> Memory:
        low = x.new_full((len(x),), -torch.inf)
        eta = torch.full_like(ball.radius, self.first)
        halved = torch.full_like(low, self.compat, dtype=torch.bool)
        return eta, torch.zeros_like(low), low, low, low, halved, x, torch.zeros_like(x)

    def next(
        self, step: int, steps: int, ball: Ball, x: Tensor, answer: Answer, memory: Memory
    ) -> tuple[Tensor, Tensor, Answer, Memory]:
        loss, slope = answer.loss, answer.gradient
        eta, rose, before, best, mark, halved, summit, steep = memory
        if step == 0:
            before = torch.zeros_like(loss) if self.compat else loss
            best, mark, summit, steep = loss, loss, x, slope
        else:
            rose = rose + (loss > before)
            higher = loss > best
            here = rowwise(higher, x)
            best = torch.where(higher, loss, best)
            summit, steep = torch.where(here, x, summit), torch.where(here, slope, steep)
            before = loss
        since = checkpoints(steps, self.compat).get(step)
        if since is not None:
            few = rose <= self.rho * since if self.compat else rose < self.rho * since
            stalled = few | (~halved & (best <= mark))
            there = rowwise(stalled, x)
            eta = torch.where(stalled, eta / 2, eta)
            x, slope = torch.where(there, summit, x), torch.where(there, steep, slope)
            loss = torch.where(stalled, best, loss)
            answer = Answer(**{**answer.parts, "loss": loss, "gradient": slope})
            before = before if self.compat else loss
            rose, mark, halved = torch.zeros_like(rose), best, stalled
        memory = (eta, rose, before, best, mark, halved, summit, steep)
        return eta * ball.radius, x, answer, memory


@cache
def checkpoints(steps: int, compat: bool = False) -> Mapping[int, int]:
    """The checkpoint steps, and how many steps each is after the one before.

    Checkpoints are at fractions 0.22, 0.41, 0.57, ... of the steps: each interval is 0.03 shorter
    than the one before, and at least 0.06. Steps are rounded up; the authors' code (`compat`)
    rounds intervals down.
    """
    found, at = {}, 0
    if compat:
        first, less, least = (max(int(share * steps), 1) for share in (0.22, 0.03, 0.06))
        while at + first <= steps:
            at += first
            found[at] = first
            first = max(first - less, least)
        return MappingProxyType(found)
    share, width = Fraction(0), Fraction(22, 100)
    while share + width <= 1:
        share += width
        after = math.ceil(share * steps)
        if after > at:
            found[after], at = after - at, after
        width = max(width - Fraction(3, 100), Fraction(6, 100))
    return MappingProxyType(found)


# radius: the ball each row moves in


class Radius:
    """The ball of each row while it climbs."""

    __post_init__ = check_fields

    searches: ClassVar[bool] = False
    """Whether it looks for the smallest one in which the climb succeeds."""

    def init(self, x: Tensor, ball: Ball) -> Memory:
        """What is remembered before the first step."""
        return ()

    def next(
        self, step: int, steps: int, siege: Siege, x: Tensor, answer: Answer, memory: Memory
    ) -> tuple[Ball, Memory]:
        """The ball of the next move."""
        return siege.ball, memory


@piece("fixed")
@dataclass(frozen=True)
class Fixed(Radius):
    """The radius the threat allows."""


# place: how a move lands


class Place:
    """How a move lands."""

    def init(self, x: Tensor, ball: Ball) -> Memory:
        """What is remembered before the first step."""
        return ()

    def __call__(
        self, ball: Ball, x: Tensor, move: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        """The next point of every row."""
        raise NotImplementedError


@piece("within")
@dataclass(frozen=True)
class Within(Place):
    """The nearest point of ball and box."""

    def __call__(
        self, ball: Ball, x: Tensor, move: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        return ball.confine(x + move), memory


@piece("clipped")
@dataclass(frozen=True)
class Clipped(Place):
    """The nearest point of the ball as if there were no box, then cut to the box.

    The rule of most published attacks. It differs from `Within` in l2 and l1: the result is inside
    both, but not the nearest point.
    """

    def __call__(
        self, ball: Ball, x: Tensor, move: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        return unboxed(ball).confine(x + move).clamp(*ball.box), memory


@piece("inertia")
@dataclass(frozen=True)
class Inertia(Place):
    """Momentum between iterates (Croce and Hein 2020).

    ``x + a (P(x + move) - x) + (1 - a) (x - x_before)``, projected onto ball and box; the first
    step has a = 1.

    Parameters
    ----------
    share : float
        The weight a.
    exact : bool
        False projects onto the ball first and then onto the box, as the authors' code does in l2:
        the result is inside both, but not the nearest point.
    """

    share: float = 0.75
    exact: bool = True

    def init(self, x: Tensor, ball: Ball) -> Memory:
        return x, x.new_ones(len(x), *[1] * (x.dim() - 1))

    def __call__(
        self, ball: Ball, x: Tensor, move: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        before, share = memory
        landed = self._land(ball, x + move)
        moved = x + (landed - x) * share + (x - before) * (1 - share)
        return self._land(ball, moved), (x, torch.full_like(share, self.share))

    def _land(self, ball: Ball, x: Tensor) -> Tensor:
        return ball.confine(x) if self.exact else unboxed(ball).confine(x).clamp(*ball.box)


@piece("unboxed")
@dataclass(frozen=True)
class Unboxed(Part):
    """The steepest step as if there were no box: in l2 along the gradient itself."""

    def move(self, g: Tensor, x: Tensor, ball: Ball, size: Tensor) -> Tensor:
        return unboxed(ball).steepest(g, x, size)


def unboxed(ball: Ball) -> Ball:
    """The same ball in a box too wide to matter."""
    low, high = ball.box
    far = 1e3 * (high - low)
    return type(ball)(ball.center, ball.radius, (low - far, high + far))

"""The values that fill the slots of `Ascent`: starts, schedules, radii, places.

Each is small, frozen and without state of its own: what it must remember between steps is a
tuple of tensors with the rows first, which the loop settles together with everything else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from besiege.attacks.attack import piece
from besiege.attacks.directions import Memory
from besiege.core.answer import Answer
from besiege.core.ball import Ball
from besiege.core.siege import Siege

# start: where the climb begins


class Start:
    """Where the climb begins."""

    def __call__(self, siege: Siege) -> Tensor:
        """The first point of every row."""
        raise NotImplementedError


@piece("origin")
@dataclass(frozen=True)
class Origin(Start):
    """The clean image."""

    def __call__(self, siege: Siege) -> Tensor:
        return siege.ball.center


@piece("uniform")
@dataclass(frozen=True)
class Uniform(Start):
    """Uniform in the ball (Madry et al. 2018)."""

    def __call__(self, siege: Siege) -> Tensor:
        return siege.ball.sample(siege.dice.of("start"))


@piece("sphere_start")
@dataclass(frozen=True)
class Sphere(Start):
    """On the surface of the ball."""

    def __call__(self, siege: Siege) -> Tensor:
        return siege.ball.shell(siege.dice.of("start"))


@piece("signs")
@dataclass(frozen=True)
class Signs(Start):
    """Random signs times a share of the radius (Tramèr et al. 2018)."""

    share: float = 0.5

    def __call__(self, siege: Siege) -> Tensor:
        ball = siege.ball
        signs = siege.dice.of("start").signs(ball.center.shape[1:]).to(ball.center)
        return ball.project(ball.center + signs * ball.scaled(self.share * ball.radius))


@dataclass(frozen=True, eq=False)
class Given(Start):
    """Given points, one per sample of the batch, brought into ball and box."""

    points: Tensor

    def __call__(self, siege: Siege) -> Tensor:
        return siege.ball.project(self.points[siege.rows].to(siege.ball.center))


# schedule: how far to move


class Schedule:
    """How far each step moves, and whether a row returns to its best point."""

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


def _lengths(**given: object) -> None:
    for name, length in given.items():
        if not isinstance(length, (int, float)) or not length >= 0:
            raise ValueError(f"{name} is {length!r}, but a length is a number, never negative")


@piece("constant")
@dataclass(frozen=True)
class Constant(Schedule):
    """Every step the same share of the radius."""

    step: float = 0.15

    def __post_init__(self) -> None:
        _lengths(step=self.step)

    def length(self, step: int, steps: int) -> float:
        return self.step


@piece("spread")
@dataclass(frozen=True)
class Spread(Schedule):
    """Equal steps that add up to `path` radii."""

    path: float = 2.5

    def __post_init__(self) -> None:
        _lengths(path=self.path)

    def length(self, step: int, steps: int) -> float:
        return self.path / steps


@piece("cosine")
@dataclass(frozen=True)
class Cosine(Schedule):
    """Steps from `first` radii down to `last` along half a cosine."""

    first: float = 0.5
    last: float = 0.0

    def __post_init__(self) -> None:
        _lengths(first=self.first)

    def length(self, step: int, steps: int) -> float:
        share = 0.5 * (1.0 + math.cos(math.pi * step / steps))
        return self.last + (self.first - self.last) * share


# radius: the ball each row moves in


class Radius:
    """The ball of each row while it climbs."""

    def init(self, x: Tensor, ball: Ball) -> Memory:
        """What is remembered before the first step."""
        return ()

    def next(
        self, step: int, steps: int, ball: Ball, x: Tensor, answer: Answer, memory: Memory
    ) -> tuple[Ball, Memory]:
        """The ball of the next move."""
        return ball, memory


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
    """At the nearest point of ball and box."""

    def __call__(
        self, ball: Ball, x: Tensor, move: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        return ball.confine(x + move), memory

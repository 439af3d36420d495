"""Attacks to try the laws on: honest ones, and for each law some that break it."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch

from besiege.attacks.attack import Attack
from besiege.attacks.losses import cross_entropy, margin
from besiege.core.oracle import Access
from besiege.core.siege import Siege
from besiege.core.threat import Goal, Linf

ANY = Goal.UNTARGETED


@dataclass(frozen=True)
class Climb(Attack):
    """An honest attack, which the others spoil."""

    norms = frozenset({Linf})
    goals = frozenset({ANY})
    steps: int = 4

    def start(self, siege: Siege) -> torch.Tensor:
        return siege.ball.sample(siege.dice)

    def move(self, siege: Siege, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return siege.ball.project(x + siege.ball.steepest(g, x, 0.5 * siege.ball.radius))

    def run(self, siege: Siege) -> None:
        x = self.start(siege)
        for _ in range(self.steps):
            answer = siege.gradient(x, margin)
            x, answer = siege.settle(x, answer)
            x = self.move(siege, x, answer.gradient)
        siege.offer(x, margin)


class Overstepping(Climb):
    """Leaves the ball."""

    def move(self, siege: Siege, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return (x + siege.ball.steepest(g, x, siege.ball.radius)).clamp(0, 1)


class Smuggling(Climb):
    """Puts images outside the ball where the results are kept."""

    value = 0.5

    def run(self, siege: Siege) -> None:
        siege.record.images[:] = self.value


class SmugglingOutOfTheBox(Smuggling):
    value = -0.1


class Repainting(Climb):
    """Works on the clean images themselves."""

    goals = frozenset({ANY, Goal.RANDOM})

    def start(self, siege: Siege) -> torch.Tensor:
        return siege.ball.center.add_(0.05).clamp_(0, 1)


class Mistyped(Climb):
    """Raises in the first line it runs, deep in a file that is not its own."""

    def start(self, siege: Siege) -> torch.Tensor:
        return siege.ball.sample(None)  # type: ignore[arg-type]  # that is the point


class Boasting(Climb):
    """Claims what it did not do."""

    def run(self, siege: Siege) -> None:
        super().run(siege)
        siege.record.success[:] = True
        siege.record.distance[:] = 0.0


class Hairline(Climb):
    """Looks for the smallest change by its own argmax, and ends where rounding decides."""

    minimal = True

    def run(self, siege: Siege) -> None:
        record, clean = siege.record, siege.ball.center
        g = siege.gradient(clean, margin).gradient
        far, near = (clean + g / g.flatten(1).norm(dim=1).view(-1, 1, 1, 1) * 3).clamp(0, 1), clean
        for _ in range(60):
            middle = (far + near) / 2
            beyond = siege.logits(middle).logits.argmax(1) != siege.aim.labels
            far = torch.where(beyond.view(-1, 1, 1, 1), middle, far)
            near = torch.where(beyond.view(-1, 1, 1, 1), near, middle)
        won = siege.logits(far).logits.argmax(1) != siege.aim.labels
        rows = siege.rows[won]
        record.images[rows], record.success[rows] = far[won], True
        record.distance[rows] = siege.ball.distance(far)[won]


class Mingling(Climb):
    """Normalises gradients over the batch."""

    def move(self, siege: Siege, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return siege.ball.project(x + 2.0 * g / g.norm())


class Gambling(Climb):
    """Draws from one generator for the whole batch."""

    def start(self, siege: Siege) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        noise = torch.rand(siege.ball.center.shape, generator=generator) - 0.5
        return siege.ball.project(siege.ball.center + 0.1 * noise)


class Meddling(Climb):
    """Draws from the global generators."""

    def start(self, siege: Siege) -> torch.Tensor:
        self.draw()
        return super().start(siege)

    def draw(self) -> None:
        torch.rand(1)


class MeddlingWithNumpy(Meddling):
    def draw(self) -> None:
        np.random.rand()


class MeddlingWithPython(Meddling):
    def draw(self) -> None:
        random.random()


class Smearing(Climb):
    """Hands the model's own parameters gradients."""

    def start(self, siege: Siege) -> torch.Tensor:
        victim = siege._queries.oracle.victim
        for parameter in getattr(victim, "module", torch.nn.Identity()).parameters():
            parameter.grad = torch.zeros_like(parameter)
        return super().start(siege)


class Stuck(Climb):
    """Draws the same whatever the seed."""

    def start(self, siege: Siege) -> torch.Tensor:
        ids = torch.arange(len(siege.record.labels))[siege.rows]
        return siege.ball.sample(type(siege.dice).throw(0, ids))


class Peeping(Climb):
    """Asks the victim past the meter."""

    def start(self, siege: Siege) -> torch.Tensor:
        siege._queries.oracle.logits(siege.ball.center)
        return super().start(siege)


class Greedy(Climb):
    """Says it needs labels only, and asks for gradients."""

    access = Access.DECISION


class Idle(Climb):
    """Does nothing but look."""

    def move(self, siege: Siege, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return x

    def start(self, siege: Siege) -> torch.Tensor:
        return siege.ball.center


class Lame(Climb):
    """Goes half of the way it may."""

    def move(self, siege: Siege, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        half = siege.ball.of(0.5 * siege.ball.radius)
        return half.project(x + half.steepest(g, x, half.radius))


class Hoarding(Climb):
    """Is careless when it may ask much."""

    def run(self, siege: Siege) -> None:
        if (siege.record.meter.budget or 100) < 9:
            super().run(siege)


class Timid(Climb):
    """Stays where it is in a large ball."""

    def move(self, siege: Siege, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        if bool((siege.ball.radius > 0.12).any()):
            return siege.ball.center
        return super().move(siege, x, g)


class Scaled(Climb):
    """Adds a constant to what has no scale."""

    def move(self, siege: Siege, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return siege.ball.project(x + siege.ball.scaled(siege.ball.radius) * g / (g.abs() + 1e-2))


class Absolute(Climb):
    """Makes steps of a length of its own."""

    def move(self, siege: Siege, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        length = torch.full_like(siege.ball.radius, 0.01)
        return siege.ball.project(x + siege.ball.steepest(g, x, length))


class Centred(Climb):
    """Takes grey for black."""

    def start(self, siege: Siege) -> torch.Tensor:
        return 0.5 * siege.ball.center


class Straying(Climb):
    """Asks about points outside of the box."""

    def start(self, siege: Siege) -> torch.Tensor:
        return siege.ball.center - siege.ball.scaled(siege.ball.radius)


class Dividing(Climb):
    """Divides by the length of the gradient, whatever that is."""

    def move(self, siege: Siege, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return siege.ball.project(x + g / g.flatten(1).norm(dim=1).view(-1, 1, 1, 1))


class Blind(Climb):
    """Raises cross-entropy, and hides that it vanished."""

    def run(self, siege: Siege) -> None:
        siege.gradient(siege.ball.center, cross_entropy)
        siege.record.vanished[:] = False


class Square(Climb):
    """Works on square images only."""

    def move(self, siege: Siege, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return super().move(siege, x, 0.5 * (g + g.transpose(2, 3)))


class TenClasses(Climb):
    """Takes the third class for granted."""

    def run(self, siege: Siege) -> None:
        siege.ranked()[:, 1]
        super().run(siege)


@dataclass(frozen=True)
class Guessing(Attack):
    """An honest attack by labels alone."""

    access = Access.DECISION

    def run(self, siege: Siege) -> None:
        for turn in range(6):
            siege.labels(siege.ball.shell(siege.dice.of(turn)))
            siege.settle()
            if not len(siege):
                return


@dataclass(frozen=True)
class Scoring(Attack):
    """An honest attack by scores: takes noise that raises the margin, several tries at a time."""

    access = Access.SCORE
    tries: int = 4

    def run(self, siege: Siege) -> None:
        x = siege.ball.center
        best = torch.full((len(siege),), -torch.inf)
        for turn in range(3):
            counter = torch.arange(self.tries).expand(len(siege), -1) + turn * self.tries
            noise = siege.dice.signs(x.shape[1:], counter)
            points = siege.ball.project(x[:, None] + noise * siege.ball.width)
            answer = siege.logits(points, loss=margin)
            assert answer.loss is not None
            top, choice = answer.loss.max(1)
            better = top > best
            rows = torch.arange(len(siege))
            x = torch.where(better[:, None, None, None], points[rows, choice], x)
            best = torch.maximum(top, best)
            x, best = siege.settle(x, best)
            if not len(siege):
                return


class Plain(Attack):
    """No dataclass."""

    def run(self, siege: Siege) -> None: ...


@dataclass
class Thawed(Plain):
    """No frozen one."""


@dataclass(frozen=True)
class Silent(Climb):
    pass

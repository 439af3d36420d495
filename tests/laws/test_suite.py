"""The laws go red: for each, an attack that breaks it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from besiege.attacks.attack import Attack
from besiege.attacks.losses import cross_entropy, margin
from besiege.core.oracle import Access
from besiege.core.siege import ATTACKS, Siege, register
from besiege.core.threat import Goal, Linf, Norm
from besiege.testing import LAWS, Case, cases, conform
from besiege.testing.laws import (
    access,
    feasible,
    honest_accounts,
    judged,
    more_never_hurts,
    not_idle,
    repeatable,
    row_independent,
    scale_and_classes,
)

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


class Boasting(Climb):
    """Claims what it did not do."""

    def run(self, siege: Siege) -> None:
        super().run(siege)
        siege.record.success[:] = True
        siege.record.distance[:] = 0.0


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
        victim = siege._oracle.victim
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
        siege._oracle.logits(siege.ball.center)
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


BREACHES = [
    (feasible, Overstepping, "the largest change is"),
    (judged, Boasting, "claimed successes are none"),
    (row_independent, Mingling, "differ in the batch and"),
    (row_independent, Gambling, "differ in the batch and"),
    (repeatable, Meddling, "changed the random state: torch"),
    (repeatable, MeddlingWithNumpy, "changed the random state: numpy"),
    (repeatable, MeddlingWithPython, "changed the random state: random"),
    (repeatable, Smearing, "changed the model: grad of"),
    (repeatable, Stuck, "another seed drew the same"),
    (honest_accounts, Peeping, "and the meter says"),
    (access, Greedy, "AccessError"),
    (not_idle, Idle, "and noise of that size"),
    (not_idle, Lame, "rows of the linear victim stood"),
    (more_never_hurts, Hoarding, "were lost with"),
    (more_never_hurts, Timid, "robust accuracy is"),
    (scale_and_classes, Scaled, "with logits times"),
    (scale_and_classes, Blind, "W11 was not told"),
    (scale_and_classes, Square, "RuntimeError"),
    (scale_and_classes, TenClasses, "IndexError"),
]


def test_the_honest_attack_conforms() -> None:
    tried = conform(Climb())
    assert tried == list(cases(Climb())) == [Case(law, Linf, ANY) for law in LAWS]


@pytest.mark.parametrize(
    ("law", "attack", "seen"), BREACHES, ids=lambda v: getattr(v, "__name__", None)
)
def test_a_breach_is_seen_and_told(law: object, attack: type[Attack], seen: str) -> None:
    assert callable(law)
    with pytest.raises(AssertionError) as told:
        law(attack(), Linf, ANY)
    message = str(told.value)
    assert seen in message
    for fact in (f"law {law.number} ({law.name})", attack.__name__, "linf", "untargeted"):  # type: ignore[attr-defined]  # laws have a number and a name
        assert fact in message


def test_what_is_found_outside_the_ball_is_no_success() -> None:
    """An attack may ask anywhere, and many must; only points of the ball count."""
    judged(Overstepping(), Linf, ANY)


def test_conform_tells_all_breaches_at_once() -> None:
    with pytest.raises(AssertionError, match="breaks the laws in") as told:
        conform(Idle())
    assert "law 7" in str(told.value)


def test_an_exception_with_a_reason_excuses_the_law_or_a_part_of_it() -> None:
    case = Case("not_idle", Linf, ANY)
    reasons = {"Lame": {"not_idle:linear": "it limps"}}
    assert case.check(Lame(), reasons) is None
    assert case.check(Idle(), {"Idle": {"not_idle": "it rests"}}) == "it rests"
    with pytest.raises(AssertionError):
        case.check(Lame())


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
            step = siege.ball.scaled(0.7 * siege.ball.radius)[:, None]
            points = siege.ball.project(x[:, None] + noise * step)
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


@pytest.fixture
def guessing() -> Iterator[str]:
    register("guessing")(Guessing)
    yield "guessing"
    del ATTACKS._known["guessing"]


@pytest.mark.parametrize("attack", [Guessing(), Scoring()], ids=str)
@pytest.mark.parametrize(
    ("norm", "goal"),
    list(zip(Norm, (ANY, Goal.RANDOM, Goal.SECOND, Goal.GIVEN), strict=True)),
    ids=str,
)
def test_attacks_of_less_access_obey_what_is_not_about_strength(
    attack: Attack, norm: Norm, goal: Goal
) -> None:
    for law in LAWS:
        if law != "not_idle":
            # Random search loses rows as the ball grows: noise is all it has.
            LAWS[law](attack, norm, goal, without=("eps",))


def test_the_refusal_lists_a_fitting_attack_once_there_is_one(
    guessing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    access("pgd", Linf, ANY)
    # The list is compared with the registry, so that a refusal that lists nobody is seen.
    monkeypatch.setattr("besiege.evaluation.crafting.fitting", lambda _: [])
    with pytest.raises(AssertionError, match=f"does not name {guessing}"):
        access("pgd", Linf, ANY)

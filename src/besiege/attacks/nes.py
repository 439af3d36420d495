"""NES, SPSA and RGF: climbs along gradients estimated from scores.

They are one loop. An iteration asks about the point and about probes around it, and makes one step
along the estimate; they differ in the directions of the probes, in whether these come in pairs and
in the rule of the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.estimates import (
    Draw,
    Estimate,
    Smooth,
    Told,
    estimate,
    gaussian,
    rademacher,
    sphere,
)
from besiege.attacks.losses import margin
from besiege.attacks.weighting import Adam, corrections
from besiege.core.answer import Loss
from besiege.core.attack_registry import register
from besiege.core.ball import distances
from besiege.core.fields import a_loss, number, one_of, whole_number
from besiege.core.oracle import Access
from besiege.core.siege import Siege
from besiege.core.threat import L2, Linf

DECAYS = (0.9, 0.999)
"""Adam's decay rates, as usual."""

PRESETS: Mapping[str, str] = MappingProxyType(
    {
        "nes-2018": "nes(steps=200, pairs=25, sigma=0.001, rate=0.2, momentum=0.9, window=5)",
        "nes-realsafe": "nes(steps=200, pairs=50, sigma=0.001, rate=0.15, momentum=0)",
        "nes-realsafe-strength": "nes(steps=40, pairs=250, sigma=0.001, rate=0.15, momentum=0)",
        "spsa-2018": "spsa(steps=100, pairs=1024, sigma=0.01, rate=0.32)",
        "spsa-realsafe": "spsa(steps=200, pairs=50, sigma=0.001, rate=0.3)",
        "spsa-realsafe-sign": "spsa(steps=200, pairs=50, sigma=0.001, rate=0.15, by='sign')",
        "rgf-2019": "rgf(steps=200, probes=50, sigma=0.0001, rate=0.1)",
    }
)
"""Published settings: Ilyas et al. 2018, RealSafe 2020 (whose paper may mean pairs where its code
counts both members of one: here it is the code), Uesato et al. 2018, Cheng et al. 2019. Rates are
shares of the budget they were published for."""


S = TypeVar("S")


class Rule(Protocol[S]):
    """How a step is made of an estimate; all its state has the rows first."""

    def begin(self, siege: Siege) -> S:
        """The state before the first step."""

    def move(self, siege: Siege, x: Tensor, told: Estimate, state: S) -> tuple[Tensor, S]:
        """How far to move, and the state afterwards."""


class Pace(NamedTuple):
    """The state of `Plateau`: the length, the last losses and how many, the gradient before."""

    rate: Tensor
    past: Tensor
    seen: Tensor
    before: Tensor


@dataclass(frozen=True)
class Plateau:
    """Steepest steps whose length is halved when the loss does not rise any more.

    Attributes
    ----------
    rate, floor : float
        The first length, in shares of the budget, and the least, in shares of the first.
    window : int
        Over so many steps the loss must have risen.
    momentum : float
        The share of the gradients before in the one that is followed.
    """

    rate: float
    floor: float
    window: int
    momentum: float

    def begin(self, siege: Siege) -> Pace:
        """Full length, an empty window, no gradient."""
        rate = torch.full_like(siege.ball.radius, self.rate)
        past = torch.full((len(rate), self.window), -torch.inf, device=rate.device)
        return Pace(rate, past, torch.zeros_like(siege.rows), torch.zeros_like(siege.ball.center))

    def move(self, siege: Siege, x: Tensor, told: Estimate, state: Pace) -> tuple[Tensor, Pace]:
        """One steepest step."""
        rate, past, seen, before = state
        past = torch.cat((past[:, 1:], told.loss[:, None].to(past.dtype)), 1)
        seen = seen + 1
        flat = (seen >= self.window) & ~(past[:, -1] > past[:, 0])
        rate = torch.where(flat, (rate / 2).clamp_min(self.floor * self.rate), rate)
        seen = seen * ~flat  # the window begins anew
        g = told.gradient
        if self.momentum:
            g = before.mul(self.momentum).add_(g, alpha=1.0 - self.momentum)
            before = g
        move = siege.ball.steepest(g, x, rate * siege.ball.radius)
        return move, Pace(rate, past, seen, before)


@dataclass(frozen=True)
class Adaptive:
    """Adam's steps, in shares of the budget: at rate one a steady climb crosses it in one."""

    rate: float
    steps: int

    def begin(self, siege: Siege) -> Adam:
        """At rest."""
        return Adam.at(siege.ball.center)

    def move(self, siege: Siege, x: Tensor, told: Estimate, state: Adam) -> tuple[Tensor, Adam]:
        """One step of Adam."""
        ball = siege.ball
        table = corrections(DECAYS, self.steps, x.device)
        adam, move = state.step(told.gradient, DECAYS, table)
        # Its entries are about one, so that it is as long as the vector of ones.
        whole = distances(torch.ones_like(x), ball.norm)
        return move.mul_(ball.scaled(self.rate * ball.radius / whole)), adam


@dataclass(frozen=True)
class Climb(Attack):
    """The loop that NES, SPSA and RGF share: estimate, settle, step; the last point is offered.

    The point itself is asked about together with the probes around it: that is how a success is
    seen, what one-sided differences are taken from and what tells whether the climb goes on.
    """

    steps: int = whole_number(390)
    sigma: float = number(0.001, above=0)
    rate: float = number(0.15, above=0)
    loss: Loss = a_loss(margin)

    access = Access.SCORE
    norms = frozenset({Linf, L2})
    paired: ClassVar[bool] = True
    unit: ClassVar[str] = "pairs"
    """Which parameter says how many directions a step has."""

    @property
    def draw(self) -> Draw:
        """Where probes are."""
        raise NotImplementedError

    @property
    def many(self) -> int:
        """Directions per step."""
        return int(getattr(self, self.unit))

    def rule(self) -> Rule[Any]:
        """How steps are made of estimates."""
        raise NotImplementedError

    def cost(self, shape: tuple[int, ...], classes: int) -> int:
        return self.steps * (1 + self.many * (2 if self.paired else 1)) + 1

    def run(self, siege: Siege) -> None:
        rule, loss = self.rule(), Told(self.loss)
        probes = partial(
            estimate, draw=self.draw, many=self.many, sigma=self.sigma, paired=self.paired
        )
        x, state = siege.ball.center, rule.begin(siege)
        for step in range(self.steps):
            told = probes(siege, x, loss, step=step)
            x, told, state = siege.settle(x, told, state)
            if not len(siege):
                return
            move, state = rule.move(siege, x, told, state)
            x = siege.ball.confine(x + move)
        siege.offer(x, loss)


@register("nes")
@dataclass(frozen=True)
class NES(Climb):
    """Steepest steps along ``mean((f(x + sigma u) - f(x - sigma u)) / (2 sigma) u)``, u normal.

    The step is halved where the loss has not risen for a while (Ilyas et al., Black-box
    adversarial attacks with limited queries and information, 2018). Each direction costs two
    queries, and the point itself one. RealSafe's fifty pairs a step without momentum are
    `PRESETS`; fewer pairs and half of the gradient before need two thirds of their queries.

    Parameters
    ----------
    steps : int
        Steps, each of ``2 pairs + 1`` queries.
    sigma : float
        The size of the probes, in widths of the box. Noise in a victim's answers hides its slope
        from small ones: the noise of a slope is that of the answers divided by sigma.
    rate : float
        The first length of a step, in shares of the budget.
    loss : callable
        What is raised.
    pairs : int
        Directions per step. Others count both members of a pair.
    floor : float
        The least length of a step, in shares of the first.
    window : int
        Steps over which the loss must have risen, or the length is halved.
    momentum : float
        The share of the gradients before in the one that is followed.

    Examples
    --------
    >>> str(NES(pairs=25, momentum=0.9))
    'nes(pairs=25, momentum=0.9)'
    """

    steps: int = whole_number(490)
    pairs: int = whole_number(20)
    floor: float = number(0.1, above=0)
    window: int = whole_number(20, 2)
    momentum: float = number(0.5, below=1, what="a share")

    source: ClassVar[str] = "Ilyas et al., Black-box attacks with limited queries, 2018"

    @property
    def draw(self) -> Draw:
        return gaussian

    def rule(self) -> Rule[Any]:
        return Plateau(self.rate, self.floor, self.window, self.momentum)


@register("spsa")
@dataclass(frozen=True)
class SPSA(Climb):
    """Adam along ``mean((f(x + sigma u) - f(x - sigma u)) / (2 sigma) u)``, u random signs.

    Probes are taken around the point reached (Uesato et al., Adversarial risk and the dangers of
    evaluating against weak attacks, 2018). Each direction costs two queries, and the point itself
    one. RealSafe's fifty pairs a step are in `PRESETS`.

    Parameters
    ----------
    steps : int
        Steps, each of ``2 pairs + 1`` queries.
    sigma : float
        The size of the probes in every entry, in widths of the box.
    rate : float
        Adam's rate, in shares of the budget.
    loss : callable
        What is raised.
    pairs : int
        Directions per step. Others count both members of a pair.
    by : str
        'adam', or 'sign' for steepest steps as in NES.

    Examples
    --------
    >>> str(SPSA(pairs=64))
    'spsa(pairs=64)'
    """

    steps: int = whole_number(490)
    rate: float = number(0.3, above=0)
    pairs: int = whole_number(20)
    by: str = one_of("adam", "sign")

    source: ClassVar[str] = "Uesato et al., Adversarial risk and weak attacks, 2018"

    @property
    def draw(self) -> Draw:
        return rademacher

    def rule(self) -> Rule[Any]:
        if self.by == "adam":
            return Adaptive(self.rate, self.steps)
        return Plateau(self.rate, floor=0.1, window=20, momentum=0.0)


@register("rgf")
@dataclass(frozen=True)
class RGF(Climb):
    """Steepest steps along ``mean((f(x + sigma u) - f(x)) / sigma u)``, u on the sphere.

    All differences share the answer at the point: a direction costs one query, half as much as in
    NES, and the estimate is off by the curvature and by the noise of that one answer (Nesterov and
    Spokoiny 2017; Cheng et al., Improving black-box attacks with a transfer-based prior, 2019).

    Parameters
    ----------
    steps : int
        Steps, each of ``probes + 1`` queries.
    sigma : float
        The size of the probes, root mean square of the entries, in widths of the box.
    rate : float
        The first length of a step, in shares of the budget.
    loss : callable
        What is raised.
    probes : int
        Directions per step.
    floor, window
        When a step is halved and how often, as in NES.
    low : int, optional
        Directions are drawn on a grid of so many entries a side and enlarged, tile by tile: for
        victims whose gradients are smooth.

    Examples
    --------
    >>> str(RGF(probes=100))
    'rgf(probes=100)'
    """

    probes: int = whole_number(50)
    floor: float = number(0.1, above=0)
    window: int = whole_number(20, 2)
    low: int | None = whole_number(None)

    paired: ClassVar[bool] = False
    unit: ClassVar[str] = "probes"
    source: ClassVar[str] = "Cheng et al., Improving attacks with a transfer-based prior, 2019"

    @property
    def draw(self) -> Draw:
        return sphere if self.low is None else Smooth(self.low)

    def rule(self) -> Rule[Any]:
        return Plateau(self.rate, self.floor, self.window, momentum=0.0)

"""NES, SPSA and RGF: ascent along gradients estimated from scores.

They share one loop: query the iterate and probes around it, then step along the estimate. They
differ in the distribution of the probes, in whether these come in pairs, and in the update rule.
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
    ScoreLoss,
    Smooth,
    estimate,
    gaussian,
    rademacher,
    sphere,
)
from besiege.attacks.losses import margin
from besiege.attacks.weighting import USUAL_DECAYS, Adam, corrections
from besiege.core.answer import Loss
from besiege.core.attack_registry import register
from besiege.core.ball import distances
from besiege.core.fields import a_loss, number, one_of, whole_number
from besiege.core.oracle import Access
from besiege.core.siege import Siege
from besiege.core.threat import L2, Linf

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
"""Published settings: Ilyas et al. 2018, RealSafe 2020 (its paper may mean pairs where its code
counts both members of one; here as in its code), Uesato et al. 2018, Cheng et al. 2019. Rates are
fractions of the budget they were published for."""


S = TypeVar("S")


class Rule(Protocol[S]):
    """The update rule of a step; its state has rows first."""

    def begin(self, siege: Siege) -> S:
        """The state before the first step."""

    def move(self, siege: Siege, x: Tensor, probed: Estimate, state: S) -> tuple[Tensor, S]:
        """The step, and the state afterwards."""


class Pace(NamedTuple):
    """The state of `Plateau`: step size, last losses and their number, gradient with momentum."""

    rate: Tensor
    past: Tensor
    seen: Tensor
    before: Tensor


@dataclass(frozen=True)
class Plateau:
    """Steepest steps whose size is halved when the loss stops rising.

    Attributes
    ----------
    rate, floor : float
        First step size, as a fraction of the budget, and the least, as a fraction of the first.
    window : int
        Steps over which the loss must have risen.
    momentum : float
        Weight of earlier gradients.
    """

    rate: float
    floor: float
    window: int
    momentum: float

    def begin(self, siege: Siege) -> Pace:
        """The state before the first step."""
        rate = torch.full_like(siege.ball.radius, self.rate)
        past = torch.full((len(rate), self.window), -torch.inf, device=rate.device)
        return Pace(rate, past, torch.zeros_like(siege.rows), torch.zeros_like(siege.ball.center))

    def move(self, siege: Siege, x: Tensor, probed: Estimate, state: Pace) -> tuple[Tensor, Pace]:
        """One steepest step."""
        rate, past, seen, before = state
        past = torch.cat((past[:, 1:], probed.loss[:, None].to(past.dtype)), 1)
        seen = seen + 1
        flat = (seen >= self.window) & ~(past[:, -1] > past[:, 0])
        rate = torch.where(flat, (rate / 2).clamp_min(self.floor * self.rate), rate)
        seen = seen * ~flat  # restart the window
        g = probed.gradient
        if self.momentum:
            g = before.mul(self.momentum).add_(g, alpha=1.0 - self.momentum)
            before = g
        move = siege.ball.steepest(g, x, rate * siege.ball.radius)
        return move, Pace(rate, past, seen, before)


@dataclass(frozen=True)
class Adaptive:
    """Adam's steps, as fractions of the budget: at rate one a steady ascent crosses it in one."""

    rate: float
    steps: int

    def begin(self, siege: Siege) -> Adam:
        """The state before the first step."""
        return Adam.at(siege.ball.center)

    def move(self, siege: Siege, x: Tensor, probed: Estimate, state: Adam) -> tuple[Tensor, Adam]:
        """One step of Adam."""
        ball = siege.ball
        table = corrections(USUAL_DECAYS, self.steps, x.device)
        adam, move = state.step(probed.gradient, USUAL_DECAYS, table)
        # Its components are about one, so that its length is that of the vector of ones.
        whole = distances(torch.ones_like(x), ball.norm)
        return move.mul_(ball.scaled(self.rate * ball.radius / whole)), adam


@dataclass(frozen=True)
class ScoreAscent(Attack):
    """The loop of NES, SPSA and RGF: estimate, settle, step; the last iterate is queried as well.

    The iterate is queried together with the probes: for success, for one-sided differences and for
    the update rule.
    """

    steps: int = whole_number(390)
    sigma: float = number(0.001, above=0)
    rate: float = number(0.15, above=0)
    loss: Loss = a_loss(margin)

    access = Access.SCORE
    norms = frozenset({Linf, L2})
    paired: ClassVar[bool] = True
    unit: ClassVar[str] = "pairs"
    """The parameter that sets the number of directions per step."""

    @property
    def draw(self) -> Draw:
        """The distribution of the probes."""
        raise NotImplementedError

    @property
    def many(self) -> int:
        """Directions per step."""
        return int(getattr(self, self.unit))

    def rule(self) -> Rule[Any]:
        """The update rule."""
        raise NotImplementedError

    def cost(self, shape: tuple[int, ...], classes: int) -> int:
        return self.steps * (1 + self.many * (2 if self.paired else 1)) + 1

    def run(self, siege: Siege) -> None:
        rule, loss = self.rule(), ScoreLoss(self.loss)
        probes = partial(
            estimate, draw=self.draw, many=self.many, sigma=self.sigma, paired=self.paired
        )
        x, state = siege.ball.center, rule.begin(siege)
        for step in range(self.steps):
            probed = probes(siege, x, loss, step=step)
            x, probed, state = siege.settle(x, probed, state)
            if not len(siege):
                return
            move, state = rule.move(siege, x, probed, state)
            x = siege.ball.confine(x + move)
        siege.offer(x, loss)


@register("nes")
@dataclass(frozen=True)
class NES(ScoreAscent):
    """Steepest steps along ``mean((f(x + sigma u) - f(x - sigma u)) / (2 sigma) u)``, u normal.

    The step size is halved when the loss has not risen for a while (Ilyas et al., Black-box
    adversarial attacks with limited queries and information, 2018). Each direction costs two
    queries, the iterate one. RealSafe's fifty pairs a step without momentum are in `PRESETS`; fewer
    pairs and a momentum of one half need two thirds of their queries.

    Parameters
    ----------
    steps : int
        Steps of ``2 pairs + 1`` queries.
    sigma : float
        Size of the probes, in box widths. Noise in a victim's answers hides the slope of small
        ones: the noise of a slope is that of the answers divided by sigma.
    rate : float
        First step size, as a fraction of the budget.
    loss : callable
        Loss to maximize.
    pairs : int
        Directions per step. Other libraries count both members of a pair.
    floor : float
        Least step size, as a fraction of the first.
    window : int
        Steps over which the loss must have risen, or the step size is halved.
    momentum : float
        Weight of earlier gradients.

    Examples
    --------
    >>> str(NES(pairs=25, momentum=0.9))
    'nes(pairs=25, momentum=0.9)'
    """

    steps: int = whole_number(490)
    pairs: int = whole_number(20)
    floor: float = number(0.1, above=0)
    window: int = whole_number(20, 2)
    momentum: float = number(0.5, below=1, what="a fraction")

    source: ClassVar[str] = "Ilyas et al., Black-box attacks with limited queries, 2018"

    @property
    def draw(self) -> Draw:
        return gaussian

    def rule(self) -> Rule[Any]:
        return Plateau(self.rate, self.floor, self.window, self.momentum)


@register("spsa")
@dataclass(frozen=True)
class SPSA(ScoreAscent):
    """Adam along ``mean((f(x + sigma u) - f(x - sigma u)) / (2 sigma) u)``, u random signs.

    Probes are taken around the current iterate (Uesato et al., Adversarial risk and the dangers of
    evaluating against weak attacks, 2018). Each direction costs two queries, the iterate one.
    RealSafe's fifty pairs a step are in `PRESETS`.

    Parameters
    ----------
    steps : int
        Steps of ``2 pairs + 1`` queries.
    sigma : float
        Size of the probes per pixel value, in box widths.
    rate : float
        Adam's rate, as a fraction of the budget.
    loss : callable
        Loss to maximize.
    pairs : int
        Directions per step. Other libraries count both members of a pair.
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
class RGF(ScoreAscent):
    """Steepest steps along ``mean((f(x + sigma u) - f(x)) / sigma u)``, u on the sphere.

    All differences share the answer at the iterate: a direction costs one query, half as much as in
    NES, but curvature and the noise of that answer bias the estimate (Nesterov and Spokoiny 2017;
    Cheng et al., Improving black-box attacks with a transfer-based prior, 2019).

    Parameters
    ----------
    steps : int
        Steps of ``probes + 1`` queries.
    sigma : float
        Size of the probes, root mean square per pixel value, in box widths.
    rate : float
        First step size, as a fraction of the budget.
    loss : callable
        Loss to maximize.
    probes : int
        Directions per step.
    floor, window
        When the step size is halved, and its least value, as in NES.
    low : int, optional
        Side of the coarse grid on which directions are drawn and from which they are enlarged by
        tiles: for victims with smooth gradients.

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

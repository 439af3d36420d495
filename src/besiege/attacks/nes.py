"""NES, SPSA and RGF: ascent along gradients estimated from scores.

They share one loop: query the iterate and probes around it, then step along the estimate. They
differ in the distribution of the probes, in whether these come in pairs, and in the update rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
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
    visible,
)
from besiege.attacks.losses import margin
from besiege.attacks.pieces import unboxed
from besiege.attacks.weighting import USUAL_DECAYS, Adam, corrections
from besiege.core.answer import Loss
from besiege.core.attack_registry import register
from besiege.core.ball import Ball, distances
from besiege.core.fields import a_loss, number, one_of, whole_number, yes_or_no
from besiege.core.oracle import Access
from besiege.core.siege import Siege
from besiege.core.threat import L2, Linf

BLIND = 5.0
"""Growth of probes where no difference was seen."""

LARGEST = 0.1
"""Largest size of probes that have grown, in box widths."""

S = TypeVar("S")


class Rule(Protocol[S]):
    """The update rule of a step; its state has rows first."""

    def begin(self, siege: Siege) -> S:
        """The state before the first step."""

    def move(self, ball: Ball, x: Tensor, probed: Estimate, state: S) -> tuple[Tensor, S]:
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
    watch : str
        The loss that must rise: at the 'iterate', or the mean of the 'probes', as first published;
        there a loss that stays the same is no plateau.
    """

    rate: float
    floor: float
    window: int
    momentum: float
    watch: str = "iterate"

    def begin(self, siege: Siege) -> Pace:
        """The state before the first step."""
        rate = torch.full_like(siege.ball.radius, self.rate)
        past = torch.full((len(rate), self.window), -torch.inf, device=rate.device)
        return Pace(rate, past, torch.zeros_like(siege.rows), torch.zeros_like(siege.ball.center))

    def move(self, ball: Ball, x: Tensor, probed: Estimate, state: Pace) -> tuple[Tensor, Pace]:
        """One steepest step."""
        rate, past, seen, before = state
        loss = probed.loss if self.watch == "iterate" else probed.around
        past = torch.cat((past[:, 1:], loss[:, None].to(past.dtype)), 1)
        worse = past[:, -1] < past[:, 0] if self.watch == "probes" else ~(past[:, -1] > past[:, 0])
        seen = seen + 1
        flat = (seen >= self.window) & worse
        rate = torch.where(flat, (rate / 2).clamp_min(self.floor * self.rate), rate)
        seen = seen * ~flat  # restart the window
        g = probed.gradient
        if self.momentum:
            g = before.mul(self.momentum).add_(g, alpha=1.0 - self.momentum)
            before = g
        move = ball.steepest(g, x, rate * ball.radius)
        return move, Pace(rate, past, seen, before)


@dataclass(frozen=True)
class Adaptive:
    """Adam's steps, as fractions of the budget: at rate one a steady ascent crosses it in one."""

    rate: float
    steps: int

    def begin(self, siege: Siege) -> Adam:
        """The state before the first step."""
        return Adam.at(siege.ball.center)

    def move(self, ball: Ball, x: Tensor, probed: Estimate, state: Adam) -> tuple[Tensor, Adam]:
        """One step of Adam."""
        table = corrections(USUAL_DECAYS, self.steps, x.device)
        adam, move = state.step(probed.gradient, USUAL_DECAYS, table)
        # Its components are about one, so that its length is that of the vector of ones.
        whole = distances(torch.ones_like(x), ball.norm)
        return move.mul_(ball.scaled(self.rate * ball.radius / whole)), adam


def larger(ball: Ball, sigma: Tensor) -> Tensor:
    """The sizes of probes after they showed no difference; never smaller than before."""
    return torch.maximum((BLIND * sigma).clamp_max(LARGEST * ball.width), sigma)


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
    exact: bool = yes_or_no(True, added=True)

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
    def grows(self) -> bool:
        """Whether probes grow where they show no difference."""
        return False

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
        probes = partial(estimate, draw=self.draw, many=self.many, paired=self.paired)
        x, state = siege.ball.center, rule.begin(siege)
        size = visible(siege.ball, self.sigma, self.draw, paired=self.paired)
        sigma = torch.full((len(siege),), size, device=x.device)
        for step in range(self.steps):
            probed = probes(siege, x, loss, sigma=sigma, step=step)
            x, probed, state, sigma = siege.settle(x, probed, state, sigma)
            if not len(siege):
                return
            if self.grows:
                blind = ~probed.gradient.flatten(1).any(1)
                sigma = torch.where(blind, larger(siege.ball, sigma), sigma)
            x, state = self.advance(siege.ball, x, probed, rule, state)
        siege.offer(x, loss)

    def advance(
        self, ball: Ball, x: Tensor, probed: Estimate, rule: Rule[S], state: S
    ) -> tuple[Tensor, S]:
        """The next iterate, inside ball and box, and the state of the update rule."""
        if self.exact:
            move, state = rule.move(ball, x, probed, state)
            return ball.confine(x + move), state
        free = unboxed(ball)
        move, state = rule.move(free, x, probed, state)
        return free.confine(x + move).clamp(*ball.box), state


@register("nes")
@dataclass(frozen=True)
class NES(ScoreAscent):
    """Steepest steps along ``mean((f(x + sigma u) - f(x - sigma u)) / (2 sigma) u)``, u normal.

    The step size is halved when the loss has not risen for a while (Ilyas et al., Black-box
    adversarial attacks with limited queries and information, 2018). Each direction costs two
    queries, the iterate one. Fewer pairs and a momentum of one half need two thirds of the queries
    of ``nes@realsafe-code``, with its fifty.

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
    exact : bool
        False takes steps in l2 as if there were no box, scales what leaves the ball and then clips
        it to the box, as usual elsewhere. By default steps use the room in the box.
    pairs : int
        Directions per step. Other libraries count both members of a pair.
    floor : float
        Least step size, as a fraction of the first.
    window : int
        Steps over which the loss must have risen, or the step size is halved.
    momentum : float
        Weight of earlier gradients.
    watch : str
        Which loss must rise: at the 'iterate', or the mean of the 'probes' as first published,
        where the step size is halved only if it has fallen.

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
    watch: str = one_of("iterate", "probes", added=True)

    source: ClassVar[str] = "Ilyas et al., Black-box attacks with limited queries, 2018"

    @property
    def draw(self) -> Draw:
        return gaussian

    def rule(self) -> Rule[Any]:
        return Plateau(self.rate, self.floor, self.window, self.momentum, self.watch)


@register("spsa")
@dataclass(frozen=True)
class SPSA(ScoreAscent):
    """Adam along ``mean((f(x + sigma u) - f(x - sigma u)) / (2 sigma) u)``, u random signs.

    Probes are taken around the current iterate (Uesato et al., Adversarial risk and the dangers of
    evaluating against weak attacks, 2018). Each direction costs two queries, the iterate one.

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
    exact : bool
        False takes steps in l2 as if there were no box, scales what leaves the ball and then clips
        it to the box, as usual elsewhere. By default steps use the room in the box.
    pairs : int
        Directions per step. Other libraries count both members of a pair.
    by : str
        'adam', or 'sign' for steepest steps as in NES.
    floor : float
        With 'sign', the least step size, as a fraction of the first.

    Examples
    --------
    >>> str(SPSA(pairs=64))
    'spsa(pairs=64)'
    """

    steps: int = whole_number(490)
    rate: float = number(0.3, above=0)
    pairs: int = whole_number(20)
    by: str = one_of("adam", "sign")
    floor: float = number(0.1, above=0, added=True)

    source: ClassVar[str] = "Uesato et al., Adversarial risk and weak attacks, 2018"

    @property
    def draw(self) -> Draw:
        return rademacher

    def rule(self) -> Rule[Any]:
        if self.by == "adam":
            return Adaptive(self.rate, self.steps)
        return Plateau(self.rate, self.floor, window=20, momentum=0.0)


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
    exact : bool
        False takes steps in l2 as if there were no box, scales what leaves the ball and then clips
        it to the box, as usual elsewhere. By default steps use the room in the box.
    probes : int
        Directions per step.
    floor, window
        When the step size is halved, and its least value, as in NES.
    low : int, optional
        Side of the coarse grid on which directions are drawn and from which they are enlarged by
        tiles: for victims with smooth gradients.
    grow : bool
        Whether probes that show no difference are five times as large from the next step on, as
        published: cross-entropy of a confident victim is constant in float32.

    Examples
    --------
    >>> str(RGF(probes=100))
    'rgf(probes=100)'
    """

    probes: int = whole_number(50)
    floor: float = number(0.1, above=0)
    window: int = whole_number(20, 2)
    low: int | None = whole_number(None)
    grow: bool = yes_or_no(False, added=True)

    paired: ClassVar[bool] = False
    unit: ClassVar[str] = "probes"
    source: ClassVar[str] = "Cheng et al., Improving attacks with a transfer-based prior, 2019"

    @property
    def draw(self) -> Draw:
        return sphere if self.low is None else Smooth(self.low)

    @property
    def grows(self) -> bool:
        return self.grow

    def rule(self) -> Rule[Any]:
        return Plateau(self.rate, self.floor, self.window, momentum=0.0)

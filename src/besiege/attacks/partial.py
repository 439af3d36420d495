"""NES against victims that return only the scores of their top classes, or only a label.

A class that is not returned has no score to maximize. So the ascent starts at an image of the
target class, and the ball around the clean image shrinks only as fast as the victim still returns
the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.estimates import (
    Estimate,
    ScoreLoss,
    estimate,
    gaussian,
    portions,
    sent,
    visible,
)
from besiege.attacks.losses import margin
from besiege.attacks.nes import Pace, Plateau
from besiege.attacks.starts import adversarial, find_start, halvings, start_cost, to_boundary
from besiege.core.answer import Loss
from besiege.core.attack_registry import register
from besiege.core.ball import distances
from besiege.core.fields import a_loss, number, whole_number
from besiege.core.oracle import Access
from besiege.core.rowwise import rowwise
from besiege.core.siege import Siege
from besiege.core.threat import ALL_GOALS, L2, Goal, Linf

CLOSE = 0.05
"""How near to the boundary the ascent starts, as a fraction of the start's distance."""

FASTEST, SLOWEST = 0.5, 2.0**-8
"""Largest and smallest fraction by which the ball shrinks at once."""

CLOSINGS = 3
"""Fractions tried in a step, each half of the one before; then the ball stays."""

CUTS = 3
"""Step lengths tried after that; then the iterate stays as well."""

GROWTH = 1.2
"""Growth of the step size while the ball shrinks; otherwise it is halved."""

FLOOR, MOST = 0.1, 4.0
"""Shortest and longest step, relative to the first."""

PRESETS: Mapping[str, str] = MappingProxyType(
    {
        "nes-partial-2018": "nes_partial(pairs=50, sigma=1e-05, rate=0.2, momentum=0.9)",
        "nes-labels-2018": "nes_labels(pairs=50, sigma=0.001, rate=0.2, momentum=0.9, "
        "around=50, mu=0.001)",
    }
)
"""Settings of Ilyas et al. 2018. Rates are fractions of the budget they were published for."""


class State(NamedTuple):
    """The state of the ascent, rows first.

    Attributes
    ----------
    x : Tensor
        The iterates, at which the victim returned the target.
    loss : Tensor
        The loss there.
    radius : Tensor
        Radius of the current ball, float64: the budget or more.
    share : Tensor
        Fraction by which the ball shrinks next, float64.
    pace : Pace
        The state of the update rule.
    """

    x: Tensor
    loss: Tensor
    radius: Tensor
    share: Tensor
    pace: Pace


@dataclass(frozen=True)
class Closing(Attack):
    """The loop of both: estimate, step, and shrink the ball while the target is still returned."""

    steps: int = whole_number(800)
    pairs: int = whole_number(10)
    sigma: float = number(0.001, above=0)
    rate: float = number(0.1, above=0)
    momentum: float = number(0.5, below=1, what="a fraction")

    norms = frozenset({Linf, L2})
    goals = ALL_GOALS - {Goal.UNTARGETED}
    uses_starts = True  # with scores too

    @property
    def each(self) -> int:
        """Queries per direction."""
        raise NotImplementedError

    def look(self, siege: Siege, x: Tensor, rows: Tensor) -> Tensor:
        """Query the points of some rows: the loss, -inf where the target was not returned."""
        raise NotImplementedError

    def slope(self, siege: Siege, x: Tensor, loss: Tensor, step: int) -> Estimate:
        """Query probes around all iterates: the gradient, and the loss at the iterates."""
        raise NotImplementedError

    def cost(self, shape: tuple[int, ...], classes: int) -> int:
        begun = start_cost(halvings(1 / CLOSE)) + 1
        return begun + self.steps * (self.each * self.pairs + CLOSINGS + CUTS)

    def run(self, siege: Siege) -> None:
        rule = Plateau(self.rate, FLOOR, window=20, momentum=self.momentum)
        state = self.begin(siege, rule)
        for step in range(self.steps):
            if not len(siege):
                return
            probed = self.slope(siege, state.x, state.loss, step)
            probed, state = siege.settle(probed, state)
            if not len(siege):
                return
            state = siege.settle(self.advance(siege, state, probed, rule))

    def begin(self, siege: Siege, rule: Plateau) -> State:
        """Start at the clean image if the target is returned there, else at an image of its class.

        The latter is bisected towards the clean image. Rows without a start leave.
        """
        x, loss = siege.ball.center.clone(), self.clean(siege)
        hidden = (~(loss > -torch.inf)).nonzero()[:, 0]
        if len(hidden):
            some = siege.view(hidden)
            start, found = find_start(some)
            rows = found.nonzero()[:, 0]
            near, far = some.ball.center[rows], start[rows]
            away = distances(far - near, siege.ball.norm)
            x[hidden[rows]] = to_boundary(some, near, far, CLOSE * away, rows)
            loss[hidden[rows]] = self.look(siege, x[hidden[rows]], hidden[rows]).to(loss.dtype)
            siege.leave(~(loss > -torch.inf))
        radius = torch.maximum(siege.ball.radius, distances(x - siege.ball.center, siege.ball.norm))
        share = torch.full_like(radius, FASTEST)
        return siege.settle(State(x, loss, radius, share, rule.begin(siege)))

    def clean(self, siege: Siege) -> Tensor:
        """The loss at the clean images, if known: without scores it is not."""
        return siege.ball.center.new_full((len(siege),), -torch.inf)

    def advance(self, siege: Siege, state: State, probed: Estimate, rule: Plateau) -> State:
        """A step in a smaller ball, or as much of both as keeps the target in the answer."""
        goal, ball = siege.ball.radius, siege.ball
        move, pace = rule.move(siege, state.x, probed, state.pace)
        # Longer in proportion to the ball. A fall of the loss as the ball shrinks is no plateau.
        move = move * ball.scaled(state.radius / goal.clamp_min(1e-30))
        outside = state.radius > goal
        halves = torch.tensor([0.5**n for n in range(CLOSINGS + CUTS)], device=goal.device).double()
        turn = torch.where(outside, 0, CLOSINGS)
        x, loss, radius = state.x.clone(), state.loss.clone(), state.radius.clone()
        share = torch.where(outside, (state.share * halves[CLOSINGS]).clamp_min(SLOWEST), FASTEST)
        rows = torch.arange(len(siege), device=goal.device)
        for _ in range(CLOSINGS + CUTS):
            closing = torch.where(turn < CLOSINGS, state.share[rows] * halves[turn], 0.0)
            to = torch.maximum(goal[rows], state.radius[rows] * (1.0 - closing))
            part = ball.scaled(halves[(turn - CLOSINGS).clamp_min(0)])
            at = ball.at(rows).of(to)
            new = at.confine(state.x[rows] + move[rows] * part)
            value = self.look(siege, new, rows)
            good = value > -torch.inf
            kept = rows[good]
            x[kept], loss[kept] = new[good], value[good].to(loss.dtype)
            radius[kept] = to[good]
            quick = torch.where(turn == 0, 2.0 * closing, closing).clamp_max(FASTEST)
            share[kept] = torch.where(closing > 0, quick, share[rows])[good]
            rows, turn = rows[~good], turn[~good] + 1
            rows, turn = rows[turn < CLOSINGS + CUTS], turn[turn < CLOSINGS + CUTS]
            if not len(rows):
                break
        # If the ball cannot shrink, steps get smaller: long ones are mostly noise.
        other = torch.where(radius < state.radius, GROWTH * pace.rate, 0.5 * pace.rate)
        rate = torch.where(outside, other.clamp(FLOOR * self.rate, MOST * self.rate), pace.rate)
        pace = pace._replace(rate=rate, seen=pace.seen * ~outside)
        return State(x, loss, radius, share, pace)


@register("nes_partial")
@dataclass(frozen=True)
class NESPartial(Closing):
    """NES against a victim that returns its top classes only, from an image of the target class.

    Steps raise the target's score while the ball around the clean image shrinks from the start's
    distance to the budget; steps that lose the target from the answer are undone (Ilyas et al.,
    Black-box adversarial attacks with limited queries and information, 2018). Probes whose answer
    lacks the target are dropped. The loss is the margin, which is exact whenever two classes are
    returned, and the score itself (in the paper log p) when only the target is.

    Unlike the published method: a row whose target is returned at the clean image starts there; a
    start is first bisected towards the clean image; the ball shrinks at every step by a fraction of
    its radius, and steps are longer in proportion to it; if the target is lost, first the shrinkage
    is halved and then the step, and the step size falls while the ball cannot shrink. In the paper
    the ball waits until the target is likely.

    Parameters
    ----------
    steps : int
        Steps of ``2 pairs`` queries and one to six more.
    pairs : int
        Directions per step.
    sigma : float
        Size of the probes, in box widths.
    rate : float
        First step size, as a fraction of the budget.
    momentum : float
        Weight of earlier gradients.
    loss : callable
        Loss to maximize where more than the target is returned.

    Examples
    --------
    >>> str(NESPartial(pairs=50))
    'nes_partial(pairs=50)'
    """

    loss: Loss = a_loss(margin)

    access = Access.SCORE
    source: ClassVar[str] = "Ilyas et al., Black-box attacks with limited information, 2018"

    @property
    def each(self) -> int:
        return 2

    def clean(self, siege: Siege) -> Tensor:
        if siege.aim.clean is None:
            return super().clean(siege)
        return ScoreLoss(self.loss)(siege.aim.clean, siege.aim)

    def look(self, siege: Siege, x: Tensor, rows: Tensor) -> Tensor:
        return siege.logits(x, rows=rows, loss=ScoreLoss(self.loss)).loss

    def slope(self, siege: Siege, x: Tensor, loss: Tensor, step: int) -> Estimate:
        score = ScoreLoss(self.loss)
        return estimate(
            siege, x, score, gaussian, self.pairs, self.sigma, step, paired=True, known=loss
        )


@register("nes_labels")
@dataclass(frozen=True)
class NESLabels(Closing):
    """NES against a victim that returns labels only: a point's score is the rate of target labels.

    ``S(x) = mean(label(x + mu n_i) = t)`` with n_i uniform between -1 and 1 per pixel value
    replaces the score and is measured at both ends of every direction, with the same n_i (Ilyas et
    al., Black-box adversarial attacks with limited queries and information, 2018).

    Parameters
    ----------
    steps : int
        Steps of ``2 pairs around`` queries and one to six more.
    pairs : int
        Directions per step.
    sigma : float
        Size of the probes, in box widths.
    rate : float
        First step size, as a fraction of the budget.
    momentum : float
        Weight of earlier gradients.
    around : int
        Images whose labels make one score; 50 in the paper. For the same number of queries more
        directions help more than more images.
    mu : float
        Their largest distance from the point per pixel value, in box widths.

    Examples
    --------
    >>> str(NESLabels(around=50))
    'nes_labels(around=50)'
    """

    steps: int = whole_number(450)
    pairs: int = whole_number(20)
    sigma: float = number(0.01, above=0)
    around: int = whole_number(1)
    mu: float = number(0.01, above=0)

    access = Access.DECISION
    source: ClassVar[str] = "Ilyas et al., Black-box attacks with limited information, 2018"

    @property
    def each(self) -> int:
        return 2 * self.around

    def look(self, siege: Siege, x: Tensor, rows: Tensor) -> Tensor:
        good = adversarial(siege, siege.labels(x, rows), rows)
        return torch.where(good, 0.0, -torch.inf)

    def slope(self, siege: Siege, x: Tensor, loss: Tensor, step: int) -> Estimate:
        gradient, value = torch.zeros_like(x), torch.zeros_like(loss)
        sigma = visible(siege.ball, self.sigma, gaussian, paired=True)
        for rows in siege.blocks(self.each * self.pairs):
            for some in portions(siege.ball, self.pairs, self.each):
                along, ends = self._ends(siege, rows, x[rows], some.to(x.device), sigma, step)
                slope = (ends[:, :, 0] - ends[:, :, 1]) / (2.0 * sigma * self.pairs)
                weight = rowwise(slope.to(x.dtype), along)
                gradient[rows] += along.mul_(weight).sum(1)
                value[rows] += ends.flatten(1).sum(1).to(value.dtype) / (2.0 * self.pairs)
        return Estimate(gradient, value)

    def _ends(
        self, siege: Siege, rows: Tensor, x: Tensor, some: Tensor, sigma: float, step: int
    ) -> tuple[Tensor, Tensor]:
        """Directions as really sent, and the scores of both ends of each, ``[rows, k, 2]``."""
        ball, shape, k = siege.ball.at(rows), tuple(x.shape[1:]), len(some)
        dice = siege.dice.of("probes", step).at(rows)
        u = gaussian(dice, shape, some.expand(len(rows), -1)).to(x.dtype)
        here = x[:, None]
        ends = torch.stack((sent(ball, here + sigma * u), sent(ball, here - sigma * u)), 2)
        counter = some[:, None] * self.around + torch.arange(self.around, device=x.device)
        drawn = dice.of("around").uniform(shape, counter.flatten().expand(len(rows), -1))
        mu = max(self.mu * ball.width, ball.grid or 0.0)
        drawn = drawn.mul_(2.0 * mu).sub_(mu).to(x.dtype).view(len(rows), k, 1, self.around, *shape)
        images = sent(ball, (ends[:, :, :, None] + drawn).flatten(1, 3))
        good = adversarial(siege, siege.labels(images, rows), rows).view(len(rows), k, 2, -1)
        return (ends[:, :, 0] - ends[:, :, 1]).div_(2.0 * sigma), good.to(x.dtype).mean(3)

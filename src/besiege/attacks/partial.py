"""NES against victims that tell little: the first few classes, or the first one's name alone.

A class that is not told has no score to climb. So the climb begins at an image of the target's
class, where it is told, and the ball that holds it closes in on the clean image no faster than the
victim goes on telling it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.estimates import Estimate, Told, estimate, gaussian, portions, sent, visible
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
"""How near to the boundary a climb begins, in shares of the distance of its start."""

FASTEST, SLOWEST = 0.5, 2.0**-8
"""The largest and the smallest share by which a ball closes in at once."""

CLOSINGS = 3
"""Shares that are tried in a step, each half of the one before; then the ball stays."""

CUTS = 3
"""Lengths of the step that are tried then; then the point stays as well."""

GROWTH = 1.2
"""By how much steps grow while the ball closes in; while it does not they are halved."""

FLOOR, MOST = 0.1, 4.0
"""The shortest and the longest step, in shares of the first."""

PRESETS: Mapping[str, str] = MappingProxyType(
    {
        "nes-partial-2018": "nes_partial(pairs=50, sigma=1e-05, rate=0.2, momentum=0.9)",
        "nes-labels-2018": "nes_labels(pairs=50, sigma=0.001, rate=0.2, momentum=0.9, "
        "around=50, mu=0.001)",
    }
)
"""Published settings: Ilyas et al. 2018. Rates are shares of the budget they were published for."""


class State(NamedTuple):
    """Where a climb is, rows first.

    Attributes
    ----------
    x : Tensor
        The points; the victim was seen to tell the target there.
    loss : Tensor
        What it said.
    radius : Tensor
        Of the balls that hold them, float64: the budget or more.
    share : Tensor
        By how much a ball closes in next, float64.
    pace : Pace
        The state of the rule by which steps are made.
    """

    x: Tensor
    loss: Tensor
    radius: Tensor
    share: Tensor
    pace: Pace


@dataclass(frozen=True)
class Closing(Attack):
    """The loop of both: estimate, step, and close in as far as the target is still told."""

    steps: int = whole_number(800)
    pairs: int = whole_number(10)
    sigma: float = number(0.001, above=0)
    rate: float = number(0.1, above=0)
    momentum: float = number(0.5, below=1, what="a share")

    norms = frozenset({Linf, L2})
    goals = ALL_GOALS - {Goal.UNTARGETED}
    uses_starts = True  # with scores too

    @property
    def each(self) -> int:
        """Queries for the two ends of one direction."""
        raise NotImplementedError

    def look(self, siege: Siege, x: Tensor, rows: Tensor) -> Tensor:
        """Ask about the points of some rows: the loss, -inf where the target was not told."""
        raise NotImplementedError

    def slope(self, siege: Siege, x: Tensor, loss: Tensor, step: int) -> Estimate:
        """Ask about probes around all points: the gradient, and how well the points do."""
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
            told = self.slope(siege, state.x, state.loss, step)
            told, state = siege.settle(told, state)
            if not len(siege):
                return
            state = siege.settle(self.advance(siege, state, told, rule))

    def begin(self, siege: Siege, rule: Plateau) -> State:
        """Where the target is told: at the clean image, or at images of the target's class.

        These are brought near to where the target stops being the answer. Rows without any leave.
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
        """What is known of the clean images: nothing, unless there are scores."""
        return siege.ball.center.new_full((len(siege),), -torch.inf)

    def advance(self, siege: Siege, state: State, told: Estimate, rule: Plateau) -> State:
        """A step in a smaller ball, or as much of both as leaves the target told."""
        goal, ball = siege.ball.radius, siege.ball
        move, pace = rule.move(siege, state.x, told, state.pace)
        # As much longer as the ball is larger. What is lost by closing in is no plateau.
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
        # A ball that does not close in asks for smaller steps: large ones are mostly chance.
        other = torch.where(radius < state.radius, GROWTH * pace.rate, 0.5 * pace.rate)
        rate = torch.where(outside, other.clamp(FLOOR * self.rate, MOST * self.rate), pace.rate)
        pace = pace._replace(rate=rate, seen=pace.seen * ~outside)
        return State(x, loss, radius, share, pace)


@register("nes_partial")
@dataclass(frozen=True)
class NESPartial(Closing):
    """NES on a victim that tells its first few classes: from an image of the target's class.

    Steps raise the target's score while the ball around the clean image closes in from the start's
    distance to the budget, and what loses the target from the answer is taken back (Ilyas et al.,
    Black-box adversarial attacks with limited queries and information, 2018). Probes whose answer
    lacks it are dropped. What is raised is the margin, which is exact wherever two classes are
    told, and the score itself (there log p) where the target is told alone.

    It differs from the published method in this: a row whose target is told at the clean image
    begins there; a start is first brought towards the image by bisection; the ball closes in at
    every step, by a share of its radius, and steps are as much longer as it is larger; what is
    halved first, where the target is lost, is the closing in and not the step, and steps after
    which the ball cannot close in are followed by shorter ones. Published, the ball waits until
    the target is likely.

    Parameters
    ----------
    steps : int
        Steps, each of ``2 pairs`` queries and one to six more.
    pairs : int
        Directions per step.
    sigma : float
        The size of the probes, in widths of the box.
    rate : float
        The first length of a step, in shares of the budget.
    momentum : float
        The share of the gradients before in the one that is followed.
    loss : callable
        What is raised where more than the target is told.

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
        return Told(self.loss)(siege.aim.clean, siege.aim)

    def look(self, siege: Siege, x: Tensor, rows: Tensor) -> Tensor:
        return siege.logits(x, rows=rows, loss=Told(self.loss)).loss

    def slope(self, siege: Siege, x: Tensor, loss: Tensor, step: int) -> Estimate:
        return estimate(
            siege,
            x,
            Told(self.loss),
            gaussian,
            self.pairs,
            self.sigma,
            step,
            paired=True,
            known=loss,
        )


@register("nes_labels")
@dataclass(frozen=True)
class NESLabels(Closing):
    """The same with labels alone: a point's score is how often its surroundings are the target.

    ``S(x) = mean(answer(x + mu n_i) = t)`` with n_i uniform between -1 and 1 in every entry stands
    for the score, and is measured at both ends of every direction (Ilyas et al., Black-box
    adversarial attacks with limited queries and information, 2018). Both ends have the same n_i.

    Parameters
    ----------
    steps : int
        Steps, each of ``2 pairs around`` queries and one to six more.
    pairs : int
        Directions per step.
    sigma : float
        The size of the probes, in widths of the box.
    rate : float
        The first length of a step, in shares of the budget.
    momentum : float
        The share of the gradients before in the one that is followed.
    around : int
        Images whose labels are counted for one score. Published: 50. For the same queries more
        directions tell more than more images do.
    mu : float
        How far around a point they are, in every entry, in widths of the box.

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
        """Directions as they were sent, and the scores of both ends of each, ``[rows, k, 2]``."""
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

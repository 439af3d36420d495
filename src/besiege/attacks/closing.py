"""The loop of NES against victims that hide classes: the ball closes in while the target stays.

A class that is not returned has no score to maximize. So the ascent starts at an image of the
target class, and the ball around the clean image shrinks only as fast as the victim still returns
the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.estimates import Estimate
from besiege.attacks.losses import logit_of
from besiege.attacks.nes import Pace, Plateau
from besiege.attacks.pieces import unboxed
from besiege.attacks.starts import find_start, halvings, start_cost, to_boundary
from besiege.core.answer import Aim, Loss
from besiege.core.ball import Ball, distances
from besiege.core.fields import number, whole_number, yes_or_no
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

LIKELY, LEAST, STILL = 0.2, 0.1, 2e-3
"""As published: the loss below which the ball shrinks, the least first proposal of a step, and the
proposal that counts as none, both as fractions of the box."""

TRIES = 36
"""As published: most points queried in a step, four step lengths for each of nine proposals."""


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
        Fraction by which the ball shrinks next, float64; as published, a fraction of the box.
    pace : Pace
        The state of the update rule.
    """

    x: Tensor
    loss: Tensor
    radius: Tensor
    share: Tensor
    pace: Pace


@dataclass(frozen=True)
class Reported:
    """A loss where all classes are returned; elsewhere the target's score itself, log p.

    Parameters
    ----------
    loss : callable
        Loss to maximize where nothing is hidden.
    """

    loss: Loss

    def __call__(self, logits: Tensor, aim: Aim) -> Tensor:
        assert aim.targets is not None
        whole = (logits > -torch.inf).all(1)
        return torch.where(whole, self.loss(logits, aim), logit_of(logits, aim.targets))


@dataclass(frozen=True)
class HiddenClasses(Attack):
    """The loop of both: estimate, step, and shrink the ball while the target is still returned."""

    steps: int = whole_number(800)
    pairs: int = whole_number(10)
    sigma: float = number(0.001, above=0)
    rate: float = number(0.1, above=0)
    momentum: float = number(0.5, below=1, what="a fraction")
    waits: bool = yes_or_no(False, added=True)

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
        tries = TRIES if self.waits else CLOSINGS + CUTS
        return begun + self.steps * (self.each * self.pairs + tries)

    def run(self, siege: Siege) -> None:
        rule = Plateau(self.rate, FLOOR, window=20, momentum=self.momentum)
        if self.waits:
            rule = Plateau(self.rate, FLOOR, 5, self.momentum, watch="probes")
        advance = self.wait if self.waits else self.advance
        state = self.begin(siege, rule)
        for step in range(self.steps):
            if not len(siege):
                return
            probed = self.slope(siege, state.x, state.loss, step)
            probed, state = siege.settle(probed, state)
            if not len(siege):
                return
            state = siege.settle(advance(siege, state, probed, rule))

    def begin(self, siege: Siege, rule: Plateau) -> State:
        """Start at the clean image if the target is returned there, else at an image of its class.

        The latter is bisected towards the clean image, unless the ball waits: then every row starts
        at such an image, as published. Rows without a start leave.
        """
        x, loss = siege.ball.center.clone(), self.clean(siege)
        if self.waits:
            loss = torch.full_like(loss, -torch.inf)
        hidden = (~(loss > -torch.inf)).nonzero()[:, 0]
        if len(hidden):
            some = siege.view(hidden)
            start, found = find_start(some)
            rows = found.nonzero()[:, 0]
            near, far = some.ball.center[rows], start[rows]
            away = distances(far - near, siege.ball.norm)
            if not self.waits:
                far = to_boundary(some, near, far, CLOSE * away, rows)
            x[hidden[rows]] = far
            loss[hidden[rows]] = self.look(siege, x[hidden[rows]], hidden[rows]).to(loss.dtype)
            siege.leave(~(loss > -torch.inf))
        radius = torch.maximum(siege.ball.radius, distances(x - siege.ball.center, siege.ball.norm))
        if self.waits:
            radius = _box(siege.ball)
        share = torch.full_like(radius, FASTEST)
        return siege.settle(State(x, loss, radius, share, rule.begin(siege)))

    def clean(self, siege: Siege) -> Tensor:
        """The loss at the clean images, if known: without scores it is not."""
        return siege.ball.center.new_full((len(siege),), -torch.inf)

    def advance(self, siege: Siege, state: State, probed: Estimate, rule: Plateau) -> State:
        """A step in a smaller ball, or as much of both as keeps the target in the answer."""
        goal, ball = siege.ball.radius, siege.ball
        move, pace = rule.move(siege.ball, state.x, probed, state.pace)
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

    careful: ClassVar[int]
    """As published: by which part of an accepted proposal the ball shrinks."""
    likely: ClassVar[float]
    """As published: the mean loss of the probes above which it shrinks."""

    def wait(self, siege: Siege, state: State, probed: Estimate, rule: Plateau) -> State:
        """A step, in a smaller ball where the target is likely, as published.

        Where it would lose the target, first the step is halved and then the shrinkage; rows that
        lose it with the least of both leave.
        """
        ball, goal, whole = unboxed(siege.ball), siege.ball.radius, _box(siege.ball)
        move, pace = rule.move(ball, state.x, probed, state.pace)
        x, loss, radius, share, _ = state
        x, loss, radius, share = x.clone(), loss.clone(), radius.clone(), share.clone()
        cut = torch.where((probed.around > self.likely) & (radius > goal), share, 0.0)
        seen, part = pace.seen.clone(), torch.ones_like(cut)
        lost = torch.zeros_like(seen, dtype=torch.bool)
        rows = torch.arange(len(siege), device=goal.device)
        for _ in range(TRIES):
            to = torch.maximum(state.radius[rows] - cut[rows] * whole[rows], goal[rows])
            at = ball.at(rows)
            new = at.of(to).confine(state.x[rows] + move[rows] * at.scaled(part[rows]))
            new = new.clamp(*siege.ball.box)
            value = self.look(siege, new, rows)
            good = value > -torch.inf
            kept = rows[good]
            x[kept], loss[kept] = new[good], value[good].to(loss.dtype)
            less = cut[kept] * whole[kept] / self.careful
            radius[kept] = torch.maximum(state.radius[kept] - less, goal[kept])
            shrunk = cut[kept] > 0
            share[kept] = torch.where(shrunk, cut[kept].clamp_min(LEAST), share[kept])
            seen[kept] = seen[kept] * ~shrunk
            rows = rows[~good]
            shorter = part[rows] * pace.rate[rows] >= 2 * FLOOR * self.rate * (1 - 1e-9)
            lost[rows] = ~shorter & (cut[rows] == 0)
            half = cut[rows] / 2
            cut[rows] = torch.where(shorter, cut[rows], torch.where(half < STILL, 0.0, half))
            part[rows] = torch.where(shorter, part[rows] / 2, 1.0)
            rows = rows[~lost[rows]]
            if not len(rows):
                break
        siege.leave(lost)
        return State(x, loss, radius, share, pace._replace(seen=seen))


def _box(ball: Ball) -> Tensor:
    """The size of the box."""
    return distances(torch.full_like(ball.center, ball.width), ball.norm)

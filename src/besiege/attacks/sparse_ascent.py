"""The first-order loop for l1: climbs by few entries at a time, learning how many.

A loop of its own, because the number of entries is known to the schedule and used by the
direction, which the slots of `Ascent` do not share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.losses import cross_entropy
from besiege.attacks.pieces import Gaussian, Start
from besiege.core.answer import Answer, Loss
from besiege.core.ball import Ball
from besiege.core.fields import a_loss, of_kind, whole_number
from besiege.core.rowwise import pick
from besiege.core.siege import Siege
from besiege.core.threat import L1

FEWER = 1.5
"""A move changes so many times fewer entries than the best point has changed."""
DENSE = 0.2
"""The share of entries moved from a start that has changed none."""
SHORTEST = 0.1
"""The shortest step, in radii."""


class State(NamedTuple):
    """Where an ascent is; everything with the rows first.

    Attributes
    ----------
    x : Tensor
        The points.
    rows : Tensor
        The numbers that the caller gave the rows.
    eta : Tensor
        The length of a step, in radii.
    wide : Tensor
        How many entries of the best point differed from the clean image at the last check.
    best, summit, steep : Tensor
        The highest loss, its point, and the gradient there.
    """

    x: Tensor
    rows: Tensor
    eta: Tensor
    wide: Tensor
    best: Tensor
    summit: Tensor
    steep: Tensor

    @classmethod
    def of(cls, ball: Ball, x: Tensor, rows: Tensor) -> State:
        """Before the first answer."""
        wide = _changed(ball, x)
        wide = torch.where(wide > 0, wide, FEWER * DENSE * ball.size)
        best = x.new_full((len(x),), -torch.inf)
        return cls(x, rows, torch.ones_like(ball.radius), wide, best, x, torch.zeros_like(x))

    def after(self, answer: Answer) -> State:
        """The state with the points of an answer where they are the highest yet."""
        higher = answer.loss > self.best
        steep = pick(higher, answer.gradient, self.steep) if "gradient" in answer else self.steep
        best = torch.where(higher, answer.loss, self.best)
        return self._replace(best=best, summit=pick(higher, self.x, self.summit), steep=steep)


@dataclass(frozen=True)
class SparseAscent(Attack):
    """Climb a loss in an l1 ball by few entries at a time (L1-APGD; Croce and Hein 2021).

    A move is of equal size in the entries of the largest gradient, two thirds as many as the best
    point so far has changed. Where that number falls, the step is as long as the radius again and
    the row returns to its best point; where not, the step shrinks. The climb begins in larger
    balls, and goes on in the smaller from the best point found in the larger.

    Parameters
    ----------
    steps : int
        Moves made from every start, in all balls together.
    loss, start
        As in `Ascent`; the start is drawn in the largest ball.
    restarts : int
        Climbs from fresh starts; rows that were broken do not climb again.
    radii : tuple of float
        The balls climbed in, in radii; the last gets what the others' 0.3 of the steps leave.
    compat : bool
        As in the authors' code, entries at a bound that push outward are moved like others; then
        a row whose steepest entries are all at their bounds stands still.
    """

    steps: int = whole_number(100)
    loss: Loss = a_loss(cross_entropy)
    start: Start = of_kind(Gaussian(), Start)
    restarts: int = whole_number(1)
    radii: tuple[float, ...] = (3.0, 2.0, 1.0)
    compat: bool = False

    norms = frozenset({L1})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.radii or self.radii[-1] != 1.0 or min(self.radii) < 1.0:
            raise ValueError(f"radii is {self.radii!r}, but balls shrink to the threat's, 1.0")

    def run(self, siege: Siege) -> None:
        for restart in range(self.restarts):
            rows = siege.view(dice=siege.dice.of("restart", restart))
            if len(rows):
                self._climb(rows)

    def _climb(self, siege: Siege) -> None:
        *larger, last = self.phases()
        x: Tensor | None = None
        for radius, steps in larger:
            # What is broken in a larger ball is not broken yet: nobody leaves.
            wide = siege.view(radius=radius * siege.ball.radius, leave="end")
            x = self.start(wide) if x is None else wide.ball.confine(x)
            rows = torch.arange(len(wide), device=x.device)
            rows, summit = self._phase(wide, x, steps, rows)
            x = siege.settle(x.index_copy(0, rows, summit))
            if not len(siege):
                return
        x = self.start(siege) if x is None else siege.ball.confine(x)
        self._phase(siege, x, last[1], torch.arange(len(siege), device=x.device))

    def phases(self) -> list[tuple[float, int]]:
        """The radii and the steps made in each, the last of which are one or more."""
        *larger, last = self.radii
        each = min(math.ceil(0.3 * self.steps), (self.steps - 1) // max(1, len(larger)))
        plan = [(radius, each) for radius in larger if each]
        return [*plan, (last, self.steps - each * len(larger))]

    def _phase(self, siege: Siege, x: Tensor, steps: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Climb in one ball; the rows still there, by `rows`, and their best points."""
        every = max(int(0.04 * steps), 1)
        at = State.of(siege.ball, x, rows)
        for step in range(steps):
            answer, at = siege.settle(siege.gradient(at.x, self.loss), at)
            if not len(siege):
                return at.rows, at.summit
            at, slope = at.after(answer), answer.gradient
            if step and step % every == 0:
                now = _changed(siege.ball, at.summit)
                sparser = now < 0.95 * at.wide
                eta = torch.where(sparser, 1.0, (at.eta / FEWER).clamp_min(SHORTEST))
                slope = pick(sparser, at.steep, slope)
                at = at._replace(x=pick(sparser, at.summit, at.x), eta=eta, wide=now)
            ball = siege.ball
            free = slope if self.compat else slope * torch.sign(ball.room(at.x, slope))
            move = _top(free, torch.ceil(at.wide / FEWER), at.eta * ball.radius)
            at = at._replace(x=ball.confine(at.x + move))
        answer, at = siege.settle(siege.offer(at.x, self.loss), at)
        return at.rows, at.after(answer).summit


def _changed(ball: Ball, x: Tensor) -> Tensor:
    """How many entries of each row differ from the clean image."""
    return (x != ball.center).flatten(1).sum(1).double()


def _top(g: Tensor, count: Tensor, length: Tensor) -> Tensor:
    """A move of equal size in each row's `count` entries of the largest gradient."""
    size = g.abs().flatten(1)
    place = count.long().clamp(1, size.shape[1])
    ranked = size.topk(int(place.max()), dim=1).values
    least = ranked.gather(1, place[:, None] - 1)
    sign = torch.sign(g).flatten(1) * (size >= least)
    many = sign.abs().sum(1).clamp_min(1.0)
    return (sign * (length / many).to(g.dtype)[:, None]).view_as(g)

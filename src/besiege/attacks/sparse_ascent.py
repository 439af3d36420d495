"""The first-order loop for l1: sparse steps with an adaptive number of pixel values.

It is separate from `Ascent`, because the schedule must tell the direction how many pixel values to
move, for which `Ascent` has no slot.
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
"""A step moves this many times fewer pixel values than differ in the best point."""
DENSE = 0.2
"""Fraction of pixel values moved from a start equal to the clean image."""
SHORTEST = 0.1
"""Shortest step, in radii."""


class State(NamedTuple):
    """The state of the ascent, rows first.

    Attributes
    ----------
    x : Tensor
        The iterates.
    rows : Tensor
        The caller's numbers of the rows.
    eta : Tensor
        Step size, in radii.
    wide : Tensor
        Pixel values in which the best point differed from the clean image at the last check.
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
        """The state before the first answer."""
        wide = _changed(ball, x)
        wide = torch.where(wide > 0, wide, FEWER * DENSE * ball.size)
        best = x.new_full((len(x),), -torch.inf)
        return cls(x, rows, torch.ones_like(ball.radius), wide, best, x, torch.zeros_like(x))

    def after(self, answer: Answer) -> State:
        """The state with the answer's points where their loss is the highest so far."""
        higher = answer.loss > self.best
        steep = pick(higher, answer.gradient, self.steep) if "gradient" in answer else self.steep
        best = torch.where(higher, answer.loss, self.best)
        return self._replace(best=best, summit=pick(higher, self.x, self.summit), steep=steep)


@dataclass(frozen=True)
class SparseAscent(Attack):
    """Ascent of a loss in an l1 ball by sparse steps (L1-APGD; Croce and Hein 2021).

    A step is equal in the pixel values of largest gradient, two thirds as many as differ in the
    best point. Where that number falls, the step size is reset to the radius and the row returns to
    its best point; elsewhere the step size shrinks. The ascent begins in larger balls and resumes
    in each smaller one from the best point of the larger.

    Parameters
    ----------
    steps : int
        Steps from every start, in all balls together.
    loss, start
        As in `Ascent`; the start is drawn in the largest ball.
    restarts : int
        Runs from different random starts; rows already broken are not attacked again.
    radii : tuple of float
        The balls, in radii; each but the last gets 0.3 of the steps.
    compat : bool
        As in the authors' code, pixel values at a bound are moved outward like others; a row whose
        steepest pixel values are all at their bounds does not move.
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
            raise ValueError(f"radii is {self.radii!r}, but all must be >= 1.0, the last 1.0")

    def run(self, siege: Siege) -> None:
        for restart in range(self.restarts):
            rows = siege.view(dice=siege.dice.of("restart", restart))
            if len(rows):
                self._ascend(rows)

    def _ascend(self, siege: Siege) -> None:
        *larger, last = self.phases()
        x: Tensor | None = None
        for radius, steps in larger:
            # A success in a larger ball does not count yet: no row leaves.
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
        """The radii and the steps made in each; the last gets at least one."""
        *larger, last = self.radii
        each = min(math.ceil(0.3 * self.steps), (self.steps - 1) // max(1, len(larger)))
        plan = [(radius, each) for radius in larger if each]
        return [*plan, (last, self.steps - each * len(larger))]

    def _phase(self, siege: Siege, x: Tensor, steps: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The ascent in one ball; the rows still there, by `rows`, and their best points."""
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
    """The number of pixel values of each row that differ from the clean image."""
    return (x != ball.center).flatten(1).sum(1).double()


def _top(g: Tensor, count: Tensor, length: Tensor) -> Tensor:
    """A step of equal size in each row's `count` pixel values of largest gradient."""
    size = g.abs().flatten(1)
    place = count.long().clamp(1, size.shape[1])
    ranked = size.topk(int(place.max()), dim=1).values
    least = ranked.gather(1, place[:, None] - 1)
    sign = torch.sign(g).flatten(1) * (size >= least)
    many = sign.abs().sum(1).clamp_min(1.0)
    return (sign * (length / many).to(g.dtype)[:, None]).view_as(g)

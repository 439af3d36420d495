"""Linearised decision boundaries: planes from gradients, and the nearest of them.

At a point the boundary towards a class is approximated by the plane ``f + <w, x' - x> = 0``, with f
the difference of two logits and w its gradient. `planes` computes those of all classes from one
answer; `nearest` and `closest` choose among them. `Ball.plane` projects onto one inside the box.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from besiege.attacks.losses import logit_of, margin
from besiege.attacks.smallest import across
from besiege.core.answer import Aim, Answer, Loss
from besiege.core.ball import Ball, distances
from besiege.core.record import ROUNDING, largest
from besiege.core.rowwise import pick
from besiege.core.siege import Siege
from besiege.core.solvers import never_alone

WORTH = 1.25
"""Successes up to so many times the best known distance are worth the final search."""

ENTRIES = 2**25
"""Most gradient components held at once; further rows wait for their turn."""

BIAS = 0.05
"""A secant step lands this fraction of the remaining bracket beyond the computed crossing, where
rounding would decide."""


def toward(logits: Tensor, aim: Aim) -> Tensor:
    """``z_t - z_y``: above zero where the target has overtaken the label."""
    assert aim.targets is not None
    return logit_of(logits, aim.targets) - logit_of(logits, aim.labels)


def steering(siege: Siege, sure: bool = True) -> Loss:
    """The loss that grows as rows approach their goal, above zero where they have reached it.

    The margin for untargeted and targeted goals; for an untargeted goal with an aimed class, the
    lead of that class over the label. Minimum-norm searches subtract a lead that rounding cannot
    turn around, unless `sure` is false.
    """
    sure = sure and siege.closes_in
    if siege.targeted or siege.aim.targets is None:
        return _sure_margin if sure else margin
    return _sure_toward if sure else toward


def _sure_margin(logits: Tensor, aim: Aim) -> Tensor:
    return margin(logits, aim) - _beyond(logits, aim)


def _sure_toward(logits: Tensor, aim: Aim) -> Tensor:
    return toward(logits, aim) - _beyond(logits, aim)


def _beyond(logits: Tensor, aim: Aim) -> Tensor:
    """The lead to aim at in minimum-norm searches: twice what rounding may turn around."""
    logits = logits.detach()
    scale = largest(logits)
    if aim.clean is not None:
        scale = torch.maximum(scale, largest(aim.clean).to(scale))
    return 2.0 * ROUNDING * scale


def crossed(siege: Siege, answer: Answer) -> Tensor:
    """Which rows reach their goal, by however little: as other implementations decide.

    Answers count as successes only if rounding cannot undo them. An attack that ends at the
    boundary itself, as published, would wait there for ever if it decided by that.
    """
    return siege.record.reached(siege.rows, answer.logits.argmax(1))


def lowered(siege: Siege, height: Tensor, logits: Tensor) -> Tensor:
    """Heights of planes ``[rows, classes]``, less the lead that rounding may turn around."""
    return height - _beyond(logits, siege.aim)[:, None] if siege.closes_in else height


def planes(answer: Answer, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients and heights of ``z_k - z_y``, ``[rows, classes, ...]`` and ``[rows, classes]``.

    From an answer with the gradients of all logits, in order; those of the label are zero.
    """
    rows = torch.arange(len(labels), device=labels.device)
    slope, height = answer.gradient, answer.logits
    return slope - slope[rows, labels][:, None], height - height[rows, labels][:, None]


def nearest(ball: Ball, x: Tensor, w: Tensor, f: Tensor, labels: Tensor) -> Tensor:
    """The class whose plane is nearest to the clean image inside the box.

    Not to the iterate: the distance from the clean image is what counts in the end. Planes that
    miss the box come last, in the order of their distance without it.
    """
    rows, many = f.shape
    w, f = w.flatten(0, 1), f.flatten()
    c = rest(w, f, (x - ball.center).repeat_interleave(many, 0))
    move = ball.plane(ball.center.repeat_interleave(many, 0), w, c)
    missed = (inner(w, move) - c).abs() > 1e-3 * c.abs()
    beyond = across(ball).repeat_interleave(many) + straight(ball, w, c)
    size = torch.where(missed, beyond, distances(move, ball.norm)).view(rows, many)
    return size.scatter(1, labels[:, None], torch.inf).argmin(1)


def closest(ball: Ball, w: Tensor, f: Tensor, labels: Tensor) -> Tensor:
    """The class whose plane is nearest to the iterate, without the box."""
    size = straight(ball, w.flatten(0, 1), f.double().flatten()).view_as(f)
    return size.scatter(1, labels[:, None], torch.inf).argmin(1)


def straight(ball: Ball, w: Tensor, c: Tensor) -> Tensor:
    """The length of the smallest step d with ``<w, d> = c`` without a box."""
    return c.abs() / ball.dual(w).clamp_min(1e-300)


def rest(w: Tensor, f: Tensor, away: Tensor) -> Tensor:
    """``<w, d>`` of steps d to a plane that was computed `away` from their start, float64."""
    return inner(w, away) - f


def inner(a: Tensor, b: Tensor) -> Tensor:
    """``<a, b>`` of every row, float64."""
    return never_alone((a * b).flatten(1)).sum(1, dtype=torch.float64)[: len(a)]


def turns(siege: Siege, gradients: int) -> Iterator[Tensor]:
    """Row numbers in as few pieces as memory allows, with that many gradients per row."""
    rows = torch.arange(len(siege), device=siege.rows.device)
    size = max(1, ENTRIES // (gradients * siege.ball.size))
    return iter(torch.split(rows, size))


def against(answer: Answer, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients and heights of ``z_k - z_y`` for chosen classes, of which the first is the label.

    From an answer with the gradients of those logits; ``[rows, classes - 1, ...]``.
    """
    slope, height = answer.gradient, answer.logits.gather(1, classes)
    return slope[:, 1:] - slope[:, :1], height[:, 1:] - height[:, :1]


def crossing(siege: Siege, under: Tensor, over: Tensor) -> Tensor:
    """Where the linear interpolation between two logit vectors reaches the goal, as a fraction.

    The logits `under` do not reach the goal and those `over` do. Untargeted, the winning class is
    compared with the label; targeted, the target with the class that beats it, up to a lead that
    rounding cannot turn around.
    """
    if siege.targeted:
        assert siege.aim.targets is not None
        winner = siege.aim.targets
        loser = under.scatter(1, winner[:, None], -torch.inf).argmax(1)
    else:
        winner, loser = over.argmax(1), siege.aim.labels
    short, past = (
        logit_of(z, loser).double() - logit_of(z, winner).double() for z in (under, over)
    )
    if siege.closes_in:
        hair = siege.record.hair(over, siege.rows).double()
        short, past = short + hair, past + hair
    short = short.clamp_min(0.0)
    return short / (short - past).clamp_min(1e-300)


@dataclass
class Bracket:
    """Brackets of the boundary on the paths from the clean images to points beyond it.

    Attributes
    ----------
    far : Tensor
        The points beyond, ``[rows, ...]``.
    size : Tensor
        Their distances, float64.
    over, under : Tensor
        Logits at the nearest point known to cross, and at the farthest known not to.
    low, high : Tensor
        Those points, as fractions of the path (`low` does not cross, `high` does).
    """

    far: Tensor
    size: Tensor
    over: Tensor
    under: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, siege: Siege, far: Tensor, over: Tensor) -> Bracket:
        """Brackets of the whole paths; the clean images do not cross."""
        size, clean = siege.ball.distance(far), siege.aim.clean
        under = torch.zeros_like(over) if clean is None else clean
        return cls(far, size, over, under, torch.zeros_like(size), torch.ones_like(size))

    def settle(self, siege: Siege) -> None:
        """Let the rows that are done leave."""
        state = siege.settle(self.far, self.size, self.over, self.under, self.low, self.high)
        self.far, self.size, self.over, self.under, self.low, self.high = state

    def narrow(self, siege: Siege, rounds: int, most: float, halve: bool = False) -> None:
        """Secant steps, one forward pass each, that land slightly beyond the expected crossing.

        A step shortens the bracket by at least ``1 - most``: on a curved path it could be zero.
        With `halve` every step is to the middle.
        """
        for _ in range(rounds):
            if not len(siege):
                return
            share = crossing(siege, self.under, self.over)
            share = (share + BIAS * (1.0 - share)).clamp_max(most)
            if halve:
                share = torch.full_like(share, 0.5)
            at = self.low + (self.high - self.low) * share
            answer = siege.logits(self.point(siege, at))
            crossed = siege.record.reached(siege.rows, answer.labels)
            self.low = torch.where(crossed, self.low, at)
            self.high = torch.where(crossed, at, self.high)
            self.under = torch.where(crossed[:, None], self.under, answer.logits)
            self.over = torch.where(crossed[:, None], answer.logits, self.over)
            self.settle(siege)

    def point(self, siege: Siege, at: Tensor | None = None) -> Tensor:
        """The point at a fraction of each path, by default the nearest known to cross."""
        ball = siege.ball
        share = self.high if at is None else at
        back = ball.retreat(self.far - ball.center, self.size, share)
        x = back.add_(ball.center).clamp_(*ball.box)
        return pick(share == 1.0, self.far, x)


def shorten(
    siege: Siege,
    x: Tensor,
    crossed: Tensor,
    logits: Tensor,
    rounds: int,
    most: float = 0.99,
    halve: bool = False,
) -> None:
    """Search between the clean images and points beyond the boundary, with forward passes only."""
    x, crossed, logits = siege.settle(x, crossed, logits)
    if not rounds:
        return
    limit = torch.minimum(siege.distance, siege.ball.radius)
    # Halving is of the published forms, which search whatever they have found.
    worth = torch.inf if halve else WORTH
    rows = (crossed & (siege.ball.distance(x) <= worth * limit)).nonzero()[:, 0]
    view = siege.view(rows)
    if len(view):
        Bracket.of(view, x[rows], logits[rows]).narrow(view, rounds, most, halve)

"""OPT and Sign-OPT: how far the boundary is along a direction, made smaller with labels alone.

``g(theta)``, the distance of the boundary along a direction, is smooth where the boundary is, and
its slope can be estimated: OPT measures g along many directions nearby, each by a search of its
own; Sign-OPT asks of each only whether g is smaller, which is one query.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.directional import (
    Rays,
    Walk,
    descend,
    probe_size,
    set_out,
    starting_cost,
    step_cost,
)
from besiege.attacks.hopskipjump import votes
from besiege.attacks.smallest import endless, unit
from besiege.core.attack_registry import register
from besiege.core.ball import distances
from besiege.core.dice import Dice
from besiege.core.fields import number, whole_number
from besiege.core.oracle import Access
from besiege.core.rowwise import rowwise
from besiege.core.siege import Siege
from besiege.core.threat import L2, Linf

PRESETS: Mapping[str, str] = MappingProxyType(
    {
        "opt:cheng2019": "opt(steps=1000, probes=10, beta=0.001, tries=100)",
        "signopt:cheng2020": "signopt(steps=1000, votes=200, beta=0.001, tries=100, momentum=0.0)",
    }
)
"""The constants that the authors publish. Their alpha, 0.2, is taken of a slope that is not scaled;
it is searched for at every step, here and there, so that the first one hardly matters."""

SHARP = 8.0
"""Into how many parts the usual difference between two directions is resolved by `opt`."""

ROUNDS = 12
"""Queries to measure one direction nearby, at most; as a rule half as many will do."""

WIDEST = 2.0
"""How many times farther than along its own direction `opt` looks for the boundary nearby."""


@register("signopt")
@dataclass(frozen=True)
class SignOpt(Attack):
    """Descent on the distance of the boundary, its slope estimated from votes.

    At the boundary point ``x = x0 + g(theta) theta`` each probe ``x + beta |x - x0| u`` with a
    random u votes: where it is adversarial, g falls in the direction of u. The sum of votes times
    u, less their mean, is the way to go: its cosine with the steepest one is about
    ``sqrt(k / (k + pi/2 (d - 1)))`` with k votes in d dimensions. What counts is the difference
    really sent, after the box and the grid of the victim. The size of the step is searched for.

    It differs from the published method in this: probes are not brought back to length g, so
    that the curvature of the sphere does not turn all votes one way; votes have their mean
    subtracted; sizes of steps are compared at one query each, and only the best is measured to the
    end; in linf theta is cut to its length, not scaled, so that ever more entries reach it.

    Parameters
    ----------
    steps : int
        Steps, each of `votes` queries and those of the search for its size, about twenty.
    votes : int
        Probes per step.
    beta : float
        Size of the probes, as a share of the change; never below half a step of the victim's grid
        per entry.
    tries : int
        Random directions of which the best is begun with.
    momentum : float
        How much of the last direction is added to the next.
    alpha : float
        First size of a step tried, as the tangent of the angle by which theta turns.

    References
    ----------
    Cheng et al., Sign-OPT: a query-efficient hard-label adversarial attack, 2020.

    Examples
    --------
    >>> str(SignOpt(votes=200))
    'signopt(votes=200)'
    """

    steps: int = whole_number(180)
    votes: int = whole_number(100)
    beta: float = number(0.01, above=0)
    tries: int = whole_number(20)
    momentum: float = number(0.5, below=1, what="a share")
    alpha: float = number(0.2, above=0)

    access = Access.DECISION
    norms = frozenset({L2, Linf})
    minimal = True
    source: ClassVar[str] = "Cheng et al., Sign-OPT, 2020"

    def cost(self, shape: tuple[int, ...], classes: int) -> int:
        fine = exactness(self.beta, math.prod(shape))
        return starting_cost(self.tries, fine) + self.steps * (self.votes + step_cost(fine))

    def run(self, siege: Siege) -> None:
        siege = endless(siege)
        fine = exactness(self.beta, siege.ball.size)
        walk = siege.settle(set_out(siege, self.tries, self.alpha, fine))
        past = torch.zeros_like(walk.x)
        for step in range(self.steps):
            if not len(siege):
                return
            toward, _ = self.vote(siege, walk, step)
            # In l2, whatever the norm: estimates are averaged as directions.
            past = unit(unit(toward, L2) + self.momentum * past, L2)
            walk, past = siege.settle(descend(siege, walk, past, fine), past)

    def vote(self, siege: Siege, walk: Walk, step: int) -> tuple[Tensor, Tensor]:
        """Where the victims see more errors, from the votes of one step, and the share of those."""
        shape = tuple(walk.x.shape[1:])

        def draw(dice: Dice, places: Tensor) -> Tensor:
            return dice.of("probes").normal(shape, places + step * self.votes)

        size = probe_size(siege.ball, walk, self.beta)
        return votes(siege, walk.x, size, self.votes, draw)


@register("opt")
@dataclass(frozen=True)
class Opt(Attack):
    """Descent on the distance of the boundary, its slope estimated from distances nearby.

    With directions ``theta_i = theta + beta u_i`` the slope is the mean of
    ``(g(theta_i) - g(theta)) / beta * u_i``, and each g is a search of its own; all searches of a
    step go on side by side. The size of the step along the slope is searched for, and where one of
    the directions nearby is better still, that one is taken.

    It differs from the published method in this: brackets begin as wide as differences between
    directions were at the last step, and are halved until these are resolved into eight parts,
    which takes about six queries instead of fifteen; what is sent is inside the box, and u is the
    difference really sent; in linf theta is cut to its length, not scaled.

    Parameters
    ----------
    steps : int
        Steps, each of `probes` searches of about six queries and the one for its size.
    probes : int
        Directions per step.
    beta : float
        How far they are from theta, as a share of the change; never below half a step of the
        victim's grid per entry.
    tries : int
        Random directions of which the best is begun with.
    alpha : float
        First size of a step tried, as the tangent of the angle by which theta turns.

    References
    ----------
    Cheng et al., Query-efficient hard-label black-box attack: an optimization-based approach, 2019.

    Examples
    --------
    >>> str(Opt(probes=10))
    'opt(probes=10)'
    """

    steps: int = whole_number(140)
    probes: int = whole_number(20)
    beta: float = number(0.01, above=0)
    tries: int = whole_number(20)
    alpha: float = number(0.2, above=0)

    access = Access.DECISION
    norms = frozenset({L2, Linf})
    minimal = True
    source: ClassVar[str] = "Cheng et al., OPT, 2019"

    def cost(self, shape: tuple[int, ...], classes: int) -> int:
        fine = exactness(self.beta, math.prod(shape)) / SHARP
        each = ROUNDS * self.probes + step_cost(fine)
        return starting_cost(self.tries, fine) + self.steps * each

    def run(self, siege: Siege) -> None:
        siege = endless(siege)
        fine = exactness(self.beta, siege.ball.size) / SHARP
        walk = siege.settle(set_out(siege, self.tries, self.alpha, fine))
        # How much g differs between directions; the first time a guess, from a steep slope.
        usual = 4.0 * self.beta * walk.length / math.sqrt(siege.ball.size)
        for step in range(self.steps):
            if not len(siege):
                return
            best, toward = walk.rays(siege.ball), torch.empty_like(walk.x)
            for rows in siege.blocks(self.probes):
                toward[rows], usual[rows] = self._slope(siege, walk, rows, usual[rows], best, step)
            walk, usual = siege.settle(descend(siege, walk, toward, fine, best), usual)

    def _slope(
        self, siege: Siege, walk: Walk, rows: Tensor, usual: Tensor, best: Rays, step: int
    ) -> tuple[Tensor, Tensor]:
        """Down the slope of g, and how much g differed; the best of the directions is kept."""
        around, some, k = siege.ball.at(rows), walk.at(rows), self.probes
        change = probes(siege, some, rows, k, self.beta, step)
        each = torch.arange(len(rows), device=rows.device).repeat_interleave(k)
        several = around.at(each)
        begin, width = some.length[each], usual[each]
        # As long as theta in l2, whatever the norm: in linf the largest of many entries always
        # grows, and would drown the rest.
        theta = change.flatten(0, 1) - several.center
        long = distances(some.x - around.center, L2)[each] / distances(theta, L2).clamp_min(1e-30)
        theta *= several.scaled(long / begin)
        rays = Rays.of(rows[each], theta)
        rays.measure(siege, begin, width, width / (SHARP * begin), ROUNDS, WIDEST * begin)
        # What is beyond everything that was looked at counts as its end.
        fall = (begin - torch.minimum(rays.high, WIDEST * begin)).view(-1, k)
        best.take(rays.scaled(several).shortest(k))
        change -= some.x[:, None]
        # Not the mean: one direction that leads far away would make all brackets wide.
        usual = fall.abs().median(1).values.clamp_min(1e-7 * some.length)
        return _weighed(change, (fall / usual[:, None]).to(change)), usual


def exactness(beta: float, entries: int) -> float:
    """How exactly, relatively, g must be known for half of the probes to lie beyond the boundary.

    Across the boundary probes reach about ``g beta / sqrt(d)`` to either side.
    """
    return 0.5 * beta / math.sqrt(entries)


def probes(siege: Siege, walk: Walk, rows: Tensor, k: int, beta: float, step: int) -> Tensor:
    """Images around those of some rows, ``[rows, k, ...]``, as the victim receives them."""
    ball, x = siege.ball.at(rows), walk.x
    counter = torch.arange(step * k, (step + 1) * k, device=x.device).expand(len(rows), k)
    drawn = siege.dice.at(rows).of("probes").normal(tuple(x.shape[1:]), counter).to(x)
    size = ball.scaled(probe_size(ball, walk, beta))[:, None]
    sent = drawn.mul_(size).add_(x[:, None]).clamp_(*ball.box)
    return sent if ball.grid is None else ball.received(sent)


def _weighed(change: Tensor, weight: Tensor) -> Tensor:
    """The sum over k of changes ``[rows, k, ...]`` times weights ``[rows, k]``."""
    return change.mul_(rowwise(weight, change)).sum(1)

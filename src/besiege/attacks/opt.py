"""OPT and Sign-OPT: minimize the boundary distance along a direction, with labels only.

``g(theta)``, the distance to the boundary along a direction, is smooth where the boundary is, and
its gradient can be estimated. OPT measures g along many directions nearby, each by a search;
Sign-OPT only tests whether g is smaller there, with one query each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from besiege.attacks import published_opt
from besiege.attacks.attack import Attack
from besiege.attacks.directional import (
    Rays,
    State,
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
from besiege.core.fields import number, whole_number, yes_or_no
from besiege.core.oracle import Access
from besiege.core.rowwise import rowwise
from besiege.core.siege import Siege
from besiege.core.threat import L2, Linf

FIRST, FIRST_VOTED = 1e-5, 1e-3
"""Published: precision of the first distances of `opt` and `signopt`, in box widths."""

SHARP = 8.0
"""Resolution of the differences between directions in `opt`: parts of the usual difference."""

ROUNDS = 12
"""Most queries to measure one direction nearby; usually half as many suffice."""

WIDEST = 2.0
"""Largest distance searched along a direction nearby, relative to that along theta."""


@register("signopt")
@dataclass(frozen=True)
class SignOpt(Attack):
    """Gradient descent on the boundary distance, its gradient estimated from votes.

    At the boundary point ``x = x0 + g(theta) theta`` each probe ``x + beta |x - x0| u`` with a
    random u votes: if it is adversarial, g falls in the direction of u. The centred sum of votes
    times u is the descent direction: its cosine with the steepest one is about
    ``sqrt(k / (k + pi/2 (d - 1)))`` with k votes in d dimensions. u is the difference really sent,
    after the box and the victim's grid. The step size is searched.

    Unlike the published method: probes are not rescaled to length g, so that the curvature of the
    sphere does not bias all votes; votes are centred; step sizes are compared with one query each,
    and only the best is measured precisely; in linf theta is clipped to its length, not scaled, so
    that more and more pixel values reach it.

    Parameters
    ----------
    steps : int
        Steps of `votes` queries and about twenty for the step size.
    votes : int
        Probes per step.
    beta : float
        Size of the probes relative to the perturbation; at least half a step of the victim's grid
        per pixel value.
    tries : int
        Random directions, of which the best is the start.
    momentum : float
        Weight of earlier directions.
    alpha : float
        First step size tried, as the tangent of the angle by which theta turns.
    compat : bool
        Whether theta is updated as published, without any of the above: every distance is measured
        to beta / 500; alpha multiplies the plain gradient, doubles while the distance falls, and is
        otherwise quartered; if that fails too, beta falls to a tenth.

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
    momentum: float = number(0.5, below=1, what="a fraction")
    alpha: float = number(0.2, above=0)
    compat: bool = yes_or_no(False, added=True)

    access = Access.DECISION
    norms = frozenset({L2, Linf})
    minimal = True
    source: ClassVar[str] = "Cheng et al., Sign-OPT, 2020"

    def cost(self, shape: tuple[int, ...], classes: int) -> int | None:
        if self.compat:
            return None  # a bracket may take any number of steps of one per cent
        fine = exactness(self.beta, math.prod(shape))
        return starting_cost(self.tries, fine) + self.steps * (self.votes + step_cost(fine))

    def run(self, siege: Siege) -> None:
        siege = endless(siege)
        if self.compat:
            return self._published(siege)
        fine = exactness(self.beta, siege.ball.size)
        state = siege.settle(set_out(siege, self.tries, self.alpha, fine))
        past = torch.zeros_like(state.x)
        for step in range(self.steps):
            if not len(siege):
                return
            toward, _ = self.vote(siege, state, step)
            # In l2 for every norm: estimates are averaged as directions.
            past = unit(unit(toward, L2) + self.momentum * past, L2)
            state, past = siege.settle(descend(siege, state, past, fine), past)

    def _published(self, siege: Siege) -> None:
        first = published_opt.start(siege, self.tries, self.alpha, self.beta, FIRST_VOTED)
        state = siege.settle(first)
        for step in range(self.steps):
            if not len(siege):
                return
            slope = published_opt.vote(siege, state, self.votes, step)
            state = siege.settle(published_opt.descend(siege, state, slope, self.momentum))

    def vote(self, siege: Siege, state: State, step: int) -> tuple[Tensor, Tensor]:
        """The direction of more adversarial answers, from one step's votes, and their fraction."""
        shape = tuple(state.x.shape[1:])

        def draw(dice: Dice, places: Tensor) -> Tensor:
            return dice.of("probes").normal(shape, places + step * self.votes)

        size = probe_size(siege.ball, state, self.beta)
        return votes(siege, state.x, size, self.votes, draw)


@register("opt")
@dataclass(frozen=True)
class Opt(Attack):
    """Gradient descent on the boundary distance, its gradient estimated from distances nearby.

    With directions ``theta_i = theta + beta u_i`` the gradient is the mean of
    ``(g(theta_i) - g(theta)) / beta * u_i``. Each g takes a search; the searches of a step run in
    parallel. The step size is searched, and if one of the directions nearby is better still, it is
    used.

    Unlike the published method: brackets start as wide as the differences between directions in the
    last step and are bisected until these are resolved to an eighth, which takes about six queries
    instead of fifteen; probes stay inside the box, and u is the difference really sent; in linf
    theta is clipped to its length, not scaled.

    Parameters
    ----------
    steps : int
        Steps of `probes` searches of about six queries each and the search for the step size.
    probes : int
        Directions per step.
    beta : float
        Their distance from theta relative to the perturbation; at least half a step of the victim's
        grid per pixel value.
    tries : int
        Random directions, of which the best is the start.
    alpha : float
        First step size tried, as the tangent of the angle by which theta turns.
    compat : bool
        Whether theta is updated as published, without any of the above: every distance is measured
        to beta / 500; alpha multiplies the plain gradient, doubles while the distance falls, and is
        otherwise quartered; if that fails too, beta falls to a tenth.

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
    compat: bool = yes_or_no(False, added=True)

    access = Access.DECISION
    norms = frozenset({L2, Linf})
    minimal = True
    source: ClassVar[str] = "Cheng et al., OPT, 2019"

    @property
    def revision(self) -> int:  # type: ignore[override]  # of every attack one, here of its form
        """Part of the identity: 2 takes published steps in any box as in [0, 1]."""
        return 2 if self.compat else 1

    def cost(self, shape: tuple[int, ...], classes: int) -> int | None:
        if self.compat:
            return None  # a bracket may take any number of steps of one per cent
        fine = exactness(self.beta, math.prod(shape)) / SHARP
        each = ROUNDS * self.probes + step_cost(fine)
        return starting_cost(self.tries, fine) + self.steps * each

    def run(self, siege: Siege) -> None:
        siege = endless(siege)
        if self.compat:
            return self._published(siege)
        fine = exactness(self.beta, siege.ball.size) / SHARP
        state = siege.settle(set_out(siege, self.tries, self.alpha, fine))
        # The usual difference of g between directions; at first a guess for a steep gradient.
        usual = 4.0 * self.beta * state.length / math.sqrt(siege.ball.size)
        for step in range(self.steps):
            if not len(siege):
                return
            best, toward = state.rays(siege.ball), torch.empty_like(state.x)
            for rows in siege.blocks(self.probes):
                toward[rows], usual[rows] = self._slope(siege, state, rows, usual[rows], best, step)
            state, usual = siege.settle(descend(siege, state, toward, fine, best), usual)

    def _published(self, siege: Siege) -> None:
        first = published_opt.start(siege, self.tries, self.alpha, self.beta, FIRST)
        state = siege.settle(first)
        for step in range(self.steps):
            if not len(siege):
                return
            slope, best = published_opt.difference(siege, state, self.probes, step)
            state = siege.settle(published_opt.descend(siege, state, slope, best=best))

    def _slope(
        self, siege: Siege, state: State, rows: Tensor, usual: Tensor, best: Rays, step: int
    ) -> tuple[Tensor, Tensor]:
        """Minus the gradient of g, and the usual difference; `best` takes the best direction."""
        around, some, k = siege.ball.at(rows), state.at(rows), self.probes
        change = probes(siege, some, rows, k, self.beta, step)
        each = torch.arange(len(rows), device=rows.device).repeat_interleave(k)
        several = around.at(each)
        begin, width = some.length[each], usual[each]
        # Scaled to theta's length in l2 for every norm: in linf the largest of many pixel values
        # always grows, and would dominate.
        theta = change.flatten(0, 1) - several.center
        long = distances(some.x - around.center, L2)[each] / distances(theta, L2).clamp_min(1e-30)
        theta *= several.scaled(long / begin)
        rays = Rays.of(rows[each], theta)
        rays.measure(siege, begin, width, width / (SHARP * begin), ROUNDS, WIDEST * begin)
        # Directions without a boundary in range count as its end.
        fall = (begin - torch.minimum(rays.high, WIDEST * begin)).view(-1, k)
        best.take(rays.scaled(several).shortest(k))
        change -= some.x[:, None]
        # Not the mean: one far direction would make all brackets wide.
        usual = fall.abs().median(1).values.clamp_min(1e-7 * some.length)
        weight = (fall / usual[:, None]).to(change)
        return change.mul_(rowwise(weight, change)).sum(1), usual


def exactness(beta: float, entries: int) -> float:
    """The relative tolerance of g at which half of the probes lie beyond the boundary.

    Across the boundary probes reach about ``g beta / sqrt(d)`` to either side.
    """
    return 0.5 * beta / math.sqrt(entries)


def probes(siege: Siege, state: State, rows: Tensor, k: int, beta: float, step: int) -> Tensor:
    """Images around those of some rows, ``[rows, k, ...]``, as the victim receives them."""
    ball, x = siege.ball.at(rows), state.x
    counter = torch.arange(step * k, (step + 1) * k, device=x.device).expand(len(rows), k)
    drawn = siege.dice.at(rows).of("probes").normal(tuple(x.shape[1:]), counter).to(x)
    size = ball.scaled(probe_size(ball, state, beta))[:, None]
    return ball.received(drawn.mul_(size).add_(x[:, None]).clamp_(*ball.box))

"""The published updates of OPT and Sign-OPT.

Unlike those of `besiege.attacks.directional`, distances along a direction are always measured to
the same precision, gradients are not scaled, and step sizes double or shrink from the last one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from besiege.attacks.directional import Rays, ladder, point
from besiege.attacks.smallest import unit
from besiege.attacks.starts import adversarial
from besiege.core.ball import Ball, distances
from besiege.core.blocks import at_once
from besiege.core.rowwise import pick, rowwise
from besiege.core.siege import Siege
from besiege.core.threat import Linf

PACE = 0.01
"""Relative change of a length while the boundary is bracketed."""

TRIALS = 15
"""Most step sizes tried upwards, and downwards."""

UP, DOWN = 2.0, 0.25
"""Factors of the step size: while the distance falls, and until it falls."""

FINE = 500.0
"""Precision of distances: beta divided by this."""

LEAST, LEAST_LINF = 1e-4, 1e-6
"""Step sizes below this begin again at 1, with a tenth of beta. In linf they are smaller."""

FINEST = 1e-8
"""The search ends when beta is smaller than this."""

WIDEST = 2.0
"""Longest distances measured, relative to the first one."""


class State(NamedTuple):
    """The state of the search, rows first.

    Attributes
    ----------
    theta, length : Tensor
        The direction, of length one, and the distance of the boundary along it, float64.
    alpha, beta : Tensor
        Step size, and size of the probes.
    past : Tensor
        The last step of theta, for momentum.
    most : Tensor
        The longest distance measured.
    """

    theta: Tensor
    length: Tensor
    alpha: Tensor
    beta: Tensor
    past: Tensor
    most: Tensor

    def at(self, rows: Tensor) -> State:
        """The state of some rows."""
        return State(*(part[rows] for part in self))


def start(siege: Siege, tries: int, alpha: float, beta: float, fine: float) -> State:
    """The best of some Gaussian directions, bisected to `fine`; rows without any leave.

    With a target class, and for rows for which no direction is adversarial, the direction to a
    start that `besiege.attacks.starts.find_start` finds.
    """
    siege.leave(siege.record.distance[siege.rows] == 0.0)  # the clean image is already adversarial
    siege.settle()
    ball, rows = siege.ball, torch.arange(len(siege), device=siege.rows.device)
    best = Rays.of(rows, torch.zeros_like(ball.center))
    for n in range(0 if siege.targeted else tries):
        drawn = siege.dice.of("direction").normal(tuple(ball.center.shape[1:]), n).to(ball.center)
        drawn *= ball.width
        far = distances(drawn, ball.norm)
        rays = Rays.of(rows, unit(drawn, ball.norm))
        good = _good(siege, rays, rows, far)
        # A direction that is farther than the best is tested at the best distance first.
        farther = (good & (far > best.high)).nonzero()[:, 0]
        good[farther] = _good(siege, rays, farther, best.high[farther])
        rays.low[good], rays.high[good] = 0.0, torch.minimum(far, best.high)[good]
        bisect(siege, rays, torch.full_like(far, fine * ball.width))
        best.take(rays)
    lost = (best.high == torch.inf).nonzero()[:, 0]
    if len(lost):
        ladder(siege, best, lost)
        bisect(siege, best, torch.full_like(best.high, fine * ball.width), lost)
    length = best.high.nan_to_num(posinf=0.0)  # of rows that have left
    one, none = torch.ones_like(length), torch.zeros_like(best.theta)
    return State(best.theta, length, alpha * one, beta * one, none, WIDEST * length)


def _good(siege: Siege, rays: Rays, some: Tensor, length: Tensor) -> Tensor:
    """Whether some rays, one of each row, are adversarial at a length."""
    if not len(some):
        return some > 0
    image = point(siege.ball.at(some), rays.theta[some], length)
    return adversarial(siege, siege.labels(image, some), some)


def measure(siege: Siege, rays: Rays, begin: Tensor, tolerance: Tensor, most: Tensor) -> Tensor:
    """The distances of the boundary along rays: from a guess up or down by 1 %, then bisected.

    A distance beyond `most` is infinite.
    """
    at, live = begin.clone(), torch.arange(len(rays.rows), device=begin.device)
    while len(live):
        rows, here = rays.rows[live], at[live]
        answer = siege.labels(point(siege.ball.at(rows), rays.theta[live], here), rows)
        good, asked = adversarial(siege, answer, rows), answer.labels >= 0
        low, high = rays.low[live], rays.high[live]
        # The guess remains one end of the bracket.
        new = torch.where(good & ((high == torch.inf) | (low >= 0)), here, high)
        low = torch.where(asked & ~good & ((low < 0) | (high < torch.inf)), here, low)
        rays.low[live], rays.high[live] = low, new
        at[live] = torch.where(new < torch.inf, here * (1.0 - PACE), here * (1.0 + PACE))
        found = (low >= 0) & (new < torch.inf)
        live = live[asked & ~found & (at[live] <= most[live])]
    bisect(siege, rays, tolerance)
    return rays.high


def bisect(siege: Siege, rays: Rays, tolerance: Tensor, some: Tensor | None = None) -> None:
    """Bisect the rays, or some, whose brackets are known, as far as their images differ."""
    live = torch.arange(len(rays.rows), device=tolerance.device) if some is None else some
    live = live[(rays.low[live] >= 0) & (rays.high[live] < torch.inf)]
    while True:
        live = live[rays.high[live] - rays.low[live] > tolerance[live]]
        if len(live):
            live = live[~rays.same(siege.ball.at(rays.rows[live]), live)]
        if not len(live):
            return
        rows, here = rays.rows[live], 0.5 * (rays.low[live] + rays.high[live])
        answer = siege.labels(point(siege.ball.at(rows), rays.theta[live], here), rows)
        good, asked = adversarial(siege, answer, rows), answer.labels >= 0
        rays.high[live] = torch.where(good, here, rays.high[live])
        rays.low[live] = torch.where(asked & ~good, here, rays.low[live])
        live = live[asked]


def nearby(ball: Ball, state: State, u: Tensor) -> Tensor:
    """Directions ``theta + beta u``, of length one, for u ``[rows, k, ...]`` of length one."""
    turned = state.theta[:, None] + u * ball.scaled(state.beta)[:, None]
    return unit(turned.flatten(0, 1), ball.norm).view_as(u)


def drawn(siege: Siege, rows: Tensor, places: Tensor) -> Tensor:
    """Directions of length one for some rows, ``[rows, k, ...]``."""
    ball = siege.ball
    places = places.expand(len(rows), -1)
    u = siege.dice.at(rows).of("probes").normal(tuple(ball.center.shape[1:]), places)
    return unit(u.flatten(0, 1), ball.norm).view_as(u).to(ball.center)


def vote(siege: Siege, state: State, many: int, step: int) -> Tensor:
    """The mean of ``sign(g(theta + beta u) - g(theta)) u``, with one query for each u."""
    # Sums are float64: a direction of another rounding would get other votes.
    slope = torch.zeros_like(state.theta, dtype=torch.float64)
    for rows in siege.blocks(many):
        ball, some = siege.ball.at(rows), state.at(rows)
        for first in range(0, many, at_once(ball)):
            last = min(many, first + at_once(ball))
            places = torch.arange(step * many + first, step * many + last, device=slope.device)
            u = drawn(siege, rows, places)
            move = nearby(ball, some, u) * ball.scaled(some.length)[:, None]
            image = ball.received((ball.center[:, None] + move).clamp_(*ball.box))
            answer = siege.labels(image, rows)
            sign = 1.0 - 2.0 * adversarial(siege, answer, rows).to(u)
            sign = sign.masked_fill(answer.labels < 0, 0.0)
            slope[rows] += u.mul_(rowwise(sign, u)).sum(1, dtype=torch.float64)
    return (slope / many).to(state.theta)


def difference(siege: Siege, state: State, many: int, step: int) -> tuple[Tensor, Rays]:
    """The mean of ``(g(theta + beta u) - g(theta)) / beta * u``, and the shortest of those rays."""
    slope, best = torch.zeros_like(state.theta), Rays.of(_all(siege), state.theta.clone())
    for rows in siege.blocks(many):
        ball, some = siege.ball.at(rows), state.at(rows)
        u = drawn(siege, rows, torch.arange(step * many, (step + 1) * many, device=slope.device))
        each = torch.arange(len(rows), device=rows.device).repeat_interleave(many)
        rays = Rays.of(rows[each], nearby(ball, some, u).flatten(0, 1))
        every = some.at(each)
        measure(siege, rays, every.length, every.beta / FINE * ball.width, every.most)
        rise = (torch.minimum(rays.high, every.most) - every.length) / every.beta
        rise = rise / ball.width  # alpha, which has no unit, multiplies it
        weighted = u.mul_(rowwise(rise.view(-1, many).to(u), u))
        slope[rows] = weighted.mean(1, dtype=torch.float64).to(slope)
        best.take(rays.shortest(many))
    return slope, best


def descend(
    siege: Siege, state: State, slope: Tensor, momentum: float = 0.0, best: Rays | None = None
) -> State:
    """One step of every row against a slope, with a search over its size.

    The size doubles while the distance falls; if it never falls, the size is quartered until it
    does. `best` holds other directions, which are taken where they are shorter.
    """
    ball, alpha = siege.ball, state.alpha.clone()
    new = State(*(part.clone() for part in state))

    def tried(rows: Tensor) -> Tensor:
        some = state.at(rows)
        step = momentum * some.past - slope[rows] * ball.at(rows).scaled(alpha[rows])
        rays = Rays.of(rows, unit(some.theta + step, ball.norm))
        exact = some.beta / FINE * ball.width
        length = measure(siege, rays, new.length[rows], exact, some.most)
        good = length < new.length[rows]
        taken = rows[good]
        new.theta[taken], new.length[taken] = rays.theta[good], length[good]
        new.past[taken] = step[good]
        return good

    live = _all(siege)
    for _ in range(TRIALS):
        if len(live):
            good = tried(live)
            alpha[live] *= UP
            live = live[good]
    live = (new.length >= state.length).nonzero()[:, 0]
    for _ in range(TRIALS):
        if len(live):
            alpha[live] *= DOWN
            live = live[~tried(live)]
    theta, length = new.theta, new.length
    if best is not None:
        shorter = best.high < length
        theta, length = pick(shorter, best.theta, theta), torch.where(shorter, best.high, length)
    small = alpha < (LEAST_LINF if ball.norm is Linf else LEAST)
    alpha = torch.where(small, 1.0, alpha)
    beta = torch.where(small, 0.1 * state.beta, state.beta)
    siege.leave(beta < FINEST)
    return State(theta, length, alpha, beta, new.past, state.most)


def _all(siege: Siege) -> Tensor:
    return torch.arange(len(siege), device=siege.rows.device)

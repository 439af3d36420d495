"""Boundary distances along directions from the clean image, for `opt` and `signopt`.

``g(theta)`` is the smallest lambda for which ``x0 + lambda theta`` is adversarial. Labels suffice
to measure it to any precision, and so to minimize it. Here are the measurement of g, the search for
a first direction, and a step along a direction that should lower g.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from besiege.attacks.smallest import unit
from besiege.attacks.starts import RIVALS, TRIED, adversarial, find_start, halvings, rivals
from besiege.core.ball import Ball, distances
from besiege.core.rowwise import pick
from besiege.core.siege import Siege
from besiege.core.threat import L2, Linf

COARSE = 0.02
"""Largest relative tolerance of g while directions are only compared; only the best of them is
measured precisely."""

TRIALS = 8
"""Most step sizes tried."""

ROUNDS = 8
"""Most queries to compare one direction with the best; usually one or two suffice."""

SMALLEST = 1e-4
"""Step sizes below this, as tangents of angles, count as zero: the next starts at `LARGEST`."""
LARGEST = 1.0

_UNKNOWN = -1.0


def point(ball: Ball, theta: Tensor, length: Tensor) -> Tensor:
    """The points at a length along directions, inside the box, as the victim receives them."""
    return ball.received((ball.center + theta * ball.scaled(length)).clamp_(*ball.box))


@dataclass
class Rays:
    """Directions, maybe several of a row, each with a bracket of its distance to the boundary.

    Lengths are float64. Brackets finer than float32 images are decided by comparing the images.

    Attributes
    ----------
    rows : Tensor
        The row number of each, ascending.
    theta : Tensor
        The directions, ``[rays, ...]``, usually of length one in the ball's norm.
    low, high : Tensor
        The largest length known not to be adversarial (-1 if unknown) and the smallest known to be
        (infinite if unknown). Length zero, the clean image, is not adversarial.
    """

    rows: Tensor
    theta: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, rows: Tensor, theta: Tensor) -> Rays:
        """Rays with unknown distances."""
        low = torch.full((len(rows),), _UNKNOWN, dtype=torch.float64, device=theta.device)
        return cls(rows, theta, low, torch.full_like(low, torch.inf))

    def measure(
        self,
        siege: Siege,
        begin: Tensor,
        width: Tensor,
        tolerance: Tensor,
        rounds: int,
        most: Tensor | None = None,
    ) -> None:
        """Measure the distance to the boundary along each ray, from a guess, all in parallel.

        From the guess, lengths grow or shrink by steps that double until they bracket the boundary;
        then the bracket is bisected. A ray ends when its bracket is narrow enough, or when the
        image in the middle equals one of the ends.

        Parameters
        ----------
        begin, width : Tensor
            The guess and the first step from there, ``[rays]``; unused where both ends are known.
        tolerance : Tensor
            The final bracket, as a fraction of its upper end.
        rounds : int
            Most queries per ray.
        most : Tensor, optional
            The largest length tried; a ray not adversarial there stays infinite. By default the
            guess: only smaller distances matter.
        """
        known = (self.low >= 0) & (self.high < torch.inf)
        at = torch.where(known, 0.5 * (self.low + self.high), begin)
        most = begin if most is None else most
        width = width.clone()
        live = (~known | (self.high - self.low > tolerance * self.high)).nonzero()[:, 0]
        for _ in range(rounds):
            if len(live) == 0:
                break
            rows, here = self.rows[live], at[live]
            ball = siege.ball.at(rows)
            answer = siege.labels(point(ball, self.theta[live], here), rows)
            good = adversarial(siege, answer, rows)
            asked = answer.labels >= 0
            low = torch.where(asked & ~good, here, self.low[live])
            high = torch.where(good, here, self.high[live])
            step = width[live]
            low = torch.where((low < 0) & (high <= step), 0.0, low)
            self.low[live], self.high[live] = low, high
            found, limit = (low >= 0) & (high < torch.inf), most[live]
            out = torch.where(high < torch.inf, high - step, torch.minimum(low + step, limit))
            at[live] = torch.where(found, 0.5 * (low + high), out)
            width[live] = 2.0 * step
            over = ~asked | (found & (high - low <= tolerance[live] * high))
            over |= (high == torch.inf) & (low >= limit)
            close = (found & ~over).nonzero()[:, 0]
            if len(close):
                over[close] = self.same(ball.at(close), live[close])
            live = live[~over]

    def take(self, rays: Rays) -> Tensor:
        """Take over the rays shorter than those of their rows, at most one each; returns which.

        `self` holds one ray of every row.
        """
        good = rays.high < self.high[rays.rows]
        rows = rays.rows[good]
        self.theta[rows] = rays.theta[good]
        self.low[rows], self.high[rows] = rays.low[good], rays.high[good]
        return good

    def scaled(self, ball: Ball) -> Rays:
        """The same rays, with directions of length one."""
        size = distances(self.theta, ball.norm)
        low = torch.where(self.low > 0, self.low * size, self.low)
        return Rays(self.rows, unit(self.theta.clone(), ball.norm), low, self.high * size)

    def shortest(self, k: int) -> Rays:
        """The shortest of every k rays."""
        first = torch.arange(0, len(self.rows), k, device=self.rows.device)
        best = first + self.high.view(-1, k).argmin(1)
        return Rays(self.rows[best], self.theta[best], self.low[best], self.high[best])

    def same(self, ball: Ball, rays: Tensor) -> Tensor:
        """For which rays the middle of the bracket is, as an image, one of the ends bit for bit."""
        low, high, theta = self.low[rays], self.high[rays], self.theta[rays]
        finest = ball.grid or 2.0**-21 * max(abs(end) for end in ball.box)
        same = (high - low) * distances(theta, Linf) <= finest
        near = same.nonzero()[:, 0]
        if len(near):
            some, way, low, high = ball.at(near), theta[near], low[near], high[near]
            middle = point(some, way, 0.5 * (low + high))
            ends = [(middle == point(some, way, end)).flatten(1).all(1) for end in (low, high)]
            same[near] = ends[0] | ends[1]
        return same


def starting_cost(tries: int, fine: float) -> int:
    """The most queries of `set_out`."""
    return ROUNDS * (tries + RIVALS) + TRIED + halvings(1.0 / fine) + 1


def step_cost(fine: float) -> int:
    """The most queries of `descend`; it usually takes about twenty."""
    return TRIALS * ROUNDS + halvings(1.0 / fine) + 1


class State(NamedTuple):
    """The state of the search, rows first.

    Attributes
    ----------
    x : Tensor
        The nearest known adversarial image, as the victim received it.
    length : Tensor
        Its distance, float64.
    alpha : Tensor
        The step size to try first, as the tangent of an angle.
    coarse : Tensor
        Relative tolerance of g for comparisons.
    """

    x: Tensor
    length: Tensor
    alpha: Tensor
    coarse: Tensor

    def rays(self, ball: Ball) -> Rays:
        """The direction of each row, with its distance."""
        rows = torch.arange(len(ball), device=self.x.device)
        theta = unit(self.x - ball.center, ball.norm)
        return Rays(rows, theta, torch.zeros_like(self.length), self.length.clone())

    def at(self, rows: Tensor) -> State:
        """The state of some rows."""
        return State(*(part[rows] for part in self))


def set_out(siege: Siege, tries: int, alpha: float, fine: float) -> State:
    """The best of random directions and of those to other images; rows without any leave.

    Targeted attacks skip random directions. Rows for which no direction is adversarial get a start
    from `find_start`.

    Parameters
    ----------
    tries : int
        Gaussian directions per row. The first adversarial one is measured; every other one costs
        one query if it is no better than the best so far.
    alpha, fine : float
        First step size, and relative tolerance of the best distance.
    """
    siege.leave(siege.record.distance[siege.rows] == 0.0)  # the clean image is already adversarial
    siege.settle()
    ball, rows = siege.ball, torch.arange(len(siege), device=siege.rows.device)
    best = Rays.of(rows, torch.zeros_like(ball.center))
    if not siege.targeted:
        _draw(siege, best, tries)
    lost = (best.high == torch.inf).nonzero()[:, 0]
    if len(lost):
        ladder(siege, best, lost)
    _towards_others(siege, best)
    share = torch.full_like(best.high, fine)
    length = best.high.nan_to_num(posinf=0.0)  # of rows that have left
    best.low.clamp_min_(0.0)
    best.measure(siege, length, length, share, halvings(1.0 / fine) + 1)
    x = point(ball, best.theta, best.high.nan_to_num(posinf=0.0))
    return State(x, ball.distance(x), torch.full_like(share, alpha), torch.full_like(share, COARSE))


def _draw(siege: Siege, best: Rays, tries: int) -> None:
    """The best of some Gaussian directions, measured roughly."""
    ball, dice = siege.ball, siege.dice.of("direction")
    share = torch.full_like(best.high, COARSE)
    for n in range(tries):
        drawn = dice.normal(tuple(ball.center.shape[1:]), n).to(ball.center) * ball.width
        far = distances(drawn, ball.norm)
        begin = torch.where(best.high < torch.inf, (1.0 - COARSE) * best.high, far)
        rays = Rays.of(best.rows, drawn / ball.scaled(far.clamp_min(1e-30)))
        rays.measure(siege, begin, 0.25 * begin, share, ROUNDS)
        best.take(rays)


def _towards_others(siege: Siege, best: Rays) -> None:
    """Directions to images of other classes, where the boundary is nearer."""
    for rows, other in rivals(siege):
        begun = (best.high[rows] < torch.inf).nonzero()[:, 0]
        rows = rows[begun]
        theta = unit(other[begun] - siege.ball.center[rows], siege.ball.norm)
        begin = (1.0 - COARSE) * best.high[rows]
        rays = Rays.of(rows, theta)
        rays.measure(siege, begin, 0.25 * begin, torch.full_like(begin, COARSE), ROUNDS)
        best.take(rays)


def ladder(siege: Siege, best: Rays, lost: Tensor) -> None:
    """Starts from `find_start` for rows without a direction; rows without a start leave."""
    view = siege.view(lost)
    rows = (siege.rows[:, None] == view.rows).int().argmax(0)
    start, found = find_start(view)
    none = torch.zeros_like(siege.rows, dtype=torch.bool)
    none[rows[~found]] = True
    siege.give_up(none)
    change = (start - view.ball.center)[found]
    rows, norm = rows[found], siege.ball.norm
    best.low[rows], best.high[rows] = 0.0, distances(change, norm)
    best.theta[rows] = unit(change, norm)


def descend(
    siege: Siege, state: State, toward: Tensor, fine: float, best: Rays | None = None
) -> State:
    """One step of every row along a direction that should lower g, with a search over its size.

    The step size doubles while g falls; if the first is too large, it is quartered until g falls. A
    size that is no better costs one query.

    Parameters
    ----------
    toward : Tensor
        ``[rows, ...]``, of any length.
    fine : float
        Relative tolerance of g at the end.
    best : Rays, optional
        Directions known already, which may be better than those of the state.
    """
    ball, alpha = siege.ball, state.alpha.clone()
    best = state.rays(ball) if best is None else best
    fell, kept = torch.zeros_like(alpha, dtype=torch.bool), alpha.clone()
    live = best.rows
    for trial in range(TRIALS):
        around, coarse = ball.at(live), state.coarse[live]
        theta = _turned(around, state.x[live], state.length[live], toward[live], alpha[live])
        rays = Rays.of(live, theta)
        high = best.high[live]
        rays.measure(siege, (1.0 - coarse) * high, coarse * high, coarse, ROUNDS)
        good = best.take(rays)
        first = ~fell[live]
        fell[live] |= good
        kept[live] = torch.where(good, alpha[live], kept[live])
        # Double while g falls; quarter until g falls once.
        up = good & (first if trial == 0 else ~first)
        down = ~good & first
        alpha[live] *= torch.where(good, 2.0, torch.where(first, 0.25, 1.0))
        go = (up | down) & (alpha[live] >= SMALLEST)
        live = live[go]
        if len(live) == 0:
            break
    fell |= best.high < state.length
    best.low.clamp_min_(0.0)
    share = torch.full_like(alpha, fine)
    best.measure(siege, alpha, alpha, torch.where(fell, share, torch.inf), halvings(1.0 / fine) + 1)
    x = point(ball, best.theta, best.high)
    length = ball.distance(x)
    shorter = fell & (length < state.length)
    gain = 1.0 - length / state.length.clamp_min(1e-300)
    coarse = torch.where(shorter, 0.25 * gain, 0.25 * state.coarse)
    alpha = torch.where(fell, kept, torch.where(alpha < SMALLEST, LARGEST, alpha))
    return State(
        pick(shorter, x, state.x),
        torch.where(shorter, length, state.length),
        alpha,
        coarse.clamp(fine, COARSE),
    )


def _turned(ball: Ball, x: Tensor, length: Tensor, toward: Tensor, alpha: Tensor) -> Tensor:
    """The directions of images turned by an angle: moved, then projected to the same distance.

    The move is along the estimated gradient in every norm, and the projection clips in linf. The
    gradient's signs would be the steepest step there, but most signs of an estimate are random:
    pixel values about which the votes say little must move little.
    """
    away = distances(x - ball.center, L2) / distances(toward, L2).clamp_min(1e-30)
    moved = x + toward * ball.scaled(alpha * away)
    return unit(ball.of(length).confine(moved) - ball.center, ball.norm)


def probe_size(ball: Ball, state: State, beta: float | Tensor) -> Tensor:
    """The standard deviation of probes per pixel value, at least what a victim with a grid can see.

    In l2 this is the published ``g beta u`` with u of length one; other norms use the same length.
    """
    size = beta * distances(state.x - ball.center, L2) / math.sqrt(ball.size)
    return size.clamp_min(0.5 * (ball.grid or 0.0))

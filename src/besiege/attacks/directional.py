"""Directions from the clean image, and how far along each of them the boundary is.

With labels alone, the distance of the boundary along a direction is still a number that can be
measured to any precision, and so be made smaller: ``g(theta)`` is the smallest lambda for which
``x0 + lambda theta`` is adversarial. What `opt` and `signopt` share stands here: how g is measured,
where to begin, and a step along a direction that should make g smaller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from besiege.attacks.smallest import unit
from besiege.attacks.starts import (
    BLENDS,
    IMAGES,
    NOISE,
    RIVALS,
    SIZES,
    adversarial,
    find_start,
    halvings,
    rivals,
)
from besiege.core.ball import Ball, distances
from besiege.core.siege import Siege
from besiege.core.threat import L2, Linf

COARSE = 0.02
"""How exactly g is known, relatively, while it is only compared, at most: of all the directions
that are tried, only one is measured to the end."""

TRIALS = 8
"""Sizes of a step that are tried, at most."""

ROUNDS = 8
"""Queries to compare one direction with the best, at most; as a rule one or two will do."""

SMALLEST = 1e-4
"""Steps below this, in tangents of angles, are none: the next one begins at `LARGEST` again."""
LARGEST = 1.0

_UNKNOWN = -1.0


def point(ball: Ball, theta: Tensor, length: Tensor) -> Tensor:
    """So far along the directions, inside the box, as the victim receives it."""
    x = (ball.center + theta * ball.scaled(length)).clamp_(*ball.box)
    return x if ball.grid is None else ball.received(x)


@dataclass
class Rays:
    """Directions, several of a row perhaps, and between which lengths each meets the boundary.

    Lengths are float64. Where a bracket is finer than the digits of an image, images tell.

    Attributes
    ----------
    rows : Tensor
        The row number of each, ascending.
    theta : Tensor
        The directions, ``[rays, ...]``, as a rule of length one in the ball's norm.
    low, high : Tensor
        The longest length known not to be adversarial, -1 where none is known, and the shortest
        known to be, infinite where none is. Length zero, the clean image, is not.
    """

    rows: Tensor
    theta: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, rows: Tensor, theta: Tensor) -> Rays:
        """Rays of which nothing is known."""
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
        """Find where each ray meets the boundary, from a guess; all go on side by side.

        From the guess, lengths grow or shrink by steps that double until the boundary lies between
        two of them; then the bracket is halved. A ray ends when its bracket is narrow enough, or
        when the image in the middle is one of the ends.

        Parameters
        ----------
        begin, width : Tensor
            The guess and the first step from there, ``[rays]``; without effect where both ends are
            known.
        tolerance : Tensor
            The bracket to end with, as a share of its upper end.
        rounds : int
            Queries per ray, at most; then what is known is what there is.
        most : Tensor, optional
            Up to where lengths grow; a ray not adversarial there stays infinite. Without it none
            grows: only what is below the guess matters.
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
                over[close] = self._same(ball.at(close), live[close])
            live = live[~over]

    def take(self, rays: Rays) -> Tensor:
        """Put in the rays that are shorter than those of their rows, at most one of each.

        This holds one ray of every row. Gives back which were.
        """
        good = rays.high < self.high[rays.rows]
        rows = rays.rows[good]
        self.theta[rows] = rays.theta[good]
        self.low[rows], self.high[rows] = rays.low[good], rays.high[good]
        return good

    def scaled(self, ball: Ball) -> Rays:
        """The same rays with directions of length one."""
        size = distances(self.theta, ball.norm)
        low = torch.where(self.low > 0, self.low * size, self.low)
        return Rays(self.rows, unit(self.theta.clone(), ball.norm), low, self.high * size)

    def shortest(self, k: int) -> Rays:
        """The shortest of every k."""
        first = torch.arange(0, len(self.rows), k, device=self.rows.device)
        pick = first + self.high.view(-1, k).argmin(1)
        return Rays(self.rows[pick], self.theta[pick], self.low[pick], self.high[pick])

    def _same(self, ball: Ball, rays: Tensor) -> Tensor:
        """Of which rays the image in the middle of the bracket is one of the ends, bit for bit."""
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
    ladder = NOISE + len(SIZES) + IMAGES + len(BLENDS)
    return ROUNDS * (tries + RIVALS) + ladder + halvings(1.0 / fine) + 1


def step_cost(fine: float) -> int:
    """The most queries of `descend`; as a rule it takes about twenty."""
    return TRIALS * ROUNDS + halvings(1.0 / fine) + 1


class Walk(NamedTuple):
    """Where each row is.

    Attributes
    ----------
    x : Tensor
        The nearest image known to be adversarial, as the victim received it.
    length : Tensor
        Its distance, float64.
    alpha : Tensor
        The size of the step to be tried first, as the tangent of an angle.
    coarse : Tensor
        How exactly g is to be known where it is only compared.
    """

    x: Tensor
    length: Tensor
    alpha: Tensor
    coarse: Tensor

    def rays(self, ball: Ball) -> Rays:
        """The direction of each row, inside the box up to where it is."""
        rows = torch.arange(len(ball), device=self.x.device)
        theta = unit(self.x - ball.center, ball.norm)
        return Rays(rows, theta, torch.zeros_like(self.length), self.length.clone())

    def at(self, rows: Tensor) -> Walk:
        """Some rows."""
        return Walk(*(part[rows] for part in self))


def set_out(siege: Siege, tries: int, alpha: float, fine: float) -> Walk:
    """The best of some random directions and of those to other images; rows without one leave.

    Where a class must be reached no noise will do, and where no direction is of use, the ladder of
    `find_start` begins instead.

    Parameters
    ----------
    tries : int
        Gaussian directions per row. The first that is adversarial far out is measured; each other
        costs one query where it is no better than the best so far.
    alpha, fine : float
        The first step, and how exactly the best is measured, relatively.
    """
    siege.leave(siege.record.distance[siege.rows] == 0.0)  # nothing is left to be found
    siege.settle()
    ball, rows = siege.ball, torch.arange(len(siege), device=siege.rows.device)
    best = Rays.of(rows, torch.zeros_like(ball.center))
    if not siege.targeted:
        _draw(siege, best, tries)
    lost = (best.high == torch.inf).nonzero()[:, 0]
    if len(lost):
        _ladder(siege, best, lost)
    _towards_others(siege, best)
    share = torch.full_like(best.high, fine)
    length = best.high.nan_to_num(posinf=0.0)  # of rows that have left
    best.low.clamp_min_(0.0)
    best.measure(siege, length, length, share, halvings(1.0 / fine) + 1)
    x = point(ball, best.theta, best.high.nan_to_num(posinf=0.0))
    return Walk(x, ball.distance(x), torch.full_like(share, alpha), torch.full_like(share, COARSE))


def _draw(siege: Siege, best: Rays, tries: int) -> None:
    """The best of some Gaussian directions, known roughly."""
    ball, dice = siege.ball, siege.dice.of("direction")
    width = ball.box[1] - ball.box[0]
    share = torch.full_like(best.high, COARSE)
    for n in range(tries):
        drawn = dice.normal(tuple(ball.center.shape[1:]), n).to(ball.center) * width
        far = distances(drawn, ball.norm)
        begin = torch.where(best.high < torch.inf, (1.0 - COARSE) * best.high, far)
        rays = Rays.of(best.rows, drawn / ball.scaled(far.clamp_min(1e-30)))
        rays.measure(siege, begin, 0.25 * begin, share, ROUNDS)
        best.take(rays)


def _towards_others(siege: Siege, best: Rays) -> None:
    """Directions to images of other classes, where the boundary is nearer there."""
    for rows, other in rivals(siege):
        begun = (best.high[rows] < torch.inf).nonzero()[:, 0]
        rows = rows[begun]
        theta = unit(other[begun] - siege.ball.center[rows], siege.ball.norm)
        begin = (1.0 - COARSE) * best.high[rows]
        rays = Rays.of(rows, theta)
        rays.measure(siege, begin, 0.25 * begin, torch.full_like(begin, COARSE), ROUNDS)
        best.take(rays)


def _ladder(siege: Siege, best: Rays, lost: Tensor) -> None:
    """Other starts for rows without any; those for which there is none leave."""
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
    siege: Siege, walk: Walk, toward: Tensor, fine: float, best: Rays | None = None
) -> Walk:
    """One step of every row along a direction that should make g smaller, of a size searched for.

    The size doubles as long as g falls; where the first is too large, it is quartered until one
    is not. A size that is no better costs one query.

    Parameters
    ----------
    toward : Tensor
        ``[rows, ...]``; its length is of no matter.
    fine : float
        How exactly g is measured in the end, relatively.
    best : Rays, optional
        Directions known already, which may be better than those of the walk.
    """
    ball, alpha = siege.ball, walk.alpha.clone()
    best = walk.rays(ball) if best is None else best
    fell, kept = torch.zeros_like(alpha, dtype=torch.bool), alpha.clone()
    live = best.rows
    for trial in range(TRIALS):
        around, coarse = ball.at(live), walk.coarse[live]
        theta = _turned(around, walk.x[live], walk.length[live], toward[live], alpha[live])
        rays = Rays.of(live, theta)
        high = best.high[live]
        rays.measure(siege, (1.0 - coarse) * high, coarse * high, coarse, ROUNDS)
        good = best.take(rays)
        first = ~fell[live]
        fell[live] |= good
        kept[live] = torch.where(good, alpha[live], kept[live])
        # Larger while that helps; smaller until it helps, and then that is enough.
        up = good & (first if trial == 0 else ~first)
        down = ~good & first
        alpha[live] *= torch.where(good, 2.0, torch.where(first, 0.25, 1.0))
        go = (up | down) & (alpha[live] >= SMALLEST)
        live = live[go]
        if len(live) == 0:
            break
    fell |= best.high < walk.length
    best.low.clamp_min_(0.0)
    share = torch.full_like(alpha, fine)
    best.measure(siege, alpha, alpha, torch.where(fell, share, torch.inf), halvings(1.0 / fine) + 1)
    x = point(ball, best.theta, best.high)
    length = ball.distance(x)
    shorter = fell & (length < walk.length)
    gain = 1.0 - length / walk.length.clamp_min(1e-300)
    coarse = torch.where(shorter, 0.25 * gain, 0.25 * walk.coarse)
    alpha = torch.where(fell, kept, torch.where(alpha < SMALLEST, LARGEST, alpha))
    return Walk(
        torch.where(ball.scaled(shorter) > 0, x, walk.x),
        torch.where(shorter, length, walk.length),
        alpha,
        coarse.clamp(fine, COARSE),
    )


def _turned(ball: Ball, x: Tensor, length: Tensor, toward: Tensor, alpha: Tensor) -> Tensor:
    """The directions of images turned by an angle: moved, and brought back to their distance.

    Moved along the slope itself in every norm, and brought back by cutting in linf. Its signs would
    be the steepest move there, but of an estimate most signs are chance: entries that the votes
    say little about must move little.
    """
    away = distances(x - ball.center, L2) / distances(toward, L2).clamp_min(1e-30)
    moved = x + toward * ball.scaled(alpha * away)
    return unit(ball.of(length).confine(moved) - ball.center, ball.norm)


def probe_size(ball: Ball, walk: Walk, beta: float | Tensor) -> Tensor:
    """The standard deviation of probes, per entry: a share of the change, and never lost on a grid.

    For l2 this is the published ``g beta u`` with u of length one; in other norms as long in l2.
    """
    size = beta * distances(walk.x - ball.center, L2) / math.sqrt(ball.size)
    return size.clamp_min(0.5 * (ball.grid or 0.0))

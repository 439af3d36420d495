"""HopSkipJump: estimate the boundary's normal from votes, step along it, return to the boundary."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.smallest import endless, unit
from besiege.attacks.starts import (
    adversarial,
    begin,
    find_start,
    halvings,
    start_cost,
    to_boundary,
)
from besiege.core.attack_registry import register
from besiege.core.ball import Ball, distances
from besiege.core.blocks import at_once
from besiege.core.dice import Dice
from besiege.core.fields import number, whole_number, yes_or_no
from besiege.core.oracle import Access
from besiege.core.rowwise import pick, rowwise
from besiege.core.siege import Siege
from besiege.core.threat import L2, Linf

Draw = Callable[[Dice, Tensor], Tensor]
"""Directions of length one, ``[rows, k, ...]``, from dice and the numbers of the probes."""

HALVINGS = 25
"""Most halvings of a step; then the row stays: a point that rounding moved back across the boundary
would be halved for ever."""

FIRST = 0.1
"""Published: length of the first probes, in box widths."""

TINY = 1e-30

BLEND = 1e-3
"""Published: precision of the first point on the line from the clean image to the start."""


def length(ball: Ball, far: Tensor, probe: float) -> Tensor:
    """The l2 length of probes: a fraction of the distance, at least what a grid shows.

    A distance in another norm is converted as if all pixel values differed equally.
    """
    root = math.sqrt(ball.size)
    alike = {L2: 1.0, Linf: root}.get(ball.norm, 1.0 / root)
    return (probe * far * alike).clamp_min(0.5 * (ball.grid or 0.0) * root)


def narrow(ball: Ball, long: Tensor) -> Tensor:
    """The distance from the boundary, in the ball's norm, at which about half of the probes cross.

    A probe of length l in a random direction moves ``l / sqrt(d)`` along the normal.
    """
    root = math.sqrt(ball.size)
    return long / root * {L2: 1.0, Linf: 1.0 / root}.get(ball.norm, root)


def votes(
    siege: Siege, x: Tensor, long: Tensor, many: int, draw: Draw, centred: bool = True
) -> tuple[Tensor, Tensor]:
    r"""The normal of the boundary at points near it, from the labels of probes around them.

    ``sum_i (phi_i - mean(phi)) u_i``, ``phi_i = +1`` or ``-1``, where ``u_i`` is the difference
    really sent, after box and grid, divided by the length of the probes. Unanimous votes are not
    centred.

    Parameters
    ----------
    x : Tensor
        Points ``[rows, ...]``.
    long : Tensor
        Length of the probes of each row.
    many : int
        Probes per row.
    draw : callable
        Draws the directions.
    centred : bool
        Whether the mean vote is subtracted.

    Returns
    -------
    Tensor
        Sums ``[rows, ...]``, pointing into the adversarial region.
    Tensor
        The fraction of adversarial probes, ``[rows]``.
    """
    normal, share = torch.zeros_like(x), torch.zeros_like(long)
    fit = at_once(siege.ball)
    for rows in siege.blocks(many):
        ball, here, dice = siege.ball.at(rows), x[rows], siege.dice.at(rows)
        scale = ball.scaled(long[rows])[:, None]
        everyone, voted = torch.zeros_like(here), torch.zeros_like(here)
        asked, yes = torch.zeros_like(long[rows]), torch.zeros_like(long[rows])
        for first in range(0, many, fit):
            places = torch.arange(first, min(many, first + fit), device=x.device)
            sent = draw(dice, places.expand(len(rows), -1)).to(x).mul_(scale)
            sent = sent.add_(here[:, None]).clamp_(*ball.box)
            sent = ball.received(sent)
            answer = siege.labels(sent, rows)
            moved = sent.sub_(here[:, None])
            known, good = answer.labels >= 0, adversarial(siege, answer, rows)
            asked, yes = asked + known.sum(1), yes + good.sum(1)
            sums = torch.stack((known, good), 1).to(moved) @ moved.flatten(2)
            everyone += sums[:, 0].view_as(here)
            voted += sums[:, 1].view_as(here)
        mean = yes / asked.clamp_min(1.0)
        # Votes are 2 good - known; centred votes are 2 good - 2 mean.
        mixed = (yes > 0) & (yes < asked) & centred
        mean_or_half = torch.where(mixed, mean, torch.full_like(mean, 0.5))
        normal[rows] = 2.0 * (voted - ball.scaled(mean_or_half) * everyone) / scale[:, 0]
        share[rows] = mean
    return normal, share


@register("hopskipjump")
@dataclass(frozen=True)
class HopSkipJump(Attack):
    r"""Estimate the normal of the boundary by votes, step along it, and return to the boundary.

    At a boundary point, step t queries :math:`50 \sqrt t` probes around it. Adversarial probes vote
    for their direction, others against it, and the centred sum of votes estimates the normal. The
    point then moves along it by :math:`D / \sqrt t`, with D its distance, or by half of that, a
    quarter, ... until it is adversarial, and bisection towards the clean image ends at the boundary
    (Chen et al., HopSkipJumpAttack, 2020). In linf the step uses the signs of the normal (less
    where the votes hardly agree), and bisection clips the perturbation.

    In the paper there are twice as many probes, their length is D / d in d dimensions, and
    bisection ends at the precision they need. Here their length is a tenth of D: boundaries are
    seldom so curved that this hurts, bisection takes half as many queries, and for a victim with a
    grid probes move every pixel value by at least half a grid step. On a ResNet-20 the median l2
    distance after 500 queries is 0.82, and 1.01 as published. Also, a point is replaced only by a
    nearer one, and the start may be one of several images.

    Published: with d dimensions and probes of a fraction p of the distance, 1 / d by default,
    bisection ends at a fraction :math:`p / \sqrt d` of its path in l2 and p / d in linf; p is
    relative to the distance before the last bisection; steps in linf use plain signs; every point
    replaces the last one; and a start from noise is first bisected on a straight line.

    Parameters
    ----------
    steps : int
        Estimates of the normal.
    probes : int
        Probes of the first step; step t sends the square root of t times as many.
    probe : float, optional
        Length of the probes, as a fraction of the distance; None is as published.
    compat : bool
        Whether points are updated by the published rule.

    Examples
    --------
    >>> str(HopSkipJump(steps=10))
    'hopskipjump(steps=10)'
    """

    steps: int = whole_number(70)
    probes: int = whole_number(50)
    probe: float | None = number(0.1, above=0)
    compat: bool = yes_or_no(False, added=True)

    access = Access.DECISION
    norms = frozenset({L2, Linf})
    minimal = True
    source: ClassVar[str] = "Chen et al., HopSkipJumpAttack, 2020"

    def run(self, siege: Siege) -> None:
        siege = endless(siege)
        if self.compat:
            return self._published(siege)
        x = begin(siege, self._narrow)
        for step in range(1, self.steps + 1):
            if not len(siege):
                return
            ball = siege.ball
            far = ball.distance(x)
            long = self._length(ball, far, step)
            normal, _ = votes(siege, x, long, self.many(step), self._drawn(ball, step))
            v = _clear(normal) if ball.norm is Linf else normal
            v = v / ball.scaled(distances(v, ball.norm).clamp_min(TINY))
            new = _jumped(siege, x, v, far / math.sqrt(step))
            new = to_boundary(siege, ball.center, new, self._narrow(ball, far))
            x = siege.settle(pick(ball.distance(new) < far, new, x))

    def _published(self, siege: Siege) -> None:
        x: Tensor = siege.settle(find_start(siege)[0])
        if not siege.targeted and len(siege):
            exact = BLEND * distances(x - siege.ball.center, L2)
            x = siege.settle(to_boundary(siege, siege.ball.center, x, exact, straight=True))
        share = self.probe or 1.0 / siege.ball.size
        wide = siege.ball.distance(x)
        x, wide = siege.settle(_returned(siege, x, share), wide)
        for step in range(1, self.steps + 1):
            if not len(siege):
                return
            ball = siege.ball
            long = share * wide if step > 1 else torch.full_like(wide, FIRST * ball.width)
            long = long.clamp_min(0.5 * (ball.grid or 0.0) * math.sqrt(ball.size))
            normal, _ = votes(siege, x, long, self.many(step), self._drawn(ball, step))
            v = torch.sign(normal) if ball.norm is Linf else unit(normal, L2)
            new = _jumped(siege, x, v, ball.distance(x) / math.sqrt(step))
            x, wide = siege.settle(_returned(siege, new, share), ball.distance(new))

    def cost(self, shape: tuple[int, ...], classes: int) -> int:
        d = math.prod(shape)
        wide = d if self.compat else math.sqrt(d)
        back = halvings(wide / self.probe if self.probe is not None else d**2) + 1
        first = start_cost(back) + (halvings(1 / BLEND) if self.compat else 0)
        each = HALVINGS + back
        return first + sum(self.many(t) + each for t in range(1, self.steps + 1))

    def many(self, step: int) -> int:
        """Probes of a step, counted from 1."""
        return int(self.probes * math.sqrt(step))

    def _length(self, ball: Ball, far: Tensor, step: int) -> Tensor:
        if self.probe is not None:
            return length(ball, far, self.probe)
        least = 0.5 * (ball.grid or 0.0) * math.sqrt(ball.size)
        long = far / ball.size if step > 1 else torch.full_like(far, FIRST * ball.width)
        return long.clamp_min(least)

    def _narrow(self, ball: Ball, far: Tensor) -> Tensor:
        return narrow(ball, self._length(ball, far, 2))

    def _drawn(self, ball: Ball, step: int) -> Draw:
        shape = tuple(ball.center.shape[1:])

        def draw(dice: Dice, places: Tensor) -> Tensor:
            dice = dice.of("probes", step)
            if ball.norm is L2:
                return units(dice.normal(shape, places))
            return units(dice.uniform(shape, places).mul_(2.0).sub_(1.0))

        return draw


def _clear(normal: Tensor) -> Tensor:
    """Signs where the votes are clear; pixel values on which they hardly agree move less."""
    typical = distances(normal, L2) / math.sqrt(normal[0].numel())
    half = rowwise((0.5 * typical.clamp_min(TINY)).to(normal), normal)
    return (normal / half).clamp_(-1.0, 1.0)


def units(u: Tensor) -> Tensor:
    """Directions ``[rows, k, ...]`` of length one in l2, in place."""
    return unit(u.flatten(0, 1), L2).view_as(u)


def _jumped(siege: Siege, x: Tensor, v: Tensor, far: Tensor) -> Tensor:
    """The first adversarial point of ``x + far v``, ``x + far v / 2``, ...; x if there is none."""
    new, rows = x.clone(), torch.arange(len(siege), device=x.device)
    for n in range(HALVINGS):
        if not len(rows):
            break
        ball = siege.ball.at(rows)
        image = (x[rows] + ball.scaled(0.5**n * far[rows]) * v[rows]).clamp_(*ball.box)
        image = ball.received(image)
        answer = siege.labels(image, rows)
        good = adversarial(siege, answer, rows)
        new[rows[good]] = image[good]
        rows = rows[~good & (answer.labels >= 0)]
    return new


def _returned(siege: Siege, x: Tensor, share: float) -> Tensor:
    """Points at the boundary on the paths to the clean images, to the published precision."""
    if not len(siege):
        return x
    ball = siege.ball
    narrow = share / (math.sqrt(ball.size) if ball.norm is L2 else ball.size)
    return to_boundary(siege, ball.center, x, narrow * ball.distance(x))

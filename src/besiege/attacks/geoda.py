"""GeoDA: the boundary as a plane, its normal estimated from votes in a low-frequency subspace."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.hopskipjump import Draw, length, narrow, units, votes
from besiege.attacks.smallest import endless
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
from besiege.core.dice import Dice
from besiege.core.fields import MOST_STEPS, number, whole_number, yes_or_no
from besiege.core.oracle import Access
from besiege.core.siege import Siege
from besiege.core.threat import L1, L2, Linf, Norm

GAIN = 0.01
"""How much nearer a point must be to be queried, as a fraction of the distance."""

OUT, TIMES = 1.125, 100
"""Published: l2 length of the steps out from the clean image, and the most of them. The paper's 5
is in units of the mean standard deviation of ImageNet's pixel values."""

EXACT = 1e-4
"""Published: l2 precision of bisections."""

_FASTEST = 10
"""Largest growth of the number of probes from step to step."""


@register("geoda")
@dataclass(frozen=True)
class GeoDA(Attack):
    r"""Estimate the normal of the boundary by votes, and move from the clean image along it.

    Probes around a boundary point are sums of the lowest cosines of every channel with normal
    weights: in fewer dimensions a normal takes fewer queries, and the normals of image networks lie
    mostly there. Votes of all steps are added up; step i sends :math:`g^i` times as many probes as
    the first. For a plane with that normal the best perturbation of a given size is known in every
    norm: along the normal in l2, along its signs in linf, on its largest components in l1 (Rahmati
    et al., GeoDA: a geometric framework for black-box adversarial attacks, 2020).

    In the paper that perturbation grows until it is adversarial, bisection takes it to the
    boundary, and the result is the next point. Here it is queried once, a hundredth smaller than
    the best known perturbation: if it is not adversarial the point stays, and the next votes refine
    the normal. The perturbation is the best one inside the box.

    Parameters
    ----------
    steps : int
        Estimates of the normal.
    probes : int
        Probes of the first step.
    growth : float
        Growth of the number of probes from step to step.
    side : int
        Cosines per height and per width, at most the number of pixels.
    probe : float
        Length of the probes, as a fraction of the distance. With `compat` the standard deviation
        of the weights of the cosines, in box widths.
    compat : bool
        Whether points are updated as published, in l2 and linf: the estimate is the sum of the mean
        votes of all steps; from the clean image steps along it of equal length lead to an
        adversarial image, which is bisected on a straight line and replaces the point.

    Examples
    --------
    >>> str(GeoDA(steps=10, side=8))
    'geoda(steps=10, side=8)'
    """

    steps: int = whole_number(25)
    probes: int = whole_number(40)
    growth: float = number(1.2, least=1, most=_FASTEST)
    side: int = whole_number(16)
    probe: float = number(0.1, above=0)
    compat: bool = yes_or_no(False, added=True)

    access = Access.DECISION
    minimal = True
    source: ClassVar[str] = "Rahmati et al., GeoDA, 2020"

    @property
    def norms(self) -> frozenset[Norm]:  # type: ignore[override]
        """The norms it can be used for."""
        return frozenset({L2, Linf} if self.compat else {L2, Linf, L1})

    def run(self, siege: Siege) -> None:
        siege = endless(siege)
        if self.compat:
            return self._published(siege)
        x = begin(siege, self._narrow)
        w = torch.zeros_like(x)
        for step in range(self.steps):
            if not len(siege):
                return
            ball = siege.ball
            far = ball.distance(x)
            draw = self._drawn(tuple(x.shape[1:]), step)
            w = w + votes(siege, x, length(ball, far, self.probe), self.many(step), draw)[0]
            x, w = siege.settle(self._moved(siege, x, w, far), w)

    def _published(self, siege: Siege) -> None:
        x: Tensor = siege.settle(find_start(siege)[0])
        x = siege.settle(_back(siege, x))
        w = torch.zeros_like(x)
        for step in range(self.steps):
            if not len(siege):
                return
            shape, many = tuple(x.shape[1:]), self.many(step)
            long = torch.full_like(siege.ball.radius, self.probe * siege.ball.width)
            drawn = self._drawn(shape, step, scaled=False)
            w = w + votes(siege, x, long, many, drawn, centred=False)[0] / many
            x, w = siege.settle(_back(siege, _out(siege, x, w)), w)

    def cost(self, shape: tuple[int, ...], classes: int) -> int:
        back = halvings(math.sqrt(math.prod(shape)) / self.probe) + 1
        out = 1
        if self.compat:
            back, out = halvings(math.sqrt(math.prod(shape)) / EXACT) + 1, TIMES
        total = start_cost(back) + self.steps * (out + back)
        for step in range(self.steps):
            most = self.many(step)
            if self.growth == 1 or most == MOST_STEPS:  # all later steps send as many
                return total + (self.steps - step) * most
            total += most
        return total

    def many(self, step: int) -> int:
        """Probes of a step, counted from 0."""
        # Compare logarithms: the power of a late step overflows.
        if step * math.log(self.growth) > math.log(MOST_STEPS):
            return MOST_STEPS
        many = self.probes * self.growth**step
        return min(round(many) if self.compat else int(many), MOST_STEPS)

    def _moved(self, siege: Siege, x: Tensor, w: Tensor, far: Tensor) -> Tensor:
        """Boundary points along w where these are nearer, else the old points."""
        ball = siege.ball
        size = (1.0 - GAIN) * far
        if ball.norm is Linf and ball.grid is not None:  # otherwise rounding would undo the gain
            size = torch.minimum(size, far - ball.grid).clamp_min(0.0)
        new = ball.center + ball.steepest(w, ball.center, size)
        new = ball.received(new.clamp_(*ball.box))
        good = adversarial(siege, siege.labels(new)) & (ball.distance(new) < far)
        rows = good.nonzero()[:, 0]
        tolerance = self._narrow(ball, far)[rows]
        return x.index_copy(
            0, rows, to_boundary(siege, ball.center[rows], new[rows], tolerance, rows)
        )

    def _narrow(self, ball: Ball, far: Tensor) -> Tensor:
        return narrow(ball, length(ball, far, self.probe))

    def _drawn(self, shape: tuple[int, ...], step: int, scaled: bool = True) -> Draw:
        def draw(dice: Dice, places: Tensor) -> Tensor:
            made = sums(dice.of("waves", step), places, shape, self.side)
            return units(made) if scaled else made

        return draw


def _out(siege: Siege, x: Tensor, w: Tensor) -> Tensor:
    """The first adversarial images on equal steps from the clean image along w, or its signs.

    The old points where there is none.
    """
    w = w if siege.ball.norm is L2 else torch.sign(w)
    w = w / siege.ball.scaled(distances(w, L2).clamp_min(1e-30))
    new, rows = x.clone(), torch.arange(len(siege), device=x.device)
    for n in range(1, TIMES + 1):
        if not len(rows):
            break
        ball = siege.ball.at(rows)
        image = (ball.center + n * OUT * ball.width * w[rows]).clamp_(*ball.box)
        image = ball.received(image)
        answer = siege.labels(image, rows)
        good = adversarial(siege, answer, rows)
        new[rows[good]] = image[good]
        rows = rows[~good & (answer.labels >= 0)]
    return new


def _back(siege: Siege, x: Tensor) -> Tensor:
    """Points at the boundary on straight lines to the clean images."""
    if not len(siege):
        return x
    ball = siege.ball
    return to_boundary(siege, ball.center, x, EXACT * ball.width, straight=True)


def waves(dice: Dice, places: Tensor, shape: tuple[int, ...], side: int) -> Tensor:
    """Normal sums of each channel's lowest cosines, of length one, ``[rows, k, *shape]``."""
    return units(sums(dice, places, shape, side))


def sums(dice: Dice, places: Tensor, shape: tuple[int, ...], side: int) -> Tensor:
    """Sums of each channel's lowest cosines with normal weights, ``[rows, k, *shape]``."""
    channels, height, width = shape
    high, wide = min(side, height), min(side, width)
    u = dice.normal((channels, high, wide), places)
    down, across = cosines(height, high).to(u), cosines(width, wide).to(u)
    # Row by row: the rounding of a matrix product depends on the batch size.
    return torch.stack([torch.matmul(torch.matmul(down, row), across.T) for row in u])


@cache
def cosines(side: int, few: int) -> Tensor:
    """The lowest functions of the discrete cosine transform as orthonormal columns."""
    place, wave = torch.arange(side).double() + 0.5, torch.arange(few).double()
    table = torch.cos(math.pi / side * place[:, None] * wave)
    columns: Tensor = table / torch.linalg.vector_norm(table, dim=0)
    return columns.float()

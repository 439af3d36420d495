"""Bandits: black-box ascent along a gradient prior learnt online, with two queries a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.estimates import ScoreLoss, coarse, resized, sent
from besiege.attacks.losses import margin
from besiege.attacks.pieces import unboxed
from besiege.core.answer import Loss
from besiege.core.attack_registry import register
from besiege.core.ball import Ball, distances
from besiege.core.fields import a_loss, number, whole_number, yes_or_no
from besiege.core.oracle import Access
from besiege.core.siege import Siege
from besiege.core.threat import L2, Linf, Norm

FORGET = 0.9
"""Decay of the mean square of differences."""

SURE = 0.999
"""Largest absolute value of a sign prior."""


def exponentiated(v: Tensor, step: Tensor, sure: float = SURE) -> Tensor:
    """Values between -1 and 1, updated by exponentiated gradients.

    ``p = (v + 1) / 2`` becomes ``p exp(h) / (p exp(h) + (1 - p) exp(-h))``, which is an addition of
    h to atanh(v). Absolute values are at most `sure`.
    """
    grown = torch.exp((2.0 * step).clamp(-60.0, 60.0))
    p = (v + 1.0) / 2.0
    # In float32 a value at 1 would stay there for ever.
    return (2.0 * p * grown / (p * grown + (1.0 - p)) - 1.0).clamp_(-sure, sure)


def added(v: Tensor, step: Tensor, sure: float = SURE) -> Tensor:
    """Values updated by addition."""
    return v + step


LEARNING: Mapping[Norm, Callable[[Tensor, Tensor, float], Tensor]] = MappingProxyType(
    {Linf: exponentiated, L2: added}
)
"""Update of the prior by norm: the steepest step uses signs in linf and magnitudes in l2."""


class Prior(NamedTuple):
    """The learnt state, rows first.

    Attributes
    ----------
    v : Tensor
        The prior.
    usual, weight : Tensor
        Decaying sum of squared differences, and the sum of its weights, float64.
    """

    v: Tensor
    usual: Tensor
    weight: Tensor


@register("bandits")
@dataclass(frozen=True)
class Bandits(Attack):
    """Ascent along a coarse gradient prior that is learnt online from pairs of queries.

    The losses at ``v + e`` and ``v - e`` are compared, with v the prior on a coarse grid and e a
    random direction; their difference decides how much of e is added to v. The image then moves
    along v (Ilyas, Engstrom and Madry, Prior convictions: black-box adversarial attacks with
    bandits and priors, 2019). It exploits that gradients are similar at neighbouring pixels and in
    successive steps.

    In the paper the update is proportional to the difference, so the rate must suit the victim's
    loss. Here a difference is divided by the running root mean square of differences, unless
    `relative` is False.

    Parameters
    ----------
    steps : int
        Steps of three queries: two for the prior, one for the iterate itself.
    tile : int, optional
        Side of the coarse grid, at most that of the image: by default ``3 sqrt(side)``, which is 17
        for 32 and 52 for 299.
    probe : float
        Euclidean distance of the two queries from the iterate, in box widths. If the victim has a
        grid, at least half a grid step per pixel value.
    explore : float
        Size of e: its root mean square or, as published (`relative` False), its length.
    learn : float
        Learning rate, for a difference of the usual size or, as published, for a slope of one.
    rate : float
        Step size, as a fraction of the budget.
    loss : callable
        Loss to maximize.
    relative : bool
        False learns as published: e has the length `explore`, and ``learn * slope * e`` is added,
        with the slope the difference divided by ``probe * explore``; in linf the prior may reach
        one and stays there.
    exact : bool
        False takes steps in l2 as if there were no box, scales what leaves the ball and then clips
        it to the box, as published. By default steps use the room in the box.

    Examples
    --------
    >>> str(Bandits(tile=8))
    'bandits(tile=8)'
    """

    steps: int = whole_number(6660)
    tile: int | None = whole_number(None)
    probe: float = number(0.1, above=0)
    explore: float = number(1.0, above=0)
    learn: float = number(0.1, above=0)
    rate: float = number(0.1, above=0)
    loss: Loss = a_loss(margin)
    relative: bool = yes_or_no(True, added=True)
    exact: bool = yes_or_no(True, added=True)

    access = Access.SCORE
    norms = frozenset({Linf, L2})
    source: ClassVar[str] = "Ilyas et al., Prior convictions: bandits and priors, 2019"

    @property
    def revision(self) -> int:  # type: ignore[override]  # of every attack one, here of its form
        """Part of the identity: 2 learns from published slopes in any box as in [0, 1]."""
        return 1 if self.relative else 2

    def cost(self, shape: tuple[int, ...], classes: int) -> int:
        return 3 * self.steps + 1

    def run(self, siege: Siege) -> None:
        x, prior = siege.ball.center, self.begin(siege)
        for step in range(self.steps):
            e, difference = self.compare(siege, x, prior.v, step)
            x, e, difference, prior = siege.settle(x, e, difference, prior)
            if not len(siege):
                return
            ball = siege.ball if self.exact else unboxed(siege.ball)
            prior = self.learnt(siege.ball, prior, e, difference)
            move = ball.steepest(enlarged(ball, prior.v), x, self.rate * ball.radius)
            x = ball.confine(x + move).clamp(*siege.ball.box)
        siege.offer(x, ScoreLoss(self.loss))

    def begin(self, siege: Siege) -> Prior:
        """The state before the first step."""
        shape = coarse(tuple(siege.ball.center.shape[1:]), self.tile)
        none = torch.zeros_like(siege.ball.radius)
        return Prior(siege.ball.center.new_zeros(len(siege), *shape), none, none)

    def learnt(self, ball: Ball, prior: Prior, e: Tensor, difference: Tensor) -> Prior:
        """The prior after a difference along e."""
        if not self.relative:
            # The prior has no unit: slopes are those of images in a box of width one.
            slope = difference / (self.length(ball) / ball.width * self.explore)
            step = e * ball.scaled(self.learn * slope)
            return prior._replace(v=LEARNING[ball.norm](prior.v, step, 1.0))
        usual = FORGET * prior.usual + (1 - FORGET) * difference**2
        weight = FORGET * prior.weight + (1 - FORGET)
        relative = difference / (usual / weight).sqrt().clamp_min(1e-300)
        step = e * ball.scaled(self.learn * relative)
        return Prior(LEARNING[ball.norm](prior.v, step, SURE), usual, weight)

    def compare(self, siege: Siege, x: Tensor, v: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Query the iterates and two points around each: the directions e and loss differences.

        Differences are float64, zero where the queries were not paid for.
        """
        e = siege.dice.of("explore", step).normal(tuple(v.shape[1:])).to(v.dtype)
        # What is learnt is in units of e, published with the size of the exploration in it.
        size = self.explore if self.relative else 1.0
        e = e if self.relative else e * (self.explore / math.sqrt(v[0].numel()))
        length = self.length(siege.ball)
        parts: list[Tensor] = []
        for rows in siege.blocks(3):
            ball, at = siege.ball.at(rows), x[rows]
            out = size * e[rows]
            probes = [
                at + towards * ball.scaled(length / distances(towards, L2).clamp_min(1e-30))
                for towards in (enlarged(ball, v[rows] + out), enlarged(ball, v[rows] - out))
            ]
            images = torch.cat((at[:, None], sent(ball, torch.stack(probes, 1))), 1)
            losses = siege.logits(images, rows=rows, loss=ScoreLoss(self.loss)).loss.double()
            difference = losses[:, 1] - losses[:, 2]
            parts.append(torch.where(torch.isfinite(difference), difference, 0.0))
        return e, torch.cat(parts)

    def length(self, ball: Ball) -> float:
        """The Euclidean length of probes: with a grid at least half a grid step per pixel value."""
        return max(self.probe * ball.width, 0.5 * (ball.grid or 0.0) * math.sqrt(ball.size))


def enlarged(ball: Ball, v: Tensor) -> Tensor:
    """A prior enlarged to the size of the images by repetition."""
    return resized(v, tuple(ball.center.shape[2:]), "nearest")

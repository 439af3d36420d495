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
from besiege.core.answer import Loss
from besiege.core.attack_registry import register
from besiege.core.ball import Ball, distances
from besiege.core.fields import a_loss, number, whole_number
from besiege.core.oracle import Access
from besiege.core.siege import Siege
from besiege.core.threat import L2, Linf, Norm

FORGET = 0.9
"""Decay of the mean square of differences."""

PRESETS: Mapping[str, str] = MappingProxyType(
    {
        "bandits-2019-linf": "bandits(steps=5000, tile=50, probe=0.1, rate=0.2)",
        "bandits-2019-l2": "bandits(steps=5000, tile=50, probe=0.01, rate=0.1)",
    }
)
"""Settings of Ilyas et al. 2019 for 299 x 299 images. There the learning rate depends on the size
of the victim's loss; here it does not (see `learn`)."""


SURE = 0.999
"""Largest absolute value of a sign prior."""


def exponentiated(v: Tensor, step: Tensor) -> Tensor:
    """Values between -1 and 1, updated by exponentiated gradients.

    ``p = (v + 1) / 2`` becomes ``p exp(h) / (p exp(h) + (1 - p) exp(-h))``, which is an addition of
    h to atanh(v).
    """
    grown = torch.exp((2.0 * step).clamp(-60.0, 60.0))
    p = (v + 1.0) / 2.0
    # In float32 a value at 1 would stay there for ever.
    return (2.0 * p * grown / (p * grown + (1.0 - p)) - 1.0).clamp_(-SURE, SURE)


LEARNING: Mapping[Norm, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {Linf: exponentiated, L2: torch.add}
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
    loss. Here a difference is divided by the running root mean square of differences.

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
        Length of e relative to the usual length of the prior.
    learn : float
        Learning rate, for a difference of the usual size.
    rate : float
        Step size, as a fraction of the budget.
    loss : callable
        Loss to maximize.

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

    access = Access.SCORE
    norms = frozenset({Linf, L2})
    source: ClassVar[str] = "Ilyas et al., Prior convictions: bandits and priors, 2019"

    def cost(self, shape: tuple[int, ...], classes: int) -> int:
        return 3 * self.steps + 1

    def run(self, siege: Siege) -> None:
        x, prior = siege.ball.center, self.begin(siege)
        for step in range(self.steps):
            e, difference = self.compare(siege, x, prior.v, step)
            x, e, difference, prior = siege.settle(x, e, difference, prior)
            if not len(siege):
                return
            prior, ball = self.learnt(siege.ball, prior, e, difference), siege.ball
            move = ball.steepest(enlarged(ball, prior.v), x, self.rate * ball.radius)
            x = ball.confine(x + move)
        siege.offer(x, ScoreLoss(self.loss))

    def begin(self, siege: Siege) -> Prior:
        """The state before the first step."""
        shape = coarse(tuple(siege.ball.center.shape[1:]), self.tile)
        none = torch.zeros_like(siege.ball.radius)
        return Prior(siege.ball.center.new_zeros(len(siege), *shape), none, none)

    def learnt(self, ball: Ball, prior: Prior, e: Tensor, difference: Tensor) -> Prior:
        """The prior after a difference along e."""
        usual = FORGET * prior.usual + (1 - FORGET) * difference**2
        weight = FORGET * prior.weight + (1 - FORGET)
        relative = difference / (usual / weight).sqrt().clamp_min(1e-300)
        step = e * ball.scaled(self.learn * relative)
        return Prior(LEARNING[ball.norm](prior.v, step), usual, weight)

    def compare(self, siege: Siege, x: Tensor, v: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Query the iterates and two points around each: the directions e and loss differences.

        Differences are float64, zero where the queries were not paid for.
        """
        e = siege.dice.of("explore", step).normal(tuple(v.shape[1:])).to(v.dtype)
        length = self.length(siege.ball)
        parts: list[Tensor] = []
        for rows in siege.blocks(3):
            ball, at = siege.ball.at(rows), x[rows]
            out = self.explore * e[rows]
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

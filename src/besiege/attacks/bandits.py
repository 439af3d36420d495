"""Bandits: a prior for the gradient that is learnt on the way, two queries at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from besiege.attacks.attack import Attack
from besiege.attacks.estimates import Told, coarse, sent
from besiege.attacks.losses import margin
from besiege.core.answer import Loss
from besiege.core.attack_registry import register
from besiege.core.ball import Ball, distances
from besiege.core.fields import a_loss, number, whole_number
from besiege.core.oracle import Access
from besiege.core.siege import Siege
from besiege.core.threat import L2, Linf, Norm

FORGET = 0.9
"""The weight of the past in the usual size of a difference."""

PRESETS: Mapping[str, str] = MappingProxyType(
    {
        "bandits-2019-linf": "bandits(steps=5000, tile=50, probe=0.1, rate=0.2)",
        "bandits-2019-l2": "bandits(steps=5000, tile=50, probe=0.01, rate=0.1)",
    }
)
"""Published settings, for images of 299 pixels a side: Ilyas et al. 2019. What is learnt from a
difference depended on the size of the victim's loss there, and does not here: see `learn`."""


SURE = 0.999
"""How sure a prior of signs becomes."""


def additive(v: Tensor, step: Tensor) -> Tensor:
    """The prior plus a step."""
    return v + step


def exponentiated(v: Tensor, step: Tensor) -> Tensor:
    """Entries between -1 and 1, moved by exponentiated gradients.

    ``p = (v + 1) / 2`` becomes ``p exp(h) / (p exp(h) + (1 - p) exp(-h))``, which on the scale of
    atanh is an addition.
    """
    grown = torch.exp((2.0 * step).clamp(-60.0, 60.0))
    p = (v + 1.0) / 2.0
    # In float32 an entry at 1 would stay there for ever.
    return (2.0 * p * grown / (p * grown + (1.0 - p)) - 1.0).clamp_(-SURE, SURE)


LEARNING: Mapping[Norm, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {Linf: exponentiated, L2: additive}
)
"""How a prior learns. The steepest step knows signs in linf, and lengths in l2."""


class Prior(NamedTuple):
    """What was learnt, rows first.

    Attributes
    ----------
    v : Tensor
        The prior.
    usual, weight : Tensor
        The mean square of the differences lately, and what its weights add up to, float64.
    """

    v: Tensor
    usual: Tensor
    weight: Tensor


@register("bandits")
@dataclass(frozen=True)
class Bandits(Attack):
    """Learn a coarse gradient on the way: two queries for it, then one step along it.

    A prior v on a coarse grid is compared in two directions, ``v + e`` and ``v - e`` with e random:
    the difference of the losses there tells how much of e to learn. The image moves along v
    (Ilyas, Engstrom and Madry, Prior convictions: black-box adversarial attacks with bandits and
    priors, 2019). That neighbouring pixels and successive gradients are alike is what it gains by.

    As published a difference is learnt in proportion to its size, and the rate must fit the
    victim's loss. Here a difference counts in units of the usual one.

    Parameters
    ----------
    steps : int
        Steps, each of three queries: two for the prior, and the point itself.
    tile : int, optional
        Entries a side of the coarse grid, at most those of the image: by default
        ``3 sqrt(side)``, which is 17 for 32 and 52 for 299.
    probe : float
        How far from the point losses are compared, Euclidean, in widths of the box. Where the
        victim has a grid it is at least half a step in every entry.
    explore : float
        The length of e in lengths that the prior usually has.
    learn : float
        How much is learnt from a difference of the usual size.
    rate : float
        The length of a step, in shares of the budget.
    loss : callable
        What is raised.

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
        siege.offer(x, Told(self.loss))

    def begin(self, siege: Siege) -> Prior:
        """Nothing learnt."""
        shape = coarse(tuple(siege.ball.center.shape[1:]), self.tile)
        none = torch.zeros_like(siege.ball.radius)
        return Prior(siege.ball.center.new_zeros(len(siege), *shape), none, none)

    def learnt(self, ball: Ball, prior: Prior, e: Tensor, difference: Tensor) -> Prior:
        """The prior after another difference along e."""
        usual = FORGET * prior.usual + (1 - FORGET) * difference**2
        weight = FORGET * prior.weight + (1 - FORGET)
        told = difference / (usual / weight).sqrt().clamp_min(1e-300)
        step = e * ball.scaled(self.learn * told)
        return Prior(LEARNING[ball.norm](prior.v, step), usual, weight)

    def compare(self, siege: Siege, x: Tensor, v: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Ask about the points and beside them: the directions e, and what they made of the loss.

        Float64, zero where it was not paid for.
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
            told = siege.logits(images, rows=rows, loss=Told(self.loss)).loss.double()
            difference = told[:, 1] - told[:, 2]
            parts.append(torch.where(torch.isfinite(difference), difference, 0.0))
        return e, torch.cat(parts)

    def length(self, ball: Ball) -> float:
        """How long probes are, in the units of the box.

        With a grid half a step an entry at least: of shorter ones rounding leaves little.
        """
        low, high = ball.box
        return max(self.probe * (high - low), 0.5 * (ball.grid or 0.0) * math.sqrt(ball.size))


def enlarged(ball: Ball, v: Tensor) -> Tensor:
    """A prior as large as the images: every entry repeated."""
    size = tuple(ball.center.shape[2:])
    return v if tuple(v.shape[2:]) == size else functional.interpolate(v, size, mode="nearest")

"""The evolutionary attack: one parent, one child, and how far each entry of the image may go."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from besiege.attacks.attack import Attack
from besiege.attacks.boundary import shortest
from besiege.attacks.smallest import endless
from besiege.attacks.starts import (
    NARROW,
    adversarial,
    begin,
    find_start,
    halvings,
    roughly,
    start_cost,
)
from besiege.core.attack_registry import register
from besiege.core.ball import Ball, distances
from besiege.core.dice import Dice
from besiege.core.fields import number, whole_number
from besiege.core.oracle import Access
from besiege.core.rowwise import pick
from besiege.core.siege import Siege
from besiege.core.threat import L2

PATH, SPREAD = 0.01, 0.001
"""How fast the path follows the last successful child, and the variances the path."""

GOAL = 0.2
"""The share of children that should be adversarial."""

MOST = 0.9
"""The longest step towards the clean image, in shares of the distance; its shortest is that of
which a float32 image shows nothing."""

LEAST = 1e-8

ACTIVE = 20
"""One of so many coordinates takes part in a child."""

SIDE = 45
"""Published: the side of the images on which children are drawn, where images are larger."""

PRESETS: Mapping[str, str] = MappingProxyType(
    {
        "authors": "evolutionary(sigma=0.01, window=30, bisected=False)",
        "realsafe": "evolutionary(steps=20000, sigma=0.03, shrink=1, window=30, bisected=False)",
    }
)
"""Published settings: Dong et al. 2019 (on 45 x 45 of 112 x 112 pixels), and RealSafe 2020 at full
size."""


class State(NamedTuple):
    """Where a search is; everything with the rows first.

    Attributes
    ----------
    x, far : Tensor
        The nearest adversarial images, and their distances.
    path, spread : Tensor
        The evolution path, and the variance of every coordinate.
    mu : Tensor
        Which share of the way to the source a child goes.
    wins : Tensor
        Children kept since mu was last adapted.
    """

    x: Tensor
    path: Tensor
    spread: Tensor
    far: Tensor
    mu: Tensor
    wins: Tensor

    def after(self, good: Tensor, new: Tensor, away: Tensor, z: Tensor) -> State:
        """The state after children, drawn as `z`, of which the good take their parents' place."""
        path = (1.0 - PATH) * self.path + math.sqrt(PATH * (2.0 - PATH)) * z
        path = pick(good, path, self.path)
        return State(
            pick(good, new, self.x),
            path,
            pick(good, (1.0 - SPREAD) * self.spread + SPREAD * path**2, self.spread),
            torch.where(good, away, self.far),
            self.mu,
            self.wins + good,
        )


@register("evolutionary")
@dataclass(frozen=True)
class Evolutionary(Attack):
    r"""One child per query, from a normal law with a variance for every coordinate.

    With the clean image x0 and a parent x at distance D of it, a child is
    :math:`x + \mu (x_0 - x) + \sigma D z / |z|`, brought to the distance :math:`(1 - \mu) D`. z is
    drawn with the variances C on a twentieth of the coordinates, chosen the likelier the larger
    their variances. A child that is adversarial is the next parent, and C learns where it went:
    :math:`p = 0.99 p + \sqrt{0.0199} z`, :math:`C = 0.999 C + 0.001 p^2`. The step :math:`\mu`
    grows by :math:`e^{0.8}` at most where more than a fifth of the last children were adversarial,
    and shrinks where fewer were (Dong et al., Efficient decision-based black-box adversarial
    attacks on face recognition, 2019).

    Published, :math:`\sigma` stays what it is, so that :math:`\mu` falls to nothing near the
    optimum, and :math:`\mu` is adapted every 30 queries. Here :math:`\sigma` is
    :math:`\sqrt{2 \mu}`, which is best on a flat boundary (see `Boundary`), :math:`\mu` is adapted
    every 5 queries, and the start is brought to the boundary.

    Parameters
    ----------
    steps : int
        Children, one query each.
    mu : float
        The first step towards the clean image, in shares of the distance.
    sigma : float, optional
        Length of the random step, in shares of the distance.
    shrink : int, optional
        How many times smaller, in height and in width, the images are on which z is drawn; it is
        brought to full size by bilinear interpolation. By default so many that at most 45 x 45 are
        left: at 227 x 227 the distance after 500 queries is a quarter of that at full size.
    window : int
        Queries after which mu is adapted.
    bisected : bool
        Whether the start is first brought to the boundary.

    Examples
    --------
    >>> str(Evolutionary(steps=1000, shrink=2))
    'evolutionary(steps=1000, shrink=2)'
    """

    steps: int = whole_number(20000)
    mu: float = number(0.01, above=0, below=1, what="a share")
    sigma: float | None = number(None, above=0)
    shrink: int | None = whole_number(None)
    window: int = whole_number(5)
    bisected: bool = True

    access = Access.DECISION
    norms = frozenset({L2})
    minimal = True
    source: ClassVar[str] = "Dong et al., Efficient decision-based black-box attacks, 2019"

    def run(self, siege: Siege) -> None:
        siege = endless(siege)
        x = begin(siege, roughly) if self.bisected else siege.settle(find_start(siege)[0])
        small = self.small(tuple(x.shape[1:]))
        path = x.new_zeros(len(x), math.prod(small))
        spread = torch.ones_like(path)
        far = siege.ball.distance(x)
        # Steps that a grid rounds away teach nothing.
        mu = (0.5 * shortest(siege.ball, far)).clamp(self.mu, MOST)
        at = State(x, path, spread, far, mu, torch.zeros_like(far))
        for step in range(self.steps):
            if not len(siege):
                return
            ball = siege.ball
            z = mutation(siege.dice.of("mutation"), at.spread, step)
            move = _enlarged(z.view(-1, *small), at.x)
            sigma = self._sigma(ball, at.mu, at.far)
            new = ball.received(child(ball, at.x, move, at.mu, sigma))
            away = ball.distance(new)
            good = adversarial(siege, siege.labels(new)) & (away < at.far)
            at = at.after(good, new, away, z)
            if (step + 1) % self.window == 0:
                mu = (at.mu * torch.exp(at.wins / self.window - GOAL)).clamp(LEAST, MOST)
                at = at._replace(mu=mu, wins=torch.zeros_like(at.wins))
            at = siege.settle(at)

    def small(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape on which children are drawn."""
        channels, *sides = shape
        shrink = self.shrink or math.ceil(math.sqrt(math.prod(sides)) / SIDE)
        return channels, *(-(-side // shrink) for side in sides)

    def cost(self, shape: tuple[int, ...], classes: int) -> int:
        return start_cost(halvings(1 / NARROW) if self.bisected else 0) + self.steps

    def _sigma(self, ball: Ball, mu: Tensor, far: Tensor) -> Tensor:
        if self.sigma is not None:
            return torch.full_like(mu, self.sigma)
        return torch.maximum(torch.sqrt(2.0 * mu), shortest(ball, far))


def mutation(dice: Dice, spread: Tensor, step: int) -> Tensor:
    """Normals of the variances `spread`, ``[rows, entries]``, on a few entries of each row.

    An entry's chance is in proportion to its variance. Laid end to end, the variances are cut into
    as many equal parts as entries are wanted, and in each part one point is drawn; an entry that
    two points fall on is moved once.
    """
    entries = spread.shape[1]
    many = max(1, entries // ACTIVE)
    ends = spread.double().cumsum(1)
    points = dice.of("which").uniform((many,), step).double()
    points += torch.arange(many, device=points.device)
    points *= ends[:, -1:] / many
    chosen = torch.searchsorted(ends, points, right=True).clamp_max_(entries - 1)
    drawn = dice.normal((many,), step).to(spread).mul_(spread.gather(1, chosen).sqrt_())
    drawn[:, 1:].masked_fill_(chosen[:, 1:] == chosen[:, :-1], 0.0)
    return torch.zeros_like(spread).scatter_add_(1, chosen, drawn)


def child(ball: Ball, x: Tensor, move: Tensor, mu: Tensor, sigma: Tensor) -> Tensor:
    """A share mu of the way to the centre, and sigma distances along `move`, cut to the box."""
    away = x - ball.center
    n = distances(away, L2)
    move = move * ball.scaled(sigma * n / distances(move, L2).clamp_min(1e-30))
    new = away * ball.scaled(1.0 - mu) + move
    new = new * ball.scaled((1.0 - mu) * n / distances(new, L2).clamp_min(1e-30))
    return (ball.center + new).clamp_(*ball.box)


def _enlarged(z: Tensor, x: Tensor) -> Tensor:
    if z.shape == x.shape:
        return z
    return functional.interpolate(z, x.shape[2:], mode="bilinear", align_corners=False)

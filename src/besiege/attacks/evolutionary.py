"""The evolutionary attack: a (1+1) evolution strategy with a variance for every coordinate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.boundary import shortest
from besiege.attacks.estimates import resized
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
from besiege.core.fields import number, whole_number, yes_or_no
from besiege.core.oracle import Access
from besiege.core.rowwise import pick
from besiege.core.siege import Siege
from besiege.core.threat import L2

PATH, SPREAD = 0.01, 0.001
"""Learning rates of the evolution path and of the variances."""

GOAL = 0.2
"""Target success rate of children."""

MOST = 0.9
"""Longest step towards the clean image, relative to the distance. LEAST is the shortest: float32
images do not show smaller ones."""

LEAST = 1e-8

ACTIVE = 20
"""One of so many coordinates takes part in a mutation."""

SIDE = 45
"""Published: side of the images on which mutations of larger images are drawn."""


class State(NamedTuple):
    """The state of the search, rows first.

    Attributes
    ----------
    x, far : Tensor
        The nearest adversarial images, and their distances.
    path, spread : Tensor
        The evolution path, and the variance of every coordinate.
    mu : Tensor
        Step towards the clean image, as a fraction of the distance.
    wins : Tensor
        Successful children since mu was last adapted.
    """

    x: Tensor
    path: Tensor
    spread: Tensor
    far: Tensor
    mu: Tensor
    wins: Tensor

    def after(self, good: Tensor, new: Tensor, away: Tensor, z: Tensor) -> State:
        """The state after children with mutations `z`; good ones replace their parents."""
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
    r"""One child per query, from a normal distribution with a variance for every coordinate.

    With the clean image x0 and a parent x at distance D from it, a child is
    :math:`x + \mu (x_0 - x) + \sigma D z / |z|`, rescaled to the distance :math:`(1 - \mu) D`. z is
    drawn with variances C on a twentieth of the coordinates, chosen with probabilities in
    proportion to C. An adversarial child is the next parent, and C adapts to it:
    :math:`p = 0.99 p + \sqrt{0.0199} z`, :math:`C = 0.999 C + 0.001 p^2`. The step :math:`\mu`
    grows by at most :math:`e^{0.8}` if more than a fifth of the last children were adversarial, and
    shrinks if fewer were (Dong et al., Efficient decision-based black-box adversarial attacks on
    face recognition, 2019).

    In the paper :math:`\sigma` is constant, so that :math:`\mu` falls to zero near the optimum, and
    :math:`\mu` adapts every 30 queries. Here :math:`\sigma` is :math:`\sqrt{2 \mu}`, which is best
    on a flat boundary (see `Boundary`), :math:`\mu` adapts every 5 queries, and the start is
    bisected to the boundary.

    Parameters
    ----------
    steps : int
        Children, one query each.
    mu : float
        First step towards the clean image, as a fraction of the distance.
    sigma : float, optional
        Length of the random step, as a fraction of the distance.
    shrink : int, optional
        Factor by which height and width are reduced to draw z, which is then enlarged by bilinear
        interpolation. By default such that at most 45 x 45 pixels are left: at 227 x 227 the
        distance after 500 queries is a quarter of that at full resolution.
    window : int
        Queries after which mu adapts.
    bisected : bool
        Whether the start is first bisected to the boundary.
    side : int, optional
        Height and width at which z is drawn, where images are larger, instead of a factor `shrink`.
    stratified : bool
        Whether the coordinates of a mutation are drawn evenly over the variances; if not, they are
        drawn one after the other, each at most once.

    Examples
    --------
    >>> str(Evolutionary(steps=1000, shrink=2))
    'evolutionary(steps=1000, shrink=2)'
    """

    steps: int = whole_number(20000)
    mu: float = number(0.01, above=0, below=1, what="a fraction")
    sigma: float | None = number(None, above=0)
    shrink: int | None = whole_number(None)
    window: int = whole_number(5)
    bisected: bool = True
    side: int | None = whole_number(None, added=True)
    stratified: bool = yes_or_no(True, added=True)

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
        # Steps that a grid rounds away would never succeed.
        mu = (0.5 * shortest(siege.ball, far)).clamp(self.mu, MOST)
        at = State(x, path, spread, far, mu, torch.zeros_like(far))
        for step in range(self.steps):
            if not len(siege):
                return
            ball = siege.ball
            dice = siege.dice.of("mutation")
            z = (mutation if self.stratified else one_by_one)(dice, at.spread, step)
            move = resized(z.view(-1, *small), tuple(x.shape[2:]))
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
        """The shape on which mutations are drawn."""
        channels, *sides = shape
        if self.side is not None:
            return channels, *(min(side, self.side) for side in sides)
        shrink = self.shrink or math.ceil(math.sqrt(math.prod(sides)) / SIDE)
        return channels, *(-(-side // shrink) for side in sides)

    def cost(self, shape: tuple[int, ...], classes: int) -> int:
        return start_cost(halvings(1 / NARROW) if self.bisected else 0) + self.steps

    def _sigma(self, ball: Ball, mu: Tensor, far: Tensor) -> Tensor:
        if self.sigma is not None:
            return torch.full_like(mu, self.sigma)
        return torch.maximum(torch.sqrt(2.0 * mu), shortest(ball, far))


def mutation(dice: Dice, spread: Tensor, step: int) -> Tensor:
    """Normal draws of variances `spread`, ``[rows, coordinates]``, on a few per row.

    A coordinate's probability is in proportion to its variance, by stratified sampling: the
    cumulative variances are cut into equal parts, and one point is drawn in each. A coordinate
    drawn twice is used once.
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


def one_by_one(dice: Dice, spread: Tensor, step: int) -> Tensor:
    """As `mutation`, with coordinates drawn one after the other, without replacement.

    The k largest of ``log(variance)`` plus Gumbel noise are such a draw.
    """
    entries = spread.shape[1]
    many = max(1, entries // ACTIVE)
    chance = dice.of("which").uniform((entries,), step).double() + 2.0**-25
    chosen = (spread.double().log() - (-chance.log()).log()).topk(many, dim=1).indices
    drawn = dice.normal((many,), step).to(spread).mul_(spread.gather(1, chosen).sqrt_())
    return torch.zeros_like(spread).scatter_(1, chosen, drawn)


def child(ball: Ball, x: Tensor, move: Tensor, mu: Tensor, sigma: Tensor) -> Tensor:
    """A step mu towards the centre plus sigma distances along `move`, clipped to the box."""
    away = x - ball.center
    n = distances(away, L2)
    move = move * ball.scaled(sigma * n / distances(move, L2).clamp_min(1e-30))
    new = away * ball.scaled(1.0 - mu) + move
    new = new * ball.scaled((1.0 - mu) * n / distances(new, L2).clamp_min(1e-30))
    return (ball.center + new).clamp_(*ball.box)

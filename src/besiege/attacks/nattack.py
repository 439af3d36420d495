"""NATTACK: a distribution of changes whose mean climbs, with scores alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from besiege.attacks.attack import Attack
from besiege.attacks.estimates import Told, coarse, portions
from besiege.attacks.losses import margin
from besiege.attacks.planes import inner
from besiege.attacks.weighting import Tanh
from besiege.core.answer import Loss
from besiege.core.attack_registry import register
from besiege.core.ball import Ball
from besiege.core.fields import a_loss, number, whole_number
from besiege.core.oracle import Access
from besiege.core.siege import Siege
from besiege.core.threat import L2, Linf

FIRST = 0.001
"""The spread of the first mean."""

PRESETS: Mapping[str, str] = MappingProxyType(
    {
        "nattack-2019": "nattack(steps=500, population=300, rate=0.02, tanh=True)",
        "nattack-realsafe": "nattack(steps=200, population=100, rate=0.02, tanh=True)",
    }
)
"""Published settings: Li et al. 2019, RealSafe 2020. Theirs ask about the mean alone whether it is
a success; here every member is looked at."""


@register("nattack")
@dataclass(frozen=True)
class NAttack(Attack):
    """Climb the expected loss of a normal distribution of changes, by its mean.

    Members ``z_i = mu + sigma n_i`` become images inside the ball; their losses, brought to mean
    zero and deviation one in every row, are the advantages A of ``mu += rate / (n sigma) sum(A_i
    n_i)`` (Li et al., NATTACK: learning the distributions of adversarial examples, 2019). At the
    usual sigma most members lie on the surface of the ball, so that it is nearly a search over
    signs, which small noise and masked gradients do not disturb. Published populations are larger
    and rates smaller: on ten images of CIFAR-10 a third of their queries was saved.

    Parameters
    ----------
    steps : int
        Steps, each of ``population + 1`` queries: the members and the mean itself.
    population : int
        Members per step.
    sigma : float
        The spread of the members, in half widths of the box.
    rate : float
        How far the mean moves, in half widths of the box.
    side : int
        Members are drawn on a grid of at most this many entries a side and enlarged. Coarser ones
        suited a robust victim of CIFAR-10 better, and a natural one worse.
    tanh : bool
        As published: members are added in front of a tanh, so that they never leave the box, and
        pixels that are black or white hardly move. By default they are added to the image.
    loss : callable
        What is raised.

    Examples
    --------
    >>> str(NAttack(population=300))
    'nattack(population=300)'
    """

    steps: int = whole_number(390)
    population: int = whole_number(50, 2)
    sigma: float = number(0.1, above=0)
    rate: float = number(0.05, above=0)
    side: int = whole_number(32)
    tanh: bool = False
    loss: Loss = a_loss(margin)

    access = Access.SCORE
    norms = frozenset({Linf, L2})
    source: ClassVar[str] = "Li et al., NATTACK: learning distributions, 2019"

    def cost(self, shape: tuple[int, ...], classes: int) -> int:
        return self.steps * (1 + self.population) + 1

    def run(self, siege: Siege) -> None:
        shape = coarse(tuple(siege.ball.center.shape[1:]), self.side)
        mu = siege.dice.of("mean").normal(shape).to(siege.ball.center).mul_(FIRST)
        for step in range(self.steps):
            lead = self.ask(siege, mu, step)
            mu, lead = siege.settle(mu, lead)
            if not len(siege):
                return
            mu = mu + lead * (self.rate / (self.population * self.sigma))
        siege.offer(self.images(siege.ball, mu[:, None])[:, 0], Told(self.loss))

    def ask(self, siege: Siege, mu: Tensor, step: int) -> Tensor:
        """Ask about the mean and about members around it: ``sum(A_i n_i)`` of every row."""
        dice, shape = siege.dice.of("members", step), tuple(mu.shape[1:])
        lead = torch.zeros_like(mu)
        # All means at once: with them the ball learns its bounds, which its parts then know.
        middle = self.images(siege.ball, mu[:, None])
        for rows in siege.blocks(1 + self.population):
            ball, at = siege.ball.at(rows), mu[rows][:, None]
            told: list[Tensor] = []
            drawn: list[Tensor] = []
            for some in portions(ball, self.population):
                counter = some.to(mu.device).expand(len(rows), -1)
                n = dice.at(rows).normal(shape, counter).to(mu.dtype)
                images = self.images(ball, at + self.sigma * n)
                images = images if told else torch.cat((middle[rows], images), 1)
                loss = siege.logits(images, rows=rows, loss=Told(self.loss)).loss
                told.append(loss if told else loss[:, 1:])
                drawn.append(n)
            n, a = torch.cat(drawn, 1), advantages(torch.cat(told, 1))
            lead[rows] = n.mul_(a.to(n.dtype).view(*a.shape, *[1] * len(shape))).sum(1)
        return lead

    def images(self, ball: Ball, z: Tensor) -> Tensor:
        """The images of members ``[rows, k, ...]``, inside the ball."""
        low, high = ball.box
        size = tuple(ball.center.shape[1:])
        if tuple(z.shape[2:]) != size:
            flat = functional.interpolate(
                z.flatten(0, 1), size[1:], mode="bilinear", align_corners=False
            )
            z = flat.view(*z.shape[:2], *size)
        if self.tanh:
            space = Tanh()
            return ball.confine(space.image(ball, space.of(ball, ball.center)[:, None] + z))
        return ball.confine(ball.center[:, None] + z * ((high - low) / 2))


def advantages(loss: Tensor) -> Tensor:
    """Losses ``[rows, k]`` at mean zero and deviation one in every row, float64.

    Losses that are not known have none; where all are the same, nobody has.
    """
    known = torch.isfinite(loss)
    many = inner(known, known).clamp_min(1.0)
    loss = torch.where(known, loss, torch.zeros_like(loss)).double()
    mean = inner(loss, torch.ones_like(loss)) / many
    off = torch.where(known, loss - mean[:, None], torch.zeros_like(loss))
    deviation = (inner(off, off) / many).sqrt()
    # Not plus a constant: that would matter to logits of its size.
    return off / deviation.clamp_min(math.ulp(0.0) * 2**60)[:, None]

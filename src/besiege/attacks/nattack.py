"""NATTACK: black-box search over the mean of a distribution of perturbations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.estimates import ScoreLoss, coarse, portions, resized
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
"""Standard deviation of the first mean."""


@register("nattack")
@dataclass(frozen=True)
class NAttack(Attack):
    """Maximize the expected loss of a normal distribution of perturbations by its mean.

    Members ``z_i = mu + sigma n_i`` are mapped to images inside the ball. Their losses,
    standardized in every row, are the advantages A in ``mu += rate / (n sigma) sum(A_i n_i)`` (Li
    et al., NATTACK: learning the distributions of adversarial examples, 2019). At the usual sigma
    most members lie on the surface of the ball: it is nearly a search over signs, which is robust
    to small noise and to masked gradients. Published populations are larger and rates smaller; on
    ten images of CIFAR-10 the defaults saved a third of the queries.

    Parameters
    ----------
    steps : int
        Steps of ``population + 1`` queries: the members and the mean itself.
    population : int
        Members per step.
    sigma : float
        Standard deviation of the members, in half box widths.
    rate : float
        Learning rate of the mean, in half box widths.
    side : int
        Side of the grid on which members are drawn and from which they are enlarged, at most that
        of the image. Coarser grids suited a robust CIFAR-10 victim better, a natural one worse.
    tanh : bool
        As published: members are added before a tanh, so that they never leave the box, and black
        or white pixels hardly move. By default they are added to the image.
    loss : callable
        Loss to maximize.

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
        siege.offer(self.images(siege.ball, mu[:, None])[:, 0], ScoreLoss(self.loss))

    def ask(self, siege: Siege, mu: Tensor, step: int) -> Tensor:
        """Query the mean and members around it: ``sum(A_i n_i)`` of every row."""
        dice, shape = siege.dice.of("members", step), tuple(mu.shape[1:])
        lead = torch.zeros_like(mu)
        # All means at once: the ball computes its bounds with them, and its parts reuse these.
        middle = self.images(siege.ball, mu[:, None])
        for rows in siege.blocks(1 + self.population):
            ball, at = siege.ball.at(rows), mu[rows][:, None]
            losses: list[Tensor] = []
            drawn: list[Tensor] = []
            for some in portions(ball, self.population):
                counter = some.to(mu.device).expand(len(rows), -1)
                n = dice.at(rows).normal(shape, counter).to(mu.dtype)
                images = self.images(ball, at + self.sigma * n)
                images = images if losses else torch.cat((middle[rows], images), 1)
                loss = siege.logits(images, rows=rows, loss=ScoreLoss(self.loss)).loss
                losses.append(loss if losses else loss[:, 1:])
                drawn.append(n)
            n, a = torch.cat(drawn, 1), advantages(torch.cat(losses, 1))
            lead[rows] = n.mul_(a.to(n.dtype).view(*a.shape, *[1] * len(shape))).sum(1)
        return lead

    def images(self, ball: Ball, z: Tensor) -> Tensor:
        """The images of members ``[rows, k, ...]``, inside the ball."""
        z = resized(z, tuple(ball.center.shape[2:]))
        if self.tanh:
            space = Tanh()
            return ball.confine(space.image(ball, space.of(ball, ball.center)[:, None] + z))
        return ball.confine(ball.center[:, None] + z * (ball.width / 2))


def advantages(loss: Tensor) -> Tensor:
    """Losses ``[rows, k]`` standardized in every row, float64.

    The advantage is zero for unknown losses, and where all losses of a row are equal.
    """
    known = torch.isfinite(loss)
    many = inner(known, known).clamp_min(1.0)
    loss = torch.where(known, loss, torch.zeros_like(loss)).double()
    mean = inner(loss, torch.ones_like(loss)) / many
    off = torch.where(known, loss - mean[:, None], torch.zeros_like(loss))
    deviation = (inner(off, off) / many).sqrt()
    # Not plus a constant, which would matter for logits of its size.
    return off / deviation.clamp_min(math.ulp(0.0) * 2**60)[:, None]

"""Noise: points drawn at random, and points on the way to images of other classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.starts import neighbours
from besiege.core.answer import Answer
from besiege.core.attack_registry import register
from besiege.core.ball import Ball
from besiege.core.dice import Dice
from besiege.core.fields import whole_number
from besiege.core.oracle import Access
from besiege.core.siege import Siege

SHARES = (1.0, 0.75, 0.5)
"""Where the points on the way to another image are, as fractions of the way within the budget."""

RARE = 1e-3
"""Assumed probability of a success: few points break an image."""


@register("noise")
@dataclass(frozen=True)
class Noise(Attack):
    """Try points of the ball that do not depend on the model, until one succeeds.

    First, where images of known classes are given, the point of the ball nearest to an image of
    another class, or of the target class, and points on the way to it: in l2 these are on the
    straight line to that image. Then points at random, in turn: one uniform in the ball, and one
    extreme point, which goes as far as the budget allows in a random direction (random signs in
    linf, a point of the surface in l2, one or a few pixel values across the box in l1 and l0).

    Repeated noise and blends with other images are old and weak attacks. A model on which they
    break images that gradient-based attacks left has gradients that mislead (Carlini et al., On
    evaluating adversarial robustness, 2019).

    Parameters
    ----------
    steps : int
        Random points, one query each.
    images : int
        Nearest images of other classes; three queries each.

    Examples
    --------
    >>> str(Noise(steps=50))
    'noise(steps=50)'
    """

    steps: int = whole_number(100)
    images: int = whole_number(3, least=0)

    access = Access.DECISION
    source: ClassVar[str] = "Carlini et al., On evaluating adversarial robustness, 2019"

    def run(self, siege: Siege) -> None:
        for rows, other in neighbours(siege, 0, self.images):
            ball = siege.ball.at(rows)
            way = ball.project(other) - ball.center
            points = [ball.project(ball.center + share * way) for share in SHARES]
            siege.labels(torch.stack(points, 1), rows)
        siege.settle()
        step = 0
        while len(siege) and step < self.steps:
            end = min(self.steps, step + siege.ahead(RARE))
            points = [_drawn(siege.ball, siege.dice, n) for n in range(step, end)]
            siege.scan(torch.stack(points, 1), _none, each=True)
            siege.settle()
            step = end

    def cost(self, shape: tuple[int, ...], classes: int) -> int:
        return self.images * len(SHARES) + self.steps


def _none(answer: Answer) -> Tensor:
    """No point ends a scan but a success."""
    return torch.zeros_like(answer.hit)


def _drawn(ball: Ball, dice: Dice, step: int) -> Tensor:
    """A random point of each ball: uniform inside in even steps, an extreme one in odd steps."""
    if step % 2 == 0:
        return ball.sample(dice.of("inside"), step)
    toward = dice.of("extreme").normal(tuple(ball.center.shape[1:]), step).to(ball.center)
    return ball.project(ball.center + ball.steepest(toward, ball.center, ball.radius))

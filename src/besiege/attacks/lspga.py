"""LS-PGA: ascent in the space of relaxed thermometer codes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from besiege.attacks.ascent import last_query
from besiege.attacks.attack import Attack
from besiege.attacks.losses import cross_entropy
from besiege.core.answer import Loss
from besiege.core.attack_registry import register
from besiege.core.ball import Ball
from besiege.core.dice import Dice
from besiege.core.fields import a_loss, number, one_of, whole_number
from besiege.core.siege import Siege
from besiege.core.thermometer import level, middle
from besiege.core.threat import Linf

_SHARPEST = 20.0
"""Logarithm of the largest inverse temperature: codes are hard long before."""


@register("lspga")
@dataclass(frozen=True)
class LSPGA(Attack):
    """Choose the thermometer code of every pixel value by ascent over relaxed codes.

    Every pixel value has logits u over the levels that its ball and box contain. The victim is sent
    ``cumsum(softmax(u / T))``, a code between codes, and ``u += rate sign(gradient)``, while the
    temperature T falls. At the end the level with the largest logit is chosen, and the image gets a
    value inside ball and box that has it. Only that image is examined.

    It attacks a model whose first layer is `thermometer`. The paper starts at normal random logits:
    with its rate of 0.01 the chosen levels are then mostly those of the start, so that it does
    little more than noise. Here logits start at zero, the level of the clean pixel value wins ties,
    and the rate is 0.1, which needs fewer steps. The published form for CIFAR-10 is
    ``lspga(steps=7, rate=0.01, start='normal')``.

    Parameters
    ----------
    steps : int
        Steps of one forward and one backward pass.
    rate : float
        Step of the logits.
    cooling : float
        Factor by which the inverse temperature grows in every step, from 1.
    start : {"zero", "normal"}
        The logits at first: all equal, or standard normal as published.
    loss : callable
        The loss that is raised.

    References
    ----------
    Buckman et al., Thermometer encoding: one hot way to resist adversarial examples, 2018.
    """

    steps: int = whole_number(40)
    rate: float = number(0.1, above=0)
    cooling: float = number(1.2, least=1)
    start: Literal["zero", "normal"] = one_of("zero", "normal")
    loss: Loss = a_loss(cross_entropy)

    norms = frozenset({Linf})
    sends_codes = True
    source: ClassVar[str] = "Buckman et al., Thermometer encoding, 2018"

    def run(self, siege: Siege) -> None:
        levels = siege.levels
        u = _allowed(siege.ball, levels)
        if self.start == "normal":
            u = u + siege.dice.of("logits").normal(tuple(u.shape[1:])).to(u)
        for step in range(self.steps):
            poor = last_query(siege)
            if len(poor):
                siege.logits(_image(siege.ball.at(poor), u[poor]), poor, self.loss)
            relaxed = partial(_relaxed, sharpness=self._sharpness(step))
            answer = siege.gradient(u, self.loss, relaxed, elsewhere=True)
            u, answer = siege.settle(u, answer)
            if not len(siege):
                return
            u = u + self.rate * torch.sign(answer.gradient)
        siege.offer(_image(siege.ball, u), self.loss)

    def _sharpness(self, step: int) -> float:
        """The inverse temperature: ``cooling ** step``, which would overflow in long runs."""
        return math.exp(min(step * math.log(self.cooling), _SHARPEST))


def _allowed(ball: Ball, levels: int) -> Tensor:
    """Logits ``[rows, channels, levels, height, width]``: 0, and -inf where no point has the level.

    An infinite logit has the probability 0 and the gradient 0: it stays as it is.
    """
    low, high = (ball.project(torch.full_like(ball.center, end)) for end in ball.box)
    first, last = (level(end, ball.box, levels).unsqueeze(2) for end in (low, high))
    steps = torch.arange(levels, device=ball.center.device).view(-1, 1, 1)
    inside = (steps >= first) & (steps <= last)
    return torch.zeros_like(inside, dtype=ball.center.dtype).masked_fill_(~inside, -torch.inf)


def _relaxed(u: Tensor, dice: Dice, slot: Tensor, sharpness: float) -> Tensor:
    """The codes between codes that are sent."""
    return (u * sharpness).softmax(2).cumsum(2).clamp(0.0, 1.0)  # sums may round above 1


def _image(ball: Ball, u: Tensor) -> Tensor:
    """Images inside ball and box whose levels have the largest logits."""
    levels = u.shape[2]
    clean = level(ball.center, ball.box, levels)
    steps = torch.arange(levels, device=u.device).view(-1, 1, 1)
    far = (steps - clean.unsqueeze(2)).abs()
    best = u == u.amax(2, keepdim=True)
    chosen = torch.where(best, far, levels).argmin(2)
    # The middle of a level, or the end of the ball that lies between it and the clean value: its
    # level is the same, since it is one of those that the ball contains.
    value = torch.tensor(middle(levels, ball.box), device=u.device, dtype=u.dtype)[chosen]
    return ball.project(torch.where(chosen == clean, ball.center, value))

"""BLB: box-constrained L-BFGS on distance and loss, the weight between them searched row by row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.lbfgs import Descent
from besiege.attacks.losses import CrossEntropy, Margin, margin
from besiege.attacks.planes import inner, steering
from besiege.attacks.smallest import apparent, endless
from besiege.attacks.weighting import Weights
from besiege.core.answer import Answer, Loss
from besiege.core.attack_registry import register
from besiege.core.ball import Ball
from besiege.core.fields import a_loss, number, whole_number
from besiege.core.rowwise import rowwise
from besiege.core.siege import Siege
from besiege.core.threat import L2

SOFT = 0.03
"""How wide the bend of the hinge is, in clean leads: L-BFGS has no use for a corner."""

BEYOND = 0.01
"""How far beyond the boundary the hinge ends, in clean leads."""

PRESETS: Mapping[str, str] = MappingProxyType(
    {
        "blb-deepsec": "blb(steps=1000, loss=cross_entropy, first=0.01, relative=False)",
    }
)
"""The five weights of a thousand steps of DEEPSEC (Ling et al. 2019), searched row by row."""


@register("blb")
@dataclass(frozen=True)
class BLB(Attack):
    """Box-constrained L-BFGS: minimise ``|r|^2 + c h(x + r)`` inside the box, c row by row.

    h is a smooth hinge of the loss, which ends just beyond the boundary. A weight of one is what
    takes a linear victim to its boundary; the search begins a little above it. Every round starts
    at the clean image (Szegedy et al., Intriguing properties of neural networks, 2014).

    There h is the cross-entropy of a target; `loss=cross_entropy` is that, and without a target
    minus the cross-entropy of the label. Without a target it does much worse: its gradient is
    next to nothing at the clean image and grows on the way, so that a weight is either too small
    to leave or sends the row far beyond the boundary, and on a ResNet-20 the median change is
    twice as large.

    Parameters
    ----------
    weights : int
        Rounds, each with another weight for every row.
    steps : int
        Gradients of a round, those of the line search included.
    loss : loss
        What is raised.
    first : float
        The first weight.
    relative : bool
        Whether weights are in units of the linear victim's, ``2 loss / |gradient|^2`` at the
        clean image, which makes the attack independent of the scale of the logits.
    memory : int
        How many steps L-BFGS remembers.

    Examples
    --------
    >>> from besiege.attacks import parse
    >>> str(parse("blb(weights=9)"))
    'blb(weights=9)'
    """

    weights: int = whole_number(5)
    steps: int = whole_number(20)
    loss: Loss = a_loss(margin)
    first: float = number(3.0, above=0)
    relative: bool = True
    memory: int = whole_number(10)

    minimal = True
    norms = frozenset({L2})
    source = "Szegedy et al., Intriguing properties of neural networks (L-BFGS), 2014"

    def run(self, siege: Siege) -> None:
        siege = endless(siege)
        loss = steering(siege) if isinstance(self.loss, Margin) else self.loss
        answer = siege.settle(siege.gradient(siege.ball.center, loss))
        ground = self._surveyed(siege.ball, answer)
        weights = Weights.of(len(siege), self.first, answer.loss.device)
        for _ in range(self.weights):
            if len(siege):
                ground, weights = self._round(siege, loss, ground, weights)

    def _round(
        self, siege: Siege, loss: Loss, ground: _Ground, weights: Weights
    ) -> tuple[_Ground, Weights]:
        """Minimise with these weights; the next ones, of the rows still there."""
        ball = siege.ball
        descent = Descent(
            ball.center,
            ball.box,
            curvature=torch.full_like(weights.c, 2.0),  # that of the distance
            memory=self.memory,
        )
        # The clean image was asked about once and for all.
        clean = torch.zeros_like(ball.center), ground.lead, ground.gradient
        descent.tell(*self._weighed(*clean, ground, weights.c))
        beyond = torch.zeros_like(descent.done)
        for _ in range(self.steps):
            rows = (~descent.done).nonzero()[:, 0]
            if not len(rows):
                break
            x = descent.trial[rows]
            part = siege.gradient(x, loss, rows=rows)
            change = x - siege.ball.center[rows]
            found = self._weighed(
                change, part.loss, part.gradient, ground.at(rows), weights.c[rows]
            )
            descent.tell(*(_spread(t, rows, len(descent)) for t in found))
            over = siege.record.reached(siege.rows[rows], part.labels)
            beyond = torch.where(descent.moved, _spread(over, rows, len(descent)), beyond)
            left = siege.settle(torch.arange(len(descent), device=rows.device))
            if len(left) < len(descent):
                descent, ground, beyond = descent.at(left), ground.at(left), beyond[left]
                weights = Weights(*(t[left] for t in weights))
        return ground, weights.after(beyond)

    def _weighed(
        self, change: Tensor, lead: Tensor, slope: Tensor, ground: _Ground, c: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What is minimised and its gradient, from the loss and its own."""
        lead, weight = lead.double(), c * ground.unit
        if isinstance(self.loss, CrossEntropy):
            height, fall = -lead, torch.ones_like(lead)
        else:
            width = SOFT * ground.height.clamp_min(1e-300)
            short = (BEYOND / SOFT) - lead / width
            # Not torch's softplus and sigmoid, which round the last rows in another way.
            small = torch.exp(-short.abs())
            height = width * (short.clamp_min(0.0) + torch.log1p(small))
            fall = torch.where(short > 0, 1.0, small) / (1.0 + small)
        push = rowwise((weight * fall).to(change.dtype), change)
        return inner(change, change) + weight * height, 2 * change - slope * push

    def _surveyed(self, ball: Ball, answer: Answer) -> _Ground:
        lead, gradient = answer.loss, answer.gradient
        height = apparent(ball, lead.double().abs(), gradient)
        unit = torch.full_like(height, ball.width**2)
        if self.relative:
            size = inner(gradient, gradient)
            unit = torch.where(size > 0, 2 * height / size, unit)
        return _Ground(lead, gradient, height, unit)


class _Ground(NamedTuple):
    """What is known of every clean image."""

    lead: Tensor
    gradient: Tensor
    height: Tensor
    """How far the boundary is, in the loss."""
    unit: Tensor
    """Of its weights."""

    def at(self, rows: Tensor) -> _Ground:
        return _Ground(*(part[rows] for part in self))


def _spread(part: Tensor, rows: Tensor, many: int) -> Tensor:
    """What some rows were told, in a tensor of all rows."""
    if len(rows) == many:
        return part
    return part.new_zeros(many, *part.shape[1:]).index_copy(0, rows, part)

"""BLB: box-constrained L-BFGS on distance plus weighted loss, with a weight search for each row."""

from __future__ import annotations

from dataclasses import dataclass
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
"""Width of the smooth bend of the hinge, in clean margins: L-BFGS needs a smooth objective."""

BEYOND = 0.01
"""How far beyond the boundary the hinge ends, in clean margins."""


@register("blb")
@dataclass(frozen=True)
class BLB(Attack):
    """Box-constrained L-BFGS: minimize ``|r|^2 + c h(x + r)`` inside the box, c row by row.

    h is a smooth hinge of the loss that ends just beyond the boundary. In relative units c = 1
    takes a linear victim exactly to its boundary; the search begins a little above it. Every round
    starts at the clean image (Szegedy et al., Intriguing properties of neural networks, 2014).

    In the paper h is the cross-entropy of a target. ``loss=cross_entropy`` is that; untargeted it
    is minus the cross-entropy of the label, which works much worse: its gradient is tiny at the
    clean image and grows along the path, so that a weight is either too small to move the row or
    sends it far beyond the boundary. On a ResNet-20 the median perturbation is twice as large.

    Parameters
    ----------
    weights : int
        Rounds, each with another weight for every row.
    steps : int
        Gradients per round, line search included.
    loss : callable
        Loss to maximize.
    first : float
        First weight.
    relative : bool
        Whether weights are relative to that of the linear victim, ``2 loss / |gradient|^2`` at the
        clean image, which makes the attack invariant to the scale of the logits.
    memory : int
        Steps kept by L-BFGS.

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
        """Minimize with these weights; returns the next ones, for the rows still there."""
        ball = siege.ball
        descent = Descent(
            ball.center,
            ball.box,
            curvature=torch.full_like(weights.c, 2.0),  # second derivative of |r|^2
            memory=self.memory,
        )
        # The answer for the clean image is known from `run`.
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
            value = self._weighed(
                change, part.loss, part.gradient, ground.at(rows), weights.c[rows]
            )
            descent.tell(*(_spread(t, rows, len(descent)) for t in value))
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
        """The objective and its gradient, from the loss and its gradient."""
        lead, weight = lead.double(), c * ground.unit
        if isinstance(self.loss, CrossEntropy):
            height, fall = -lead, torch.ones_like(lead)
        else:
            width = SOFT * ground.height.clamp_min(1e-300)
            short = (BEYOND / SOFT) - lead / width
            # Not torch's softplus and sigmoid: their rounding depends on the position in the batch.
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
    """Measurements at every clean image."""

    lead: Tensor
    gradient: Tensor
    height: Tensor
    """Distance to the boundary in units of the loss."""
    unit: Tensor
    """Unit of weights."""

    def at(self, rows: Tensor) -> _Ground:
        return _Ground(*(part[rows] for part in self))


def _spread(part: Tensor, rows: Tensor, many: int) -> Tensor:
    """Values of some rows in a tensor of all rows, zero elsewhere."""
    if len(rows) == many:
        return part
    return part.new_zeros(many, *part.shape[1:]).index_copy(0, rows, part)

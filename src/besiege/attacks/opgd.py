"""Orthogonal and selective PGD: one ascent against a classifier and its detector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.losses import margin
from besiege.attacks.pieces import Cosine, Schedule, Start, Uniform
from besiege.core.answer import Aim, Loss
from besiege.core.attack_registry import register
from besiege.core.fields import of_kind, one_of, whole_number
from besiege.core.rowwise import pick, rowwise
from besiege.core.siege import Siege, not_examined
from besiege.core.solvers import never_alone
from besiege.core.threat import L1, L2, Linf

_PARALLEL = 1e-5
"""Part of a gradient below which what is left of it by a projection is rounding."""


@register("opgd")
@dataclass(frozen=True)
class OPGD(Attack):
    """PGD that follows the classifier's gradient or the detector's, never against the other.

    While the classifier is right, a step raises its margin loss. Once it is wrong, a step lowers
    the detector's score. 'orthogonal' first removes from the gradient of one what lies along the
    gradient of the other, so that a step for one does not change the other to first order.
    'selective' does not, and takes half the passes. Its losses see all columns: the rejection is
    not folded into the label's.

    The paper ascends the cross-entropy towards a target with equal steps: here the loss is the
    margin, whose sign says whether the classifier is wrong, and steps fall from the whole budget.

    On a victim that rejects nothing there is one gradient only, and it is ``pgd(loss=margin)``.

    Parameters
    ----------
    steps : int
        Steps from every start.
    projection : {"orthogonal", "selective"}
        What is done with the two gradients.
    start, schedule
        As for `pgd`.
    restarts : int
        Runs from different random starts.

    References
    ----------
    Bryniarski et al., Evading adversarial example detection defenses with orthogonal projected
    gradient descent, 2022.
    """

    steps: int = whole_number(100)
    projection: Literal["orthogonal", "selective"] = one_of("orthogonal", "selective")
    start: Start = of_kind(Uniform(), Start)
    schedule: Schedule = of_kind(Cosine(1.0), Schedule)
    restarts: int = whole_number(1)

    norms = frozenset({Linf, L2, L1})
    source: ClassVar[str] = "Bryniarski et al., Evading detection by orthogonal PGD, 2022"

    def run(self, siege: Siege) -> None:
        for restart in range(self.restarts):
            rows = siege.view(dice=siege.dice.of("restart", restart))
            if len(rows):
                self._ascend(rows)

    def _ascend(self, siege: Siege) -> None:
        both = siege.rejects and self.projection == "orthogonal"
        loss: Loss = margin
        if siege.rejects:
            loss = Fooling(siege.classes) if both else Selected(siege.classes)
        x = self.start(siege)
        pacing = self.schedule.init(x, siege.ball)
        for step in range(self.steps):
            answer = siege.gradient(x, loss)
            x, answer, pacing = siege.settle(x, answer, pacing)
            if not len(siege):
                return
            slope = answer.gradient
            if both:
                # The same images: only the gradient of the other loss is new.
                other = siege.gradient(x, Hiding(siege.classes), not_examined).gradient
                slope = joint(slope, other, answer.loss > 0)
            size, x, answer, pacing = self.schedule.next(
                step, self.steps, siege.ball, x, answer, pacing
            )
            x = siege.ball.confine(x + siege.ball.stride(slope, x, size))
        siege.offer(x, loss)


@dataclass(frozen=True)
class Fooling:
    """The margin of the classifier: above 0 exactly where it is wrong, or at the target."""

    classes: int
    unfolded: ClassVar[bool] = True

    def __call__(self, logits: Tensor, aim: Aim) -> Tensor:
        return margin(logits[:, : self.classes], aim)


@dataclass(frozen=True)
class Hiding:
    """The top logit minus the column of rejection: above 0 exactly where the image is accepted."""

    classes: int
    unfolded: ClassVar[bool] = True

    def __call__(self, logits: Tensor, aim: Aim) -> Tensor:
        return logits[:, : self.classes].amax(1) - logits[:, self.classes]


@dataclass(frozen=True)
class Selected:
    """`Fooling` where the classifier is right, and `Hiding` where it is wrong."""

    classes: int
    unfolded: ClassVar[bool] = True

    def __call__(self, logits: Tensor, aim: Aim) -> Tensor:
        lead = Fooling(self.classes)(logits, aim)
        return torch.where(lead > 0, Hiding(self.classes)(logits, aim), lead)


def joint(fooling: Tensor, hiding: Tensor, wrong: Tensor) -> Tensor:
    """The gradient to follow: that of one loss without its part along the gradient of the other.

    Parameters
    ----------
    fooling, hiding : Tensor
        Gradients of the two losses, ``[rows, ...]``.
    wrong : Tensor
        Boolean ``[rows]``: whether the classifier is wrong, so that hiding comes first.
    """
    return pick(wrong, orthogonal(hiding, fooling), orthogonal(fooling, hiding))


def orthogonal(of: Tensor, to: Tensor) -> Tensor:
    """Gradients without their part along others: ``g - (g . h) / (h . h) h``, row by row.

    Where both are parallel nothing is left but rounding, whose signs would be a random step: such
    a gradient stays whole.

    Examples
    --------
    >>> import torch
    >>> orthogonal(torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 2.0]]))
    tensor([[3., 0.]])
    """
    # In float64: products of small gradients are zero in float32.
    g, h = (never_alone(part.flatten(1).double()) for part in (of, to))
    along, size = (g * h).sum(1), h.square().sum(1)
    left = g - (along / size.clamp_min(1e-300))[:, None] * h
    parallel = left.square().sum(1) <= _PARALLEL**2 * g.square().sum(1)
    rows = len(of)
    return torch.where(rowwise(parallel[:rows], of), of, left[:rows].view_as(of).to(of.dtype))

"""NES against victims that return only the scores of their top classes, or only a label.

Their loop, in which the ball closes in, is in `besiege.attacks.closing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from besiege.attacks.closing import LIKELY, HiddenClasses, Reported
from besiege.attacks.estimates import (
    Estimate,
    ScoreLoss,
    estimate,
    gaussian,
    portions,
    sent,
    visible,
)
from besiege.attacks.losses import margin
from besiege.attacks.starts import adversarial
from besiege.core.answer import Loss
from besiege.core.attack_registry import register
from besiege.core.fields import a_loss, number, whole_number
from besiege.core.oracle import Access
from besiege.core.rowwise import rowwise
from besiege.core.siege import Siege


@register("nes_partial")
@dataclass(frozen=True)
class NESPartial(HiddenClasses):
    """NES against a victim that returns its top classes only, from an image of the target class.

    Steps raise the target's score while the ball around the clean image shrinks from the start's
    distance to the budget; steps that lose the target from the answer are undone (Ilyas et al.,
    Black-box adversarial attacks with limited queries and information, 2018). Probes whose answer
    lacks the target are dropped. The loss is the margin, which is exact whenever two classes are
    returned, and the score itself (in the paper log p) when only the target is.

    Unlike the published method: a row whose target is returned at the clean image starts there; a
    start is first bisected towards the clean image; the ball shrinks at every step by a fraction of
    its radius, and steps are longer in proportion to it; if the target is lost, first the shrinkage
    is halved and then the step, and the step size falls while the ball cannot shrink. In the paper
    the ball waits until the target is likely (`waits`).

    Parameters
    ----------
    steps : int
        Steps of ``2 pairs`` queries and one to six more.
    pairs : int
        Directions per step.
    sigma : float
        Size of the probes, in box widths.
    rate : float
        First step size, as a fraction of the budget.
    momentum : float
        Weight of earlier gradients.
    waits : bool
        True closes in as published: the ball waits until the target is likely, starts with the
        whole box and shrinks by fractions of it.
    loss : callable
        Loss to maximize where more than the target is returned.

    Examples
    --------
    >>> str(NESPartial(pairs=50))
    'nes_partial(pairs=50)'
    """

    loss: Loss = a_loss(margin)

    careful, likely = 2, -LIKELY
    access = Access.SCORE
    source: ClassVar[str] = "Ilyas et al., Black-box attacks with limited information, 2018"

    @property
    def each(self) -> int:
        return 2

    def clean(self, siege: Siege) -> Tensor:
        if siege.aim.clean is None:
            return super().clean(siege)
        return ScoreLoss(self.loss)(siege.aim.clean, siege.aim)

    def look(self, siege: Siege, x: Tensor, rows: Tensor) -> Tensor:
        return siege.logits(x, rows=rows, loss=self.score).loss

    @property
    def score(self) -> Loss:
        """The loss, or what stands for it where classes are hidden."""
        return Reported(self.loss) if self.waits else ScoreLoss(self.loss)

    def slope(self, siege: Siege, x: Tensor, loss: Tensor, step: int) -> Estimate:
        return estimate(
            siege, x, self.score, gaussian, self.pairs, self.sigma, step, paired=True, known=loss
        )


@register("nes_labels")
@dataclass(frozen=True)
class NESLabels(HiddenClasses):
    """NES against a victim that returns labels only: a point's score is the rate of target labels.

    ``S(x) = mean(label(x + mu n_i) = t)`` with n_i uniform between -1 and 1 per pixel value
    replaces the score and is measured at both ends of every direction, with the same n_i (Ilyas et
    al., Black-box adversarial attacks with limited queries and information, 2018).

    Parameters
    ----------
    steps : int
        Steps of ``2 pairs around`` queries and one to six more.
    pairs : int
        Directions per step.
    sigma : float
        Size of the probes, in box widths.
    rate : float
        First step size, as a fraction of the budget.
    momentum : float
        Weight of earlier gradients.
    waits : bool
        True closes in as published: the ball waits until the target is likely, starts with the
        whole box and shrinks by fractions of it.
    around : int
        Images whose labels make one score; 50 in the paper. For the same number of queries more
        directions help more than more images.
    mu : float
        Their largest distance from the point per pixel value, in box widths.

    Examples
    --------
    >>> str(NESLabels(around=50))
    'nes_labels(around=50)'
    """

    steps: int = whole_number(450)
    pairs: int = whole_number(20)
    sigma: float = number(0.01, above=0)
    around: int = whole_number(1)
    mu: float = number(0.01, above=0)

    careful, likely = 4, 1 - LIKELY
    access = Access.DECISION
    source: ClassVar[str] = "Ilyas et al., Black-box attacks with limited information, 2018"

    @property
    def each(self) -> int:
        return 2 * self.around

    def look(self, siege: Siege, x: Tensor, rows: Tensor) -> Tensor:
        good = adversarial(siege, siege.labels(x, rows), rows)
        return torch.where(good, 0.0, -torch.inf)

    def slope(self, siege: Siege, x: Tensor, loss: Tensor, step: int) -> Estimate:
        gradient, value = torch.zeros_like(x), torch.zeros_like(loss)
        sigma = visible(siege.ball, self.sigma, gaussian, paired=True)
        for rows in siege.blocks(self.each * self.pairs):
            for some in portions(siege.ball, self.pairs, self.each):
                along, ends = self._ends(siege, rows, x[rows], some.to(x.device), sigma, step)
                slope = (ends[:, :, 0] - ends[:, :, 1]) / (2.0 * sigma * self.pairs)
                weight = rowwise(slope.to(x.dtype), along)
                gradient[rows] += along.mul_(weight).sum(1)
                value[rows] += ends.flatten(1).sum(1).to(value.dtype) / (2.0 * self.pairs)
        return Estimate(gradient, value, value)

    def _ends(
        self, siege: Siege, rows: Tensor, x: Tensor, some: Tensor, sigma: float, step: int
    ) -> tuple[Tensor, Tensor]:
        """Directions as really sent, and the scores of both ends of each, ``[rows, k, 2]``."""
        ball, shape, k = siege.ball.at(rows), tuple(x.shape[1:]), len(some)
        dice = siege.dice.of("probes", step).at(rows)
        u = gaussian(dice, shape, some.expand(len(rows), -1)).to(x.dtype)
        here = x[:, None]
        ends = torch.stack((sent(ball, here + sigma * u), sent(ball, here - sigma * u)), 2)
        counter = some[:, None] * self.around + torch.arange(self.around, device=x.device)
        drawn = dice.of("around").uniform(shape, counter.flatten().expand(len(rows), -1))
        mu = max(self.mu * ball.width, ball.grid or 0.0)
        drawn = drawn.mul_(2.0 * mu).sub_(mu).to(x.dtype).view(len(rows), k, 1, self.around, *shape)
        images = sent(ball, (ends[:, :, :, None] + drawn).flatten(1, 3))
        good = adversarial(siege, siege.labels(images, rows), rows).view(len(rows), k, 2, -1)
        return (ends[:, :, 0] - ends[:, :, 1]).div_(2.0 * sigma), good.to(x.dtype).mean(3)

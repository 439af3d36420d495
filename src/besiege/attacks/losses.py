"""Losses that attacks maximize: one number per row, for two or more classes.

Every loss takes logits ``[rows, classes]`` and the aim of each row. Untargeted losses grow as the
row leaves its label, targeted ones as it approaches its target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from besiege.attacks.attack import piece
from besiege.core.answer import Aim
from besiege.core.errors import AttackError
from besiege.core.fields import check_fields, number

_TINY = 1e-12
_FAR = 60.0
"""Largest lead at which float32 probabilities are still nonzero."""


def logit_of(logits: Tensor, classes: Tensor) -> Tensor:
    """Each row's logit of one class, ``[rows]``."""
    return logits.gather(1, classes[:, None])[:, 0]


def _best_other(logits: Tensor, classes: Tensor) -> Tensor:
    # -inf in the own column: multiplying by (1 - onehot) would let a zero win over negatives.
    return logits.scatter(1, classes[:, None], -torch.inf).amax(1)


def _lead(logits: Tensor) -> Tensor:
    top = logits.topk(2, dim=1).values
    return top[:, 0] - top[:, 1]


class _StableCrossEntropy(torch.autograd.Function):
    """Cross-entropy whose gradient at the label is minus the sum of the other probabilities.

    That sum equals ``1 - p_y`` without the cancellation, and it rounds a row the same way in every
    batch.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, classes: Tensor) -> Tensor:
        own = classes[:, None]
        direction = functional.softmax(logits, dim=1).scatter_(1, own, 0.0)
        rest = direction.sum(1, keepdim=True)
        ctx.save_for_backward(direction.scatter_(1, own, -rest))
        usual = functional.cross_entropy(logits, classes, reduction="none")
        small = -torch.log1p(-rest[:, 0].clamp_max(0.5))
        return torch.where(rest[:, 0] < 0.5, small, usual)

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None]:
        (direction,) = ctx.saved_tensors
        return direction * gradient[0][:, None], None


@piece("cross_entropy")
@dataclass(frozen=True)
class CrossEntropy:
    """``logsumexp(z) - z_y``, or ``z_t - logsumexp(z)`` towards a target.

    The gradient keeps the label's term when the label's probability rounds to one. The usual form
    loses it, which costs FGSM 7 points at 2/255 on a natural ResNet-20 (docs/decisions/0003). The
    gradient still vanishes when the label leads by more than about 100; the siege records such
    rows.

    Parameters
    ----------
    stable : bool
        False computes the usual form, for comparison with other implementations.
    divide : float
        Divisor of the logits. If 10, 100 or 1000 breaks a model and 1 does not, the scale of its
        logits masks gradients (W23).
    """

    stable: bool = True
    divide: float = number(1.0, above=0)

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, logits: Tensor, aim: Aim) -> Tensor:
        if self.divide != 1.0:
            logits = logits / self.divide
        classes = aim.labels if aim.targets is None else aim.targets
        if self.stable:
            loss: Tensor = _StableCrossEntropy.apply(logits, classes)  # type: ignore[no-untyped-call]
        else:
            loss = functional.cross_entropy(logits, classes, reduction="none")
        return loss if aim.targets is None else -loss


@piece("margin")
@dataclass(frozen=True)
class Margin:
    """``max_{i != y} z_i - z_y``, or ``z_t - max_{i != t} z_i`` towards a target.

    The direction of its gradient is independent of the scale of the logits
    (Carlini and Wagner 2017).
    """

    def __call__(self, logits: Tensor, aim: Aim) -> Tensor:
        if aim.targets is None:
            return _best_other(logits, aim.labels) - logit_of(logits, aim.labels)
        return logit_of(logits, aim.targets) - _best_other(logits, aim.targets)


@piece("logit")
@dataclass(frozen=True)
class Logit:
    """Only the logit: ``-z_y``, or ``z_t`` towards a target.

    It does not see the other classes: a step may raise the label's rivals or lower them.
    """

    def __call__(self, logits: Tensor, aim: Aim) -> Tensor:
        if aim.targets is None:
            return -logit_of(logits, aim.labels)
        return logit_of(logits, aim.targets)


@piece("soft_margin")
@dataclass(frozen=True)
class SoftMargin:
    """The margin with a soft maximum: ``T log sum_{i != y} exp(z_i / T) - z_y``.

    The temperature T is a fraction of the range of the clean image's logits, so that their scale
    does not matter. At T = 1 the gradient is parallel to that of cross-entropy: runner-up classes
    contribute too, and a row does not commit to the class that is nearest in logits only.
    """

    share: float = number(0.05, above=0)

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, logits: Tensor, aim: Aim) -> Tensor:
        known = logits.detach() if aim.clean is None else aim.clean
        known = torch.where(torch.isinf(known), known.amax(1, keepdim=True), known)
        heat = (self.share * (known.amax(1) - known.amin(1))).clamp_min(_TINY).to(logits)
        own = aim.labels if aim.targets is None else aim.targets
        rivals = (logits / heat[:, None]).scatter(1, own[:, None], -torch.inf)
        lead = heat * torch.logsumexp(rivals, 1) - logit_of(logits, own)
        return lead if aim.targets is None else -lead


@piece("shifting")
@dataclass(frozen=True)
class Shifting:
    """One loss for a fraction of the steps, then another."""

    first: Any = SoftMargin()
    last: Any = Margin()
    share: float = 0.5

    def __call__(self, logits: Tensor, aim: Aim) -> Tensor:
        value: Tensor = self.last(logits, aim)
        return value

    def at(self, step: int, steps: int) -> Any:
        """The loss of a step."""
        return self.first if step < self.share * steps else self.last


@piece("dlr")
@dataclass(frozen=True)
class DLR:
    """Difference of logits ratio, invariant to shift and scale (Croce and Hein 2020).

    Untargeted ``(max_{i != y} z_i - z_y) / (z_1 - z_3)``; towards a target
    ``(z_t - z_y) / (z_1 - (z_3 + z_4) / 2)``, with z sorted. With three classes the targeted
    divisor is ``z_1 - (z_2 + z_3) / 2``. With two classes no such ratio has a gradient: the margin
    is divided by its size at the clean image instead.
    """

    def __call__(self, logits: Tensor, aim: Aim) -> Tensor:
        own = logit_of(logits, aim.labels)
        rise = (
            _best_other(logits, aim.labels)
            if aim.targets is None
            else logit_of(logits, aim.targets)
        ) - own
        classes = logits.shape[1]
        clean = logits.detach() if aim.clean is None else aim.clean
        frozen = rise / _lead(clean).clamp_min(_TINY)
        if classes == 2:
            return frozen
        top = logits.topk(min(4, classes), dim=1).values
        if aim.targets is None:
            low = top[:, 2]
        elif classes == 3:
            low = (top[:, 1] + top[:, 2]) / 2
        else:
            low = (top[:, 2] + top[:, 3]) / 2
        spread = top[:, 0] - low
        # Relative: a fixed 1e-12 would matter for logits of that size.
        floor = torch.finfo(logits.dtype).eps * top.detach().abs().amax(1)
        ratio = rise / torch.maximum(spread, floor.clamp_min(torch.finfo(logits.dtype).tiny))
        # Without enough finite logits there is no spread: treat as two classes.
        return torch.where(torch.isfinite(spread), ratio, frozen)


@piece("probability_margin")
@dataclass(frozen=True)
class ProbabilityMargin:
    """``max_{i != y} p_i - p_y``, or ``p_t - max_{i != t} p_i`` towards a target (Xie et al. 2024).

    Where the top class leads by more than `reach` on the clean image, logits are divided such that
    the lead is `reach` and no probability rounds to one. The divisor stays the same for the whole
    attack, so that losses remain comparable.
    """

    reach: float = 10.0

    def __call__(self, logits: Tensor, aim: Aim) -> Tensor:
        now = _lead(logits.detach())
        usual = now if aim.clean is None else _lead(aim.clean)
        temper = torch.maximum(usual / self.reach, now / _FAR).clamp_min(1.0)
        return Margin()(functional.softmax(logits / temper[:, None], dim=1), aim)


@piece("weighed")
@dataclass(frozen=True)
class Weighed:
    """The margin of the classifier, minus the weighed excess of the rejection.

    ``min(m, most) - weight * max(r, 0)``: m is the margin, and r how far the column of rejection is
    above the top logit. For other losses the label's logit is the larger of itself and the
    rejection, which is a weight of 1 once the classifier is wrong: where the score is steep, the
    search then returns to the label. On a model that rejects nothing it is ``min(m, most)``.

    Parameters
    ----------
    weight : float
        Weight of the rejection.
    most : float
        Margin from which only the rejection counts.
    """

    weight: float = number(0.1, above=0)
    most: float = number(1.0, above=0)
    unfolded: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, logits: Tensor, aim: Aim) -> Tensor:
        classes = logits.shape[1] if aim.clean is None else aim.clean.shape[1]
        lead = Margin()(logits[:, :classes], aim).clamp_max(self.most)
        if logits.shape[1] == classes:
            return lead
        above = logits[:, classes] - logits[:, :classes].amax(1)
        return lead - self.weight * above.clamp_min(0)


@piece("divergence")
@dataclass(frozen=True)
class Divergence:
    """``KL(p_clean || p)``: how far the answer is from that of the clean image, whatever the label.

    TRADES trains against it (Zhang et al. 2019). Its gradient is zero at the clean image, so an
    attack must start elsewhere: ``pgd(loss=divergence, start=beside(0.001))``.
    """

    def __call__(self, logits: Tensor, aim: Aim) -> Tensor:
        if aim.clean is None or aim.targets is not None:
            lacks = "the scores of the clean image" if aim.clean is None else "an untargeted threat"
            raise AttackError(f"the loss 'divergence' needs {lacks}")
        clean = aim.clean.to(logits).log_softmax(1)
        apart = functional.kl_div(logits.log_softmax(1), clean, reduction="none", log_target=True)
        return apart.sum(1)


cross_entropy = CrossEntropy()
margin = Margin()
dlr = DLR()
probability_margin = ProbabilityMargin()

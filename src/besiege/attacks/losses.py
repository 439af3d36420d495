"""What an attack raises: one number per row, defined for two classes and up.

Every loss takes logits ``[rows, classes]`` and the aim of each row. Without targets it grows as
the row leaves its label; with targets as the row nears its target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from besiege.attacks.attack import piece
from besiege.core.answer import Aim
from besiege.core.fields import check_fields, number

_TINY = 1e-12
_FAR = 60.0
"""A lead whose probabilities float32 still tells from zero."""


def _of(logits: Tensor, classes: Tensor) -> Tensor:
    return logits.gather(1, classes[:, None])[:, 0]


def _best_other(logits: Tensor, classes: Tensor) -> Tensor:
    # -inf on the own column: multiplying by (1 - onehot) would let a zero win over negatives.
    return logits.scatter(1, classes[:, None], -torch.inf).amax(1)


def _lead(logits: Tensor) -> Tensor:
    top = logits.topk(2, dim=1).values
    return top[:, 0] - top[:, 1]


class _StableCrossEntropy(torch.autograd.Function):
    """Cross-entropy whose gradient at the label is minus the sum of the other probabilities.

    That sum is ``1 - p_y`` without the cancellation. Softmax and sums round a row the same whatever
    its neighbours.
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

    Its gradient keeps the term of the label when the label's probability rounds to one: the usual
    form loses it, and with it 7 points of FGSM at 2/255 on a natural ResNet-20
    (docs/decisions/0003). It still vanishes when the label leads by more than about 100; the
    siege notes such rows.

    Parameters
    ----------
    stable : bool
        False computes the usual form, for comparison with other implementations.
    divide : float
        What logits are divided by first. A model that falls to 10, 100 or 1000 and not to 1
        hides behind the scale of its logits (W23).
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

    The direction of its gradient does not depend on the scale of the logits
    (Carlini and Wagner 2017).
    """

    def __call__(self, logits: Tensor, aim: Aim) -> Tensor:
        if aim.targets is None:
            return _best_other(logits, aim.labels) - _of(logits, aim.labels)
        return _of(logits, aim.targets) - _best_other(logits, aim.targets)


@piece("soft_margin")
@dataclass(frozen=True)
class SoftMargin:
    """The margin with a soft maximum: ``T log sum_{i != y} exp(z_i / T) - z_y``.

    The temperature T is a share of the range of the clean image's logits, so that their scale does
    not matter. At T = 1 its gradient has the direction of cross-entropy's: rivals that are nearly
    as good pull too, and a row does not set out for the class that is nearest in logits alone.
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
        lead = heat * torch.logsumexp(rivals, 1) - _of(logits, own)
        return lead if aim.targets is None else -lead


@piece("shifting")
@dataclass(frozen=True)
class Shifting:
    """One loss for a share of the steps, then another."""

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
    """The difference of logits ratio, unchanged by shift and scale (Croce and Hein 2020).

    Untargeted ``(max_{i != y} z_i - z_y) / (z_1 - z_3)``; towards a target
    ``(z_t - z_y) / (z_1 - (z_3 + z_4) / 2)``, indices by rank. With three classes the targeted
    divisor is ``z_1 - (z_2 + z_3) / 2``; with two no such ratio has a gradient, and the margin is
    divided by its size at the clean image instead.
    """

    def __call__(self, logits: Tensor, aim: Aim) -> Tensor:
        own = _of(logits, aim.labels)
        rise = (
            _best_other(logits, aim.labels) if aim.targets is None else _of(logits, aim.targets)
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
        # Relative, not absolute: a fixed 1e-12 would matter to logits of that size.
        floor = torch.finfo(logits.dtype).eps * top.detach().abs().amax(1)
        ratio = rise / torch.maximum(spread, floor.clamp_min(torch.finfo(logits.dtype).tiny))
        # Classes ruled out by -inf make no spread: then as with two.
        return torch.where(torch.isfinite(spread), ratio, frozen)


@piece("probability_margin")
@dataclass(frozen=True)
class ProbabilityMargin:
    """``max_{i != y} p_i - p_y``, or ``p_t - max_{i != t} p_i`` towards a target (Xie et al. 2024).

    Where the first class leads the second by more than `reach` on the clean image, the row is
    tempered to that lead, so that no probability rounds to one; by the same factor along the whole
    climb, so that its values can be compared.
    """

    reach: float = 10.0

    def __call__(self, logits: Tensor, aim: Aim) -> Tensor:
        now = _lead(logits.detach())
        usual = now if aim.clean is None else _lead(aim.clean)
        temper = torch.maximum(usual / self.reach, now / _FAR).clamp_min(1.0)
        return Margin()(functional.softmax(logits / temper[:, None], dim=1), aim)


cross_entropy = CrossEntropy()
margin = Margin()
dlr = DLR()
probability_margin = ProbabilityMargin()

"""What a victim does while it answers: whether it computes gradients or changes its images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from besiege.core.dice import Dice
from besiege.core.errors import Finding, VictimError
from besiege.core.oracle import Oracle, full_precision
from besiege.core.samples import Samples
from besiege.core.victim import Victim
from besiege.models.classifier import Classifier

_ASKING = frozenset({torch.autograd.grad, torch.Tensor.backward})
_GRADIENT = torch.Tensor.grad.__get__  # type: ignore[union-attr]  # a descriptor of the class


class GradientUseProbe(TorchFunctionMode):
    """Notes whether gradients are computed or read while it is entered, in this thread alone.

    Nothing of torch is replaced, so that there is nothing to restore, and names that a model
    imported long ago are heard as well.
    """

    def __init__(self) -> None:
        super().__init__()
        self.heard = False

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        answer = function(*args, **(kwargs or {}))
        if function in _ASKING or (function == _GRADIENT and answer is not None):
            self.heard = True
        return answer


def optimising(victim: Victim, samples: Samples, seed: int = 0) -> list[Finding]:
    """Ask a victim about a few images, and say whether it computed gradients to answer.

    One that counts its answers is not asked: what happens behind it cannot be heard here.
    """
    if victim.metered:
        return []
    dice = Dice.throw(seed, samples.ids).of("probe") if victim.stochastic else None
    with GradientUseProbe() as ear:
        Oracle(victim).logits(samples.images, dice)
    if not ear.heard:
        return []
    return [
        Finding(
            "W38",
            "the model computes gradients while it answers: it optimises something at test time.",
            "Attacks through such a loop are weak, and robustness is overstated. Attack the model "
            "without the loop and send it those images, unroll the loop where it is short, and "
            "use attacks without gradients (square).",
        )
    ]


def must_keep_images(victim: Victim, samples: Samples) -> None:
    """Refuse a model that changes its images in place such that it has no gradient, or a wrong one.

    Most that do are no trouble: they get a copy.
    """
    if not isinstance(victim, Classifier) or victim.metered:
        return
    with victim.held(), full_precision(victim.device):
        images = samples.images.to(victim.device)
        changed, noticed = victim.overwrites(images)
        if changed and not noticed:
            raise VictimError(
                "the model changes its images in place where autograd does not see it (x.data, "
                "x.numpy()), so that gradients are wrong: let it work on a copy, x.clone()"
            )
        if changed:
            Oracle(victim).gradient(images, lambda logits, _: logits.amax(1))

"""Probes whether a victim computes gradients, or changes its images, during a forward pass."""

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
    """Records whether this thread computes or reads gradients while the mode is active.

    It replaces nothing in torch, so it also sees functions that a model imported earlier.
    """

    def __init__(self) -> None:
        super().__init__()
        self.used = False

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        answer = function(*args, **(kwargs or {}))
        if function in _ASKING or (function == _GRADIENT and answer is not None):
            self.used = True
        return answer


def optimising(victim: Victim, samples: Samples, seed: int = 0) -> list[Finding]:
    """Report a victim that computes gradients during a forward pass of a few images.

    Metered victims are not queried: they compute elsewhere.
    """
    if victim.metered:
        return []
    dice = Dice.throw(seed, samples.ids).of("probe") if victim.stochastic else None
    with GradientUseProbe() as probe:
        Oracle(victim).logits(samples.images, dice)
    if not probe.used:
        return []
    return [
        Finding(
            "W38",
            "the model computes gradients in its forward pass: it optimises at test time.",
            "Attacks through such a loop are weak, so robustness is overstated. Craft on the model "
            "without the loop and evaluate those images on the model, unroll a short loop, and use "
            "attacks without gradients (square).",
        )
    ]


def must_keep_images(victim: Victim, samples: Samples) -> None:
    """Refuse a model that changes its images in place such that its gradient is missing or wrong.

    Most models that change their images are accepted: they get a copy.
    """
    if not isinstance(victim, Classifier) or victim.metered:
        return
    with victim.held(), full_precision(victim.device):
        images = samples.images.to(victim.device)
        changed, noticed = victim.overwrites(images)
        if changed and not noticed:
            raise VictimError(
                "the model changes its images in place where autograd does not see it (x.data, "
                "x.numpy()), so gradients are wrong: let it work on a copy, x.clone()"
            )
        if changed:
            Oracle(victim).gradient(images, lambda logits, _: logits.amax(1))

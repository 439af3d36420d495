"""Input gradients of one batch, and errors that say why a model has none."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from besiege.core.door import blocked, is_theirs, raised_backwards

Ask = Callable[[Tensor], Tensor]
"""Images to logits."""


def loss_gradient(
    x: Tensor, ask: Ask, loss: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of a per-row loss, the loss, and the logits."""
    with torch.inference_mode(False), torch.enable_grad():
        image = x.detach().requires_grad_(True)
        logits = ask(image)
        value = loss(logits)
        _must_depend(value)
        # The sum, never the mean: a row's gradient must not shrink with the batch.
        gradient = _backward(value.sum(), image)
    return gradient, value.detach(), logits.detach()


def logit_gradients(x: Tensor, ask: Ask, classes: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of chosen logits, ``[rows, c, ...]``, and the logits."""
    with torch.inference_mode(False), torch.enable_grad():
        image = x.detach().requires_grad_(True)
        logits = ask(image)
        _must_depend(logits)
        chosen = logits.gather(1, classes)
        each = image.new_empty(len(image), chosen.shape[1], *image.shape[1:])
        for c in range(chosen.shape[1]):
            each[:, c] = _backward(chosen[:, c].sum(), image, retain=True)
    return each, logits.detach()


def _must_depend(answer: Tensor) -> None:
    if not answer.requires_grad:
        raise blocked()


def _backward(total: Tensor, image: Tensor, retain: bool = False) -> Tensor:
    try:
        return torch.autograd.grad(total, image, retain_graph=retain)[0]
    except BaseException as problem:
        if not is_theirs(problem):
            raise
        raise raised_backwards(problem) from problem

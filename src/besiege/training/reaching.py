"""DeepFool through which gradients pass: how far each image is from the boundary."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from besiege.core.rowwise import rowwise

# By how much a step goes beyond the linear boundary, as in Moosavi-Dezfooli et al. (2016).
_OVERSHOOT = 0.02
_TINY = 1e-12


def relative_reach(
    ask: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    """Lengths of l2 DeepFool perturbations divided by those of the images, and who is right.

    Parameters
    ----------
    ask : callable
        Logits of images; rows do not influence each other.
    x, y : Tensor
        Images and labels.
    steps : int
        Most iterations; rows that have left their class stay where they are.

    Returns
    -------
    reach, right : Tensor
        ``[rows]``: the relative length, differentiable in the network's weights, and whether the
        image itself is classified correctly.
    """
    change = torch.zeros_like(x)
    first: Tensor | None = None
    for _ in range(steps):
        point = x + change
        if not point.requires_grad:
            point.requires_grad_(True)
        logits = ask(point)
        if first is None:
            first = logits.detach().argmax(1)
        inside = logits.detach().argmax(1) == first
        # A graph of the GPU takes all steps: whether a row is inside would have to be reported.
        captured = x.is_cuda and torch.cuda.is_current_stream_capturing()
        if not captured and not bool(inside.any()):
            break
        slopes = torch.stack(
            [torch.autograd.grad(z.sum(), point, create_graph=True)[0] for z in logits.unbind(1)], 1
        )
        own = first[:, None]
        rows = torch.arange(len(x), device=x.device)
        steep = (slopes - slopes[rows, first][:, None]).flatten(2)
        gap = (logits - logits.gather(1, own)).abs()
        # The class itself has no boundary with itself: replaced before the root, whose gradient
        # at zero is infinite.
        square = steep.square().sum(2).scatter(1, own, 1.0).clamp_min(_TINY)
        distance = (gap / square.sqrt()).scatter(1, own, torch.inf)
        nearest = distance.detach().argmin(1)
        share = gap[rows, nearest] / square[rows, nearest]
        move = rowwise(share, x) * steep[rows, nearest].view_as(x)
        change = change + rowwise(inside.to(x.dtype), x) * (1 + _OVERSHOOT) * move
    assert first is not None
    # A row that did not move has no direction: its length is a constant zero.
    moved = change.flatten(1).square().sum(1)
    still = moved <= 0
    length = torch.where(still, torch.zeros_like(moved), moved.clamp_min(_TINY).sqrt())
    return length / x.flatten(1).norm(dim=1).clamp_min(_TINY), first == y

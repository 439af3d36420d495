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
    # Those that have not left their class. A graph of the GPU takes all rows in all steps: which
    # ones have left would have to be reported.
    rows = torch.arange(len(x), device=x.device)
    captured = x.is_cuda and torch.cuda.is_current_stream_capturing()
    for _ in range(steps):
        if first is not None and not captured:
            with torch.no_grad():
                rows = rows[ask((x + change)[rows]).argmax(1) == first[rows]]
        if not len(rows):
            break
        point = (x + change)[rows]
        if not point.requires_grad:
            point.requires_grad_(True)
        logits = ask(point)
        best = logits.detach().argmax(1)
        first = best if first is None else first
        own = first[rows]
        move = _to_the_boundary(point, logits, own)
        change = change.index_add(0, rows, rowwise((best == own).to(x.dtype), move) * move)
    assert first is not None
    # A row that did not move has no direction: its length is a constant zero.
    moved = change.flatten(1).square().sum(1)
    still = moved <= 0
    length = torch.where(still, torch.zeros_like(moved), moved.clamp_min(_TINY).sqrt())
    return length / x.flatten(1).norm(dim=1).clamp_min(_TINY), first == y


def _to_the_boundary(point: Tensor, logits: Tensor, own: Tensor) -> Tensor:
    """The steps to the nearest of the linear boundaries of their classes, and a little beyond."""
    slopes = torch.stack(
        [torch.autograd.grad(z.sum(), point, create_graph=True)[0] for z in logits.unbind(1)], 1
    )
    places, column = torch.arange(len(point), device=point.device), own[:, None]
    steep = (slopes - slopes[places, own][:, None]).flatten(2)
    gap = (logits - logits.gather(1, column)).abs()
    # The class itself has no boundary with itself: replaced before the root, whose gradient
    # at zero is infinite.
    square = steep.square().sum(2).scatter(1, column, 1.0).clamp_min(_TINY)
    distance = (gap / square.sqrt()).scatter(1, column, torch.inf)
    nearest = distance.detach().argmin(1)
    share = gap[places, nearest] / square[places, nearest]
    return (1 + _OVERSHOOT) * rowwise(share, point) * steep[places, nearest].view_as(point)

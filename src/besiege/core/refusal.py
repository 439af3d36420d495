"""How an attacker sees a victim that may reject images.

Such a victim answers one column more than it has classes, the last: larger than all others exactly
when it rejects the image. To an attacker a rejection is as good as the right class. So a siege
*folds* it into the label's column before any loss, plane, success or vote sees the logits, and
every attack then attacks detector and classifier together. The judge never folds.
"""

from __future__ import annotations

import torch
from torch import Tensor


def folded(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits ``[rows, classes]`` whose column of the label is the larger of itself and rejection.

    Parameters
    ----------
    logits : Tensor
        ``[rows, classes + 1]``, the rejection last.
    labels : Tensor
        The true classes. Gradients flow through whichever of the two is larger.

    Examples
    --------
    >>> import torch
    >>> folded(torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 0.0]]), torch.tensor([0, 0]))
    tensor([[3., 2.],
            [1., 2.]])
    """
    classes, own = logits[:, :-1], labels[:, None]
    larger = torch.maximum(classes.gather(1, own), logits[:, -1:])
    return classes.scatter(1, own, larger)


def unfolded(loss: object) -> bool:
    """Whether a loss sees all columns: it says so with an attribute ``unfolded = True``."""
    # A loss may be a plain function, which declares nothing.
    return bool(getattr(loss, "unfolded", False))

"""The victim taken for a linear one: planes read off gradients, and the nearest of them.

At a point the boundary towards a class is taken for a plane: ``f + <w, x' - x> = 0``, with f the
difference of two logits and w its gradient. `planes` reads those of all classes off one answer,
`nearest` and `closest` choose among them; the way to a plane inside the box is the ball's to know.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from besiege.attacks.smallest import across
from besiege.core.answer import Aim, Answer
from besiege.core.ball import Ball, distances
from besiege.core.fill import never_alone
from besiege.core.siege import Siege

ENTRIES = 2**25
"""Entries of gradients held at once; rows beyond that wait for their turn."""


def toward(logits: Tensor, aim: Aim) -> Tensor:
    """``z_t - z_y``: above zero where the target has overtaken the label."""
    assert aim.targets is not None
    return (logits.gather(1, aim.targets[:, None]) - logits.gather(1, aim.labels[:, None]))[:, 0]


def planes(answer: Answer, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Slopes and heights of ``z_k - z_y``, ``[rows, classes, ...]`` and ``[rows, classes]``.

    From an answer with the gradients of all logits, in order; the label's own are zero.
    """
    rows = torch.arange(len(labels), device=labels.device)
    slope, height = answer.gradient, answer.logits
    return slope - slope[rows, labels][:, None], height - height[rows, labels][:, None]


def nearest(ball: Ball, x: Tensor, w: Tensor, f: Tensor, labels: Tensor) -> Tensor:
    """The class whose plane is nearest to the clean image inside the box.

    Not to the point where the planes were read: what counts in the end is the distance from the
    clean image. Planes that miss the box come last, in the order of their distance without one.
    """
    rows, many = f.shape
    w, f = w.flatten(0, 1), f.flatten()
    c = rest(w, f, (x - ball.center).repeat_interleave(many, 0))
    move = ball.plane(ball.center.repeat_interleave(many, 0), w, c)
    missed = (inner(w, move) - c).abs() > 1e-3 * c.abs()
    beyond = across(ball).repeat_interleave(many) + straight(ball, w, c)
    size = torch.where(missed, beyond, distances(move, ball.norm)).view(rows, many)
    return size.scatter(1, labels[:, None], torch.inf).argmin(1)


def closest(ball: Ball, w: Tensor, f: Tensor, labels: Tensor) -> Tensor:
    """The class whose plane is nearest to where the planes were read, whatever the box."""
    size = straight(ball, w.flatten(0, 1), f.double().flatten()).view_as(f)
    return size.scatter(1, labels[:, None], torch.inf).argmin(1)


def straight(ball: Ball, w: Tensor, c: Tensor) -> Tensor:
    """The size of the smallest move d with ``<w, d> = c`` without a box."""
    return c.abs() / ball.dual(w).clamp_min(1e-300)


def rest(w: Tensor, f: Tensor, away: Tensor) -> Tensor:
    """What ``<w, d>`` is for moves d to the plane read `away` from where they start, float64."""
    return inner(w, away) - f


def inner(a: Tensor, b: Tensor) -> Tensor:
    """``<a, b>`` of every row, float64."""
    return never_alone((a * b).flatten(1)).sum(1, dtype=torch.float64)[: len(a)]


def turns(siege: Siege, gradients: int) -> Iterator[Tensor]:
    """Row numbers in as few pieces as memory allows, with so many gradients per row."""
    rows = torch.arange(len(siege), device=siege.rows.device)
    size = max(1, ENTRIES // (gradients * siege.ball.size))
    return iter(torch.split(rows, size))

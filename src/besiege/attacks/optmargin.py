"""OptMargin: Carlini and Wagner's attack on a point and its neighbourhood."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from besiege.attacks.cw import CW
from besiege.attacks.planes import steering
from besiege.attacks.weighting import Seen, short
from besiege.core.attack_registry import register
from besiege.core.fields import number, one_of, whole_number
from besiege.core.rowwise import rowwise
from besiege.core.siege import Siege, not_examined
from besiege.core.threat import L2


@register("optmargin")
@dataclass(frozen=True)
class OptMargin(CW):
    """OptMargin: the smallest perturbation whose whole neighbourhood is misclassified.

    The hinge of `cw` is summed over copies of the point, each moved in one of several random
    orthogonal directions and clipped to the box; the last copy is the point itself. A point
    succeeds if all its copies do (He, Li and Song, Decision boundary analysis of adversarial
    examples, 2018). The directions of a row stay the same during a run.

    Every step queries all copies. Successes nearer than any before are queried once more, to be
    recorded.

    Parameters
    ----------
    rounds, steps, kappa, first, rate, abort, compat, repeat, resume, edge
        As in `cw`.
    copies : int
        Number of copies, the point itself included; at most the number of pixel values plus one.
    size : float
        Root mean square distance of a copy per pixel value, in box widths: usually 8/255 in colour,
        0.3 for MNIST.
    success_on : str
        Whether 'all' copies must succeed or the 'centre', the point itself, suffices.
    measure : str
        What `size` is: the root mean square distance of a copy ('rms'), or the largest in any
        pixel value of any copy ('max').

    Examples
    --------
    >>> from besiege.attacks import parse
    >>> parse("optmargin(copies=5)").success_on
    'all'
    """

    rounds: int = whole_number(4)
    steps: int = whole_number(50)
    copies: int = whole_number(20)
    size: float = number(8 / 255)
    success_on: Literal["all", "centre"] = one_of("all", "centre")
    measure: Literal["rms", "max"] = one_of("rms", "max", added=True)

    norms = frozenset({L2})
    source = "He, Li and Song, Decision boundary analysis of adversarial examples, 2018"

    @property
    def hidden(self) -> bool:
        return True

    def held(self, siege: Siege) -> tuple[Tensor, ...]:
        """The offsets of every row's copies, ``[rows, copies, ...]``; the last is zero."""
        center, entries = siege.ball.center, siege.ball.size
        many = min(self.copies - 1, entries)
        drawn = siege.dice.of("directions").normal((entries, many)).to(center)
        # One by one: the rounding of a batched decomposition could depend on the number of rows.
        span = [torch.linalg.qr(one).Q.T for one in drawn] if many else []
        moves = center.new_zeros(len(center), many + 1, entries)
        for row, directions in enumerate(span):
            unit = (
                math.sqrt(entries) if self.measure == "rms" else 1 / float(directions.abs().max())
            )
            moves[row, :many] = directions * (unit * self.size * siege.ball.width)
        return (moves.view(len(center), many + 1, *center.shape[1:]),)

    def look(self, siege: Siege, x: Tensor, *held: Tensor) -> Seen:
        (moves,) = held
        wanted = x[:, None] + moves
        copies = wanted.clamp(*siege.ball.box)
        answer = siege.gradient(copies, steering(siege, sure=not self.compat), through=not_examined)
        gap = short(siege, answer, self.kappa)
        rows = siege.rows[:, None].expand_as(answer.labels)
        won = siege.record.reached(rows, answer.labels) & (gap <= 0)
        # Clipped pixel values of a copy do not follow the point.
        free = (copies == wanted) & rowwise(gap > 0, copies)
        slope = (answer.gradient * free).sum(1)
        counts = won.all(1) if self.success_on == "all" else won[:, -1]
        return Seen(gap.sum(1), slope, counts)

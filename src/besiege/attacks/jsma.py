"""JSMA: a pair of pixel values at a time, chosen by a saliency map."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from besiege.attacks.attack import Attack
from besiege.attacks.losses import logit_of
from besiege.attacks.planes import turns
from besiege.attacks.smallest import endless
from besiege.core.answer import Aim, Loss
from besiege.core.attack_registry import register
from besiege.core.ball import Ball
from besiege.core.fields import checked, number, one_of, whole_number, yes_or_no
from besiege.core.siege import Siege
from besiege.core.threat import L0

Outputs = Literal["logits", "probabilities"]

BYTES = 2**29
"""Most memory of the map of pairs."""

COPIES = 4
"""Tensors of the map's size alive at once."""


def target_logit(logits: Tensor, aim: Aim) -> Tensor:
    """``z_t``."""
    assert aim.targets is not None
    return logit_of(logits, aim.targets)


def other_logits(logits: Tensor, aim: Aim) -> Tensor:
    """Minus the sum of all logits but the target's."""
    assert aim.targets is not None
    return -logits.scatter(1, aim.targets[:, None], 0.0).sum(1)


def target_probability(logits: Tensor, aim: Aim) -> Tensor:
    """``p_t``."""
    return target_logit(functional.softmax(logits, dim=1), aim)


@register("jsma")
@dataclass(frozen=True)
class JSMA(Attack):
    """Move the two pixel values that raise the target most while they lower the other classes.

    The saliency map of pairs holds the effect of two pixel values on the target (which must rise)
    times that on the sum of all other classes (which must fall); the pair of largest product is
    moved (Papernot et al., The limitations of deep learning in adversarial settings, 2016). The
    attack stops where no pair does both. Untargeted, every class is tried as target, side by side,
    and the smallest perturbation is kept.

    As published it only raises pixel values, or only lowers them, and uses gradients only. By
    default it does both, and weighs gradients by how far a pixel value can still move.
    ``both=False, room=False`` is as published.

    Parameters
    ----------
    theta : float
        Step of a pixel value, as a fraction of the box width; negative is downwards.
    gamma : float
        Fraction of all pixel values that may differ.
    both : bool
        Whether pixel values may move either way.
    room : bool
        Whether gradients are weighed by how far the pixel value can move.
    outputs : str
        Gradients of ``'logits'`` or of ``'probabilities'``. The latter need one backward pass,
        since the other classes sum to one minus the target, but vanish where the victim is sure.
    targets : int
        Classes tried without a target, the likeliest first.
    round_up : bool
        Whether a last pair may exceed `gamma`, as in DEEPSEC.

    Examples
    --------
    >>> from besiege.attacks import parse
    >>> str(parse("jsma(gamma=0.1)"))
    'jsma(gamma=0.1)'
    """

    theta: float = checked(
        1.0, lambda share: 0 < abs(share) <= 1, "but a fraction of the box, -1 to 1, is needed"
    )
    gamma: float = number(0.5, above=0, most=1, what="a fraction of all pixel values")
    both: bool = True
    room: bool = True
    outputs: Outputs = one_of("logits", "probabilities")
    targets: int = whole_number(9)
    round_up: bool = yes_or_no(False, added=True)

    minimal = True
    norms = frozenset({L0})
    source = "Papernot et al., The limitations of deep learning in adversarial settings, 2016"

    def run(self, siege: Siege) -> None:
        siege = endless(siege)
        given = siege.aim.targets
        ranked = siege.ranked()[:, : self.targets] if given is None else given[:, None]
        many = ranked.shape[1]
        for some in turns(siege, 8 * many):
            view = siege.view(some.repeat_interleave(many), aim=ranked[some].flatten())
            if len(view):
                self._ascend(view)

    def _ascend(self, siege: Siege) -> None:
        """Pair after pair; views of one sample end separately, so rows are queried by number."""
        x, most = siege.ball.center, self.gamma * siege.ball.size / 2
        pairs = math.ceil(most - 1e-9) if self.round_up else int(most + 1e-9)
        going = torch.ones_like(siege.rows, dtype=torch.bool)
        rise, fall = _SLOPES[self.outputs]
        for turn in range(pairs + 1):
            rows = going.nonzero()[:, 0]
            if not len(rows):
                return
            if turn == pairs:
                siege.logits(x[rows], rows)
                return
            answer = siege.gradient(x[rows], rise, rows=rows)
            up = torch.zeros_like(x).index_copy(0, rows, answer.gradient)
            labels = torch.full_like(siege.rows, -1).index_copy(0, rows, answer.labels)
            going &= ~siege.record.reached(siege.rows, labels)
            x, going, up = siege.settle(x, going, up)
            going &= self._hopeful(siege, x)
            down, rows = up, going.nonzero()[:, 0]
            if fall is not None and len(rows):
                answer = siege.gradient(x[rows], fall, rows=rows)
                down = torch.zeros_like(x).index_copy(0, rows, answer.gradient)
                x, going, up, down = siege.settle(x, going, up, down)
                rows = going.nonzero()[:, 0]
            if not len(rows):
                return
            moved, found = self._moved(siege.ball.at(rows), x[rows], up[rows], down[rows])
            x, going = x.index_copy(0, rows, moved), going.index_copy(0, rows, found)

    def _hopeful(self, siege: Siege, x: Tensor) -> Tensor:
        """Which rows are within the budget and nearer than a known success."""
        changed = siege.ball.distance(x)
        return (changed <= siege.ball.radius) & (changed < siege.distance)

    def _moved(self, ball: Ball, x: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
        """Every row with its best pair moved, and whether it has one."""
        (low, high), step = ball.box, abs(self.theta) * ball.width
        signs = (1.0, -1.0) if self.both else (1.0 if self.theta > 0 else -1.0,)
        rises, falls = [], []
        for sign in signs:
            room = (high - x if sign > 0 else x - low).clamp(0.0, step)
            # A pixel value moved one way is never moved back.
            free = (room > 0) & ((x - ball.center) * sign >= 0)
            weight = room if self.room else torch.ones_like(x)
            rises.append(torch.where(free, sign * weight * up, -torch.inf).flatten(1))
            falls.append(torch.where(free, sign * weight * down, -torch.inf).flatten(1))
        found, pair = best_pair(torch.cat(rises, 1), torch.cat(falls, 1), ball.size)
        move = torch.zeros_like(x).flatten(1)
        way = torch.tensor(signs, device=x.device, dtype=x.dtype)[pair // ball.size]
        move.scatter_(1, pair % ball.size, step * way * found[:, None])
        return (x + move.view_as(x)).clamp_(low, high), found


def best_pair(rise: Tensor, fall: Tensor, entries: int) -> tuple[Tensor, Tensor]:
    """The two moves of every row whose sums are both above zero and have the largest product.

    Parameters
    ----------
    rise, fall : Tensor
        Effect of each move on the target and, negated, on the other classes, ``[rows, moves]``;
        -inf where it cannot be made.
    entries : int
        Moves whose numbers differ by a multiple of it are of one pixel value and make no pair.

    Returns
    -------
    tuple of Tensor
        Whether there is a pair, and the numbers of its moves, ``[rows, 2]``.

    Notes
    -----
    Not all pairs are compared. If two moves both exceed a third in both respects, one of them can
    replace it in any pair (unless it is of the partner's own pixel value). So only moves exceeded
    by few others can be in the best pair: some dozens of thousands. If more are left than the map
    of one row may hold (5,792), those best for the target are used. Rows share a map as far as
    memory allows.
    """
    rise, fall = _to_one(rise), _to_one(fall)
    rise, order = rise.sort(dim=1, descending=True, stable=True)
    fall = fall.gather(1, order)
    left = beyond = fall
    for _ in range(1 + fall.shape[1] // entries):
        # The best fall of all moves before each, then the next best.
        beyond = functional.pad(left.cummax(1).values[:, :-1], (1, 0), value=-torch.inf)
        left = torch.minimum(left, beyond)
    kept = fall > beyond
    most = max(2, min(int(kept.sum(1).amax()), int((BYTES / (4 * COPIES)) ** 0.5), kept.shape[1]))
    rank = torch.arange(kept.shape[1], 0, -1, device=kept.device)
    front = torch.where(kept, rank, 0).topk(min(most, kept.shape[1]), dim=1).indices
    there = kept.gather(1, front)
    rise = torch.where(there, rise.gather(1, front), -torch.inf)
    fall, moves = fall.gather(1, front), order.gather(1, front)
    size = max(1, BYTES // (4 * COPIES * moves.shape[1] ** 2))
    chunks = (torch.split(part, size) for part in (rise, fall, moves))
    parts = [_best_of(a, b, c, entries) for a, b, c in zip(*chunks, strict=True)]
    return torch.cat([found for found, _ in parts]), torch.cat([pair for _, pair in parts])


def _best_of(rise: Tensor, fall: Tensor, moves: Tensor, entries: int) -> tuple[Tensor, Tensor]:
    rises = rise[:, :, None] + rise[:, None, :]
    falls = fall[:, :, None] + fall[:, None, :]
    entry = moves % entries
    good = (rises > 0) & (falls > 0) & (entry[:, :, None] != entry[:, None, :])
    score = torch.where(good, rises.mul_(falls), -torch.inf)
    del rises, falls, good
    value, best = score.flatten(1).max(1)
    many = moves.shape[1]
    places = torch.stack((best // many, best % many), 1).sort(1).values
    return torch.isfinite(value), moves.gather(1, places)


def _to_one(x: Tensor) -> Tensor:
    """Every row divided by its largest absolute value, so that no product over- or underflows."""
    size = torch.where(torch.isfinite(x), x.abs(), 0.0).amax(1, keepdim=True)
    return x / size.clamp_min(torch.finfo(x.dtype).tiny)


_SLOPES: Mapping[str, tuple[Loss, Loss | None]] = MappingProxyType(
    {"logits": (target_logit, other_logits), "probabilities": (target_probability, None)}
)

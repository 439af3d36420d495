"""Fit one universal perturbation to all rows of a siege, by gradients or by DeepFool steps."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from besiege.attacks.losses import margin
from besiege.attacks.pieces import unboxed
from besiege.attacks.planes import against, straight, toward
from besiege.core.answer import Aim, Answer
from besiege.core.ball import Ball, ball, distances
from besiege.core.dice import Dice
from besiege.core.rowwise import rowwise
from besiege.core.siege import Siege, not_examined
from besiege.core.threat import L2

Method = Literal["gradient", "deepfool"]
Boxing = Literal["joint", "cut", "none"]

CAP = 1.0
"""Beyond the boundary the margin is capped at this many times the mean clean margin, so that images
already fooled do not outweigh the others."""

LONGEST, SHORTEST = 0.2, 0.01
"""First and last step size of the gradient method, as fractions of the budget."""

INERTIA = 0.9
"""Momentum of the gradient method."""

CLASSES, OVERSHOOT, REACH = 10, 0.02, 10
"""DeepFool: classes considered, overshoot, and most points looked at."""

BEYOND = 1e-4
"""How much farther Euclidean steps go where images are cut to the box, in box widths: what is cut
off would leave them short of the boundary by less and less, without end."""


def fit(
    siege: Siege,
    method: Method,
    *,
    steps: int,
    target: float,
    batch: int,
    hidden: bool,
    box: Boxing = "joint",
) -> Tensor:
    """A perturbation for all rows of a siege, within the smallest of their radii.

    With a query budget the last query of every row is reserved for the final image.

    Parameters
    ----------
    siege : Siege
        Its rows pay for the queries.
    method, steps, target, batch, box
        As in `besiege.attacks.universal.UAP`.
    hidden : bool
        Whether successes during the fit are not recorded: only the final images count.
    """
    low, high = siege.ball.box
    start = torch.zeros_like(siege.ball.center[:1])
    # The perturbation itself may be as large as the width of the box.
    around = ball(siege.ball.norm, start, siege.ball.radius.min()[None], (low - high, high - low))
    # If successes are hidden, DeepFool queries one class after the other.
    price = min(CLASSES, siege.classes) - 1 if method == "deepfool" and hidden else 1
    v = best = rise = start
    most = 0.0
    for turn in range(steps):
        fooled = asked = 0
        for rows in _parts(siege, turn, batch, price):
            if method == "gradient":
                answer = _shifted(siege, v, rows)
                v, rise = _ascended(around, v, rise, answer.gradient, turn / steps)
                changed = siege.record.reached(siege.rows[rows], answer.labels)
            else:
                move, changed = _reached(siege.view(rows), v, hidden, price, box)
                v = around.confine(v + move)
            fooled, asked = fooled + int(changed.sum()), asked + len(rows)
        # The perturbation has changed since: measure it if it seems good enough. The gradient
        # method's steps shrink, so that its last perturbation is its best; DeepFool's do not.
        if method == "gradient" and fooled < target * asked:
            best = v
            continue
        share = _share(siege, v, box)
        if share > most or method == "gradient" or box != "joint":
            best, most = v, share
        if share >= target:
            break
    return best[0]


def _parts(siege: Siege, turn: int, batch: int, price: int) -> tuple[Tensor, ...]:
    """Row numbers in a new random order every turn, in batches, ascending in each."""
    drawn = siege.dice.of("order").uniform((1,), turn)[:, 0]
    order = _paying(siege, drawn.argsort(stable=True), price)
    return tuple(part.sort().values for part in torch.split(order, batch) if len(part))


def _paying(siege: Siege, rows: Tensor, price: int) -> Tensor:
    """The rows that can pay `price` queries and one more."""
    return rows[siege.record.meter.left(siege.rows[rows]) > price]


def _share(siege: Siege, v: Tensor, box: Boxing) -> float:
    """The fooling rate of the perturbation; 1 if no row can pay for a query."""
    rows = _paying(siege, torch.arange(len(siege), device=v.device), 1)
    if not len(rows):
        return 1.0
    labels = _shifted(siege, v, rows, box).labels
    return float(siege.record.reached(siege.rows[rows], labels).double().mean())


def _shifted(siege: Siege, v: Tensor, rows: Tensor, box: Boxing = "joint") -> Answer:
    """The gradient of the capped margin with respect to the perturbation, for some rows."""
    clean = siege.aim.clean
    cap = torch.inf if clean is None else -CAP * float(margin(clean, siege.aim).mean())

    def capped(logits: Tensor, aim: Aim) -> Tensor:
        return margin(logits, aim).clamp_max(cap)

    def shift(image: Tensor, _: Dice, __: Tensor) -> Tensor:
        return _cut(siege.ball, image + v, box)

    return siege.gradient(siege.ball.center[rows], capped, through=shift, rows=rows)


def _ascended(
    around: Ball, v: Tensor, rise: Tensor, gradient: Tensor, gone: float
) -> tuple[Tensor, Tensor]:
    """One step of the perturbation, and its direction with momentum."""
    slope = gradient.sum(0, keepdim=True)
    slope = slope / slope.abs().mean().clamp_min(torch.finfo(slope.dtype).tiny)
    rise = INERTIA * rise + slope
    length = (LONGEST + (SHORTEST - LONGEST) * gone) * around.radius
    return around.confine(v + around.steepest(rise, v, length)), rise


def _cut(ball: Ball, x: Tensor, box: Boxing) -> Tensor:
    return x if box == "none" else x.clamp(*ball.box)


def _reached(
    view: Siege, v: Tensor, hidden: bool, price: int, box: Boxing = "joint"
) -> tuple[Tensor, Tensor]:
    """The sum of DeepFool steps of the rows that the perturbation does not fool, and the others.

    A row that does not cross the boundary in time, or cannot pay, adds nothing, as in the paper.
    """
    space, total = view.ball, torch.zeros_like(view.ball.center)
    start = _cut(space, space.center + v, box)
    plain = box != "joint"
    # The published steps are the shortest in l2, whatever the norm of the perturbation.
    extra = BEYOND * space.width if box == "cut" else 0.0
    steps_in = unboxed(ball(L2, space.center, space.radius, space.box)) if plain else space
    read = _Planes(view, hidden)
    going = before = torch.ones_like(view.rows, dtype=torch.bool)
    for step in range(REACH - plain):  # as published, the last step may not be the one that crosses
        rows = _paying(view, going.nonzero()[:, 0], price)
        if not len(rows):
            break
        x = _cut(space, start[rows] + (1.0 + OVERSHOOT) * total[rows], box)
        labels, w, f = read(x, rows)
        stays = ~view.record.reached(view.rows[rows], labels)
        going = going.index_copy(0, rows, stays)
        before = before if step else going
        size = straight(steps_in, w.flatten(0, 1), f.double().flatten()).view_as(f)
        each, nearest = torch.arange(len(rows), device=x.device), size.argmin(1)
        chosen = w[each, nearest]
        height = extra * distances(chosen, L2) - f[each, nearest].double()
        move = steps_in.at(rows).plane(x, chosen, height)
        total = total.index_add(0, rows, move * rowwise(stays, move))
    moves = total * rowwise(before & ~going, total)
    return (1.0 + OVERSHOOT) * moves.sum(0, keepdim=True), ~before


class _Planes:
    """Linearised boundaries of the likeliest classes of some rows.

    If `hidden`, classes are queried one after the other through the identity map, so that no
    success is recorded.
    """

    def __init__(self, view: Siege, hidden: bool) -> None:
        self.view = view
        others = view.ranked()[:, : CLASSES - 1]
        self.ranked = torch.cat((view.aim.labels[:, None], others), 1)
        self.apart = [view.view(aim=k) for k in others.unbind(1)] if hidden else []

    def __call__(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not self.apart:
            answer = self.view.view(rows).gradients(x, self.ranked[rows])
            return answer.labels, *against(answer, self.ranked[rows])
        answers = [one.gradient(x, toward, not_examined, rows) for one in self.apart]
        w = torch.stack([answer.gradient for answer in answers], 1)
        return answers[0].labels, w, torch.stack([answer.loss for answer in answers], 1)

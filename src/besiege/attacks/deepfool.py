"""DeepFool: repeated steps to the nearest linearised boundary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.pieces import unboxed
from besiege.attacks.planes import (
    ENTRIES,
    against,
    lowered,
    shorten,
    steering,
    straight,
    turns,
)
from besiege.attacks.smallest import endless
from besiege.core.answer import Answer
from besiege.core.attack_registry import register
from besiege.core.ball import Ball
from besiege.core.fields import number, whole_number, yes_or_no
from besiege.core.rowwise import pick
from besiege.core.siege import Siege, not_examined
from besiege.core.threat import L1, L2, Linf

Compat = Literal["no", "deepfool", "superdeepfool"]

TIE = 1e-5
"""Shortest step, in box widths: at a tie the label may still win, and a zero step, or one lost in
rounding, would repeat for ever."""

PATIENCE = 10
"""Steps that are clipped to the box; in later ones other pixels compensate for clipped ones."""

EXTRA = 1e-4
"""What the authors' code adds to the length of every step, in box widths."""

ROWS = 8
"""Fewest rows in a batch of gradients, since fewer cost as much: classes that do not fit are
queried in further parts."""


@dataclass
class Ends:
    """Where the paths to the boundary ended, rows first.

    Attributes
    ----------
    x : Tensor
        The first points beyond the boundary, or the last iterates.
    crossed : Tensor
        Which are beyond it.
    logits : Tensor
        The victim's logits there.
    target : Tensor
        The class each path went to last.
    """

    x: Tensor
    crossed: Tensor
    logits: Tensor
    target: Tensor


class Plane(NamedTuple):
    """A linearised boundary of every row: its gradient and height, and the class beyond."""

    w: Tensor
    f: Tensor
    target: Tensor


class State(NamedTuple):
    """The state of the paths, rows first.

    Attributes
    ----------
    place : Tensor
        Index of each row in `Ends`.
    x, total, origin : Tensor
        The iterates, the sum of their steps, and their origins.
    ranked : Tensor
        The classes considered, the label first.
    """

    place: Tensor
    x: Tensor
    total: Tensor
    origin: Tensor
    ranked: Tensor


def iterate(
    siege: Siege,
    origin: Tensor,
    steps: int,
    overshoot: float,
    classes: int,
    patience: int = 0,
    compat: Compat = "no",
) -> Ends:
    """DeepFool from any points that are not beyond the boundary yet.

    Steps add up from the origin and are overshot as a whole. A row stops at its first point beyond
    the boundary. With several classes, which cost a backward pass each, a point is first checked by
    a forward pass; with one class the answer that gives its gradient suffices. The first `patience`
    steps ignore the box and are clipped to it; in later ones other pixels compensate.

    With `compat` all steps ignore the box, every one is longer by `EXTRA`, and points are clipped.
    As a part of SuperDeepFool the next step then starts from the clipped point, and points on the
    way do not count as successes.
    """
    published, examine = compat != "no", compat != "superdeepfool"
    view = siege.view()
    aimed = view.aim.targets is not None
    ranked = torch.cat((view.aim.labels[:, None], view.ranked()[:, : classes - 1]), 1)
    target = ranked[:, 1] if view.aim.targets is None else view.aim.targets
    held = gradients_held(view, classes)
    logits = origin.new_zeros(len(view), view.classes)
    ends = Ends(origin.clone(), torch.zeros_like(target, dtype=torch.bool), logits, target.clone())
    place = torch.arange(len(view), device=origin.device)
    at = State(place, origin, torch.zeros_like(origin), origin, ranked)
    for step in range(steps):
        at, answer = view.settle(at, _read(view, at.x, at.ranked[:, :held], not published, examine))
        if aimed and step:
            at, answer = _ended(view, ends, at, answer)
        if not len(view):
            return ends
        plane = _plane(view, answer, at.ranked[:, :held], not published)
        if not aimed and held < ranked.shape[1]:
            own = answer.gradient[:, :1].clone()
            del answer  # frees memory before the next one of its size
            at, plane = _further(view, at, plane, own, held, not published, examine)
            if not len(view):
                return ends
        if published:
            gap = plane.f.double().abs() + EXTRA * view.ball.width * view.ball.dual(plane.w)
            total = at.total + unboxed(view.ball).plane(at.x, plane.w, gap)
        else:
            least = TIE * view.ball.width * view.ball.dual(plane.w)
            gap = torch.maximum(-plane.f.double(), least)
            way = _cut if step < patience else type(view.ball).plane
            total = at.total + way(view.ball, at.x, plane.w, gap)
        before, x = at.x, (at.origin + (1.0 + overshoot) * total).clamp_(*view.ball.box)
        if compat == "superdeepfool":
            total = (x - at.origin) / (1.0 + overshoot)
        at = at._replace(x=x, total=total)
        ends.x[at.place], ends.target[at.place] = x, plane.target
        # A zero step would repeat: the gradient is zero, or the point is a corner of the box.
        stuck = (x == before).flatten(1).all(1)
        if aimed and step < steps - 1:
            view.leave(stuck)
            continue
        answer = view.logits(x, examine=examine)
        view.leave(stuck)
        at, _ = _ended(view, ends, *view.settle(at, answer))
        if not len(view):
            return ends
    return ends


def _read(view: Siege, x: Tensor, ranked: Tensor, sure: bool, examine: bool) -> Answer:
    if view.aim.targets is None:
        return view.gradients(x, ranked, examine=examine)
    return view.gradient(x, steering(view, sure), None if examine else not_examined)


def _plane(view: Siege, answer: Answer, ranked: Tensor, sure: bool) -> Plane:
    """The boundary to move to."""
    if view.aim.targets is not None:
        return Plane(answer.gradient, answer.loss, view.aim.targets)
    w, f = against(answer, ranked)
    f = lowered(view, f, answer.logits) if sure else f
    return _nearest(view.ball, w, f, ranked[:, 1:])


def _cut(ball: Ball, x: Tensor, w: Tensor, c: Tensor) -> Tensor:
    """The step to a plane without the box, clipped to it.

    Where the gradient is small or most steep pixels are saturated, the step inside the box would
    lead to a far corner, for a linearisation that does not hold there.
    """
    return (x + unboxed(ball).plane(x, w, c)).clamp_(*ball.box).sub_(x)


def _nearest(ball: Ball, w: Tensor, f: Tensor, classes: Tensor) -> Plane:
    """The nearest of several boundaries of every row."""
    size = straight(ball, w.flatten(0, 1), f.double().flatten()).view_as(f)
    nearest = size.argmin(1)
    rows = torch.arange(len(w), device=w.device)
    return Plane(w[rows, nearest], f[rows, nearest], classes[rows, nearest])


def _further(
    view: Siege, at: State, plane: Plane, own: Tensor, held: int, sure: bool, examine: bool
) -> tuple[State, Plane]:
    """The boundary to move to, with the classes beyond the first `held` queried too, in parts.

    Every part costs one more forward pass, after which fewer rows may be left. `own` is the
    gradient of the label's logit.
    """
    for first in range(held, at.ranked.shape[1], held):
        answer = view.gradients(at.x, at.ranked[:, first : first + held], examine=examine)
        at, plane, own, answer = view.settle(at, plane, own, answer)
        if not len(view):
            break
        some, z = at.ranked[:, first : first + held], answer.logits
        height = z.gather(1, some) - z.gather(1, at.ranked[:, :1])
        height = lowered(view, height, z) if sure else height
        slope = answer.gradient
        del answer
        near = _nearest(view.ball, slope.sub_(own), height, some)
        del slope
        size = (straight(view.ball, one.w, one.f.double()) for one in (plane, near))
        closer = torch.gt(*size)
        plane = Plane(*(pick(closer, new, old) for new, old in zip(near, plane, strict=True)))
    return at, plane


def _ended(view: Siege, ends: Ends, at: State, answer: Answer) -> tuple[State, Answer]:
    """Record the rows that crossed and let them leave; returns the state of the others."""
    crossed = view.record.reached(view.rows, answer.labels)
    done = at.place[crossed]
    ends.x[done], ends.crossed[done] = at.x[crossed], True
    ends.logits[done] = answer.logits[crossed]
    view.leave(crossed)
    return view.settle(at, answer)


@register("deepfool")
@dataclass(frozen=True)
class DeepFool(Attack):
    """Steps to the nearest linearised boundary until the class changes.

    Every step goes to the nearest boundary of the likeliest classes, taken as planes, inside the
    box and slightly beyond (Moosavi-Dezfooli, Fawzi and Frossard, DeepFool: a simple and accurate
    method to fool deep neural networks, 2016). Aimed at a class, it goes to the boundary of that
    class, with one backward pass per step.

    Unlike the authors' code it adds no 1e-4 to the distances and stays in the box: the first ten
    steps are clipped to it, and in later ones other pixels compensate for clipped ones. A final
    search between the clean image and the result removes the overshoot; ``search=0`` omits it.

    Parameters
    ----------
    steps : int
        Most steps; a row stops when it has crossed.
    overshoot : float
        Overshoot of the summed steps, as a fraction.
    classes : int
        Classes of highest clean score that are considered, the label included.
    search : int
        Secant steps between the clean image and the result.
    boxed : bool
        Whether other pixels compensate for clipped ones in the first ten steps too: fewer steps,
        but longer paths on curved boundaries. Always so in l1.
    compat : bool
        As in the authors' code: steps ignore the box, and each is longer by 1e-4. Unlike there,
        points are clipped to the box.

    Examples
    --------
    >>> from besiege.attacks import parse
    >>> str(parse("deepfool(search=0)"))
    'deepfool(search=0)'
    """

    steps: int = whole_number(50)
    overshoot: float = number(0.02)
    classes: int = whole_number(10, 2)
    search: int = whole_number(3, 0)
    boxed: bool = False
    compat: bool = yes_or_no(False, added=True)

    minimal = True
    norms = frozenset({Linf, L2, L1})
    source = "Moosavi-Dezfooli et al., DeepFool, 2016"

    def run(self, siege: Siege) -> None:
        siege = endless(siege)
        for rows in turns(siege, gradients_held(siege, self.classes)):
            view = siege.view(rows)
            if len(view):
                # In l1 the whole step is one pixel value, and clipping would undo it.
                patience = 0 if self.boxed or view.ball.norm is L1 else PATIENCE
                settings = (self.steps, self.overshoot, self.classes, patience)
                compat: Compat = "deepfool" if self.compat else "no"
                ends = iterate(view, view.ball.center, *settings, compat)
                shorten(view, ends.x, ends.crossed, ends.logits, self.search)


def gradients_held(siege: Siege, classes: int) -> int:
    """Gradients of a row held at once.

    It must not depend on the other rows: what a row costs is the same in every batch.
    """
    if siege.aim.targets is not None:
        return 1
    return min(classes, siege.classes, max(2, ENTRIES // (ROWS * siege.ball.size)))

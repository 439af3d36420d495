"""APGD and APGD-T.

In linf and l2 `apgd` is a setting of `Ascent`. In l1 the schedule must tell the direction how many
pixel values to move, for which `Ascent` has no slot: there it is `SparseAscent`. A table below maps
norms to loops; parameters mean the same in both. ``pgd(schedule=halving, place=inertia)`` allows
other pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from besiege.attacks.ascent import Ascent, pgd
from besiege.attacks.attack import Attack
from besiege.attacks.losses import CrossEntropy, cross_entropy, dlr
from besiege.attacks.pieces import Halving, Inertia, Sphere, Start, Unboxed
from besiege.attacks.sparse_ascent import SparseAscent
from besiege.core.answer import Loss
from besiege.core.attack_registry import register
from besiege.core.fields import a_loss, of_kind, one_of, whole_number
from besiege.core.siege import Siege
from besiege.core.threat import L1, L2, Goal, Linf, Norm

ASCENT = replace(
    pgd,
    name="",
    steps=100,
    start=Sphere(),
    direction=Unboxed(),
    schedule=Halving(0.75),
    place=Inertia(0.75),
)
PUBLISHED = replace(ASCENT, schedule=Halving(0.75, compat=True), place=Inertia(0.75, exact=False))
SPARSE = SparseAscent(steps=100)

Form = Ascent | SparseAscent
FORMS: Mapping[Norm, Form] = MappingProxyType({Linf: ASCENT, L2: ASCENT, L1: SPARSE})
PUBLISHED_FORMS: Mapping[Norm, Form] = MappingProxyType(
    {Linf: PUBLISHED, L2: PUBLISHED, L1: replace(SPARSE, compat=True)}
)


@register("apgd")
@dataclass(frozen=True)
class APGD(Attack):
    """Auto-PGD: step halving where the loss stalls (Croce and Hein 2020; in l1 2021).

    In linf and l2 it is ``pgd`` with ``schedule=halving, place=inertia(0.75)``. In l1 each step
    moves few pixel values, and the first steps use balls of three and two times the radius
    (`besiege.attacks.sparse_ascent`).

    Parameters
    ----------
    steps : int
        Steps from every start.
    loss : callable
        Loss to maximize.
    restarts : int
        Runs from different random starts; rows already broken are not attacked again.
    start : Start, optional
        Starting points: by default on the surface of the ball, in l1 a normal draw projected onto
        the ball.
    compat : bool
        Follow the authors' code where it differs from their paper, to compare results: checkpoints
        and what counts as stalled, steps and projections in l2, the usual form of cross-entropy.
        Averages over a stochastic victim still include losses, logits and gradients.

    Examples
    --------
    >>> from besiege.attacks import parse
    >>> parse("apgd(steps=50, loss=dlr)").restarts
    1
    """

    steps: int = whole_number(100)
    loss: Loss = a_loss(cross_entropy)
    restarts: int = whole_number(1)
    start: Start | None = of_kind(None, Start)
    compat: bool = False

    norms = frozenset(FORMS)
    source = "Croce and Hein, Reliable evaluation, 2020; in l1 Mind the box, 2021"

    def form(self, norm: Norm) -> Form:
        """The loop for a norm."""
        form = (PUBLISHED_FORMS if self.compat else FORMS)[norm]
        loss = self.loss
        if self.compat and isinstance(loss, CrossEntropy):
            loss = replace(loss, stable=False)
        start = form.start if self.start is None else self.start
        return replace(form, steps=self.steps, loss=loss, restarts=self.restarts, start=start)

    def run(self, siege: Siege) -> None:
        self.form(siege.ball.norm).run(siege)


@register("apgdt")
@dataclass(frozen=True)
class APGDT(Attack):
    """APGD aimed at one wrong class after the other (Croce and Hein 2020).

    Any misclassification counts.

    Parameters
    ----------
    steps : int
        Steps towards every class.
    targets : int
        Classes tried, at most all wrong ones.
    order : str
        Which come first: the highest clean 'score', as published, or the smallest 'distance' if the
        victim were linear around the clean image (MALT; Melamed et al. 2024). The latter costs one
        backward pass for each class, for at most the hundred classes of highest score.
    together : int
        Classes of a row attacked side by side, after the first one on its own: batches are fuller
        when few rows are left. Results are the same, except that under a query limit these classes
        share the row's queries.
    loss : callable
        Loss to maximize.
    restarts, start, compat
        As in `APGD`, for every class.

    Examples
    --------
    >>> from besiege.attacks import parse
    >>> str(parse("apgdt(targets=3, order='distance')"))
    "apgdt(targets=3, order='distance')"
    """

    steps: int = whole_number(100)
    targets: int = whole_number(9)
    order: Literal["score", "distance"] = one_of("score", "distance")
    together: int = whole_number(4)
    loss: Loss = a_loss(dlr)
    restarts: int = whole_number(1)
    start: Start | None = of_kind(None, Start)
    compat: bool = False

    norms = frozenset(FORMS)
    goals = frozenset({Goal.UNTARGETED})
    source = "Croce and Hein, Reliable evaluation, 2020"

    def each(self) -> APGD:
        """The attack on each class."""
        return APGD(self.steps, self.loss, self.restarts, self.start, self.compat)

    def run(self, siege: Siege) -> None:
        ranked = siege.ranked() if self.order == "score" else nearest(siege)
        many = min(self.targets, ranked.shape[1])
        # Most broken rows break towards the first class, so that one is attacked on its own.
        for first, end in pairwise([0, *range(1, many, self.together), many]):
            ranked = siege.settle(ranked)
            if len(siege):
                turn = torch.arange(first, end, device=ranked.device)
                rows = torch.arange(len(siege), device=ranked.device).repeat_interleave(len(turn))
                dice = siege.dice.at(rows).of("target").counted(turn.repeat(len(siege)))
                aim = ranked[:, first:end].flatten()
                self.each().run(siege.view(rows, aim=aim, dice=dice))


AMONG = 100
"""Most classes ordered by distance."""
ENTRIES = 1 << 26
"""Most gradient components held at once."""


def nearest(siege: Siege) -> Tensor:
    """The other classes of each row, nearest first, ``[rows, min(classes - 1, 100)]``.

    By ``(z_y - z_t) / ||grad (z_y - z_t)||`` at the clean image, in the dual norm: the boundary
    distance of a linear victim. Ties keep the order of the scores.
    """
    ranked = siege.ranked()[:, :AMONG]
    classes = torch.cat([siege.aim.labels[:, None], ranked], 1)
    size = max(1, ENTRIES // (siege.ball.size * classes.shape[1]))
    parts = []
    for first in range(0, len(siege), size):
        rows = torch.arange(first, min(first + size, len(siege)), device=ranked.device)
        view = siege.view(rows)
        answer = view.gradients(view.ball.center, classes[rows])
        slope = answer.gradient[:, :1] - answer.gradient[:, 1:]
        steep = view.ball.dual(slope.flatten(0, 1)).view(len(rows), -1)
        scores = answer.logits.gather(1, classes[rows]).double()
        far = (scores[:, :1] - scores[:, 1:]) / steep
        parts.append(torch.where(steep > 0, far, torch.inf))
    order = torch.cat(parts).argsort(dim=1, stable=True)
    return ranked.gather(1, order)

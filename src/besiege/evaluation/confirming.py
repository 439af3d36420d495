"""Confirm successes of a search on the victim itself, before the judge does.

A twin's decision boundary is that of the victim up to rounding, and on a GPU the last bits of a
victim's own logits depend on the batch size. Attacks that search for the smallest perturbation end
within that distance of the boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from besiege.attacks.losses import margin
from besiege.core.answer import Aim
from besiege.core.ball import Ball, ball
from besiege.core.criterion import reached
from besiege.core.oracle import Oracle
from besiege.core.record import ROUNDING, Leave, largest, sure
from besiege.core.samples import Samples
from besiege.core.threat import Threat

if TYPE_CHECKING:
    from besiege.evaluation.crafting import Crafted

PUSHES = (1.001, 1.01, 1.05)
"""Factors by which a perturbation is enlarged that broke the twin, and not the victim."""
NUDGES = (1.0001, 1.001)
"""The same where attacks search for the smallest perturbation."""

CLIMBS = (0.005, 0.01, 0.02, 0.04)
"""Lengths, as shares of the radius, of the steps that then increase the victim's own margin."""
HAIR = 0.01
"""Largest change of a margin by rounding, as a share of the range of the row's logits."""


@dataclass(frozen=True)
class Confirmation:
    """Confirms crafted images on the victim, and moves images that it does not confirm.

    Attributes
    ----------
    oracle : Oracle
        The victim, queried as the judge will query it.
    samples, threat
        The attacked samples, and the threat.
    crafted : Crafted
        The result of the search, whose tensors are updated.
    parts : sequence of int, optional
        Numbers of consecutive samples that the judge will judge at once; by default all.
    """

    oracle: Oracle
    samples: Samples
    threat: Threat
    crafted: Crafted
    parts: Sequence[int] | None = None

    @property
    def ball(self) -> Ball:
        """The set of allowed images."""
        victim = self.oracle.victim
        radius = self.threat.radius
        return ball(self.threat.norm, self.samples.images, radius, victim.box, victim.grid)

    @property
    def aim(self) -> Aim:
        """Labels and targets of the attack."""
        return Aim(self.samples.labels, self.crafted.targets)

    def __call__(self, pushes: tuple[float, ...], climbs: tuple[float, ...] = ()) -> Tensor:
        """The rows whose claimed success could not be confirmed.

        Rounding decides on which side of the boundary such a point is. So its perturbation is
        enlarged first, as far as the budget allows, and then a few steps increase the victim's own
        margin.
        """
        again = self.crafted.success.nonzero()[:, 0]
        again = again[~self._breaks(self.crafted.images[again], again)]
        around = self.ball
        for push in pushes:
            if len(again):
                here, x = around.at(again), self.crafted.images[again]
                x = here.project(here.center + push * (x - here.center))
                again = again[~self._breaks(x, again)]
        x = self.crafted.images[again]
        for climb in climbs:
            if len(again):
                x = self._ascended(around.at(again), x, again, climb)
                stay = ~self._breaks(x, again)
                again, x = again[stay], x[stay]
        return again

    def _breaks(self, x: Tensor, rows: Tensor) -> Tensor:
        """Which rows these points break; such points replace the crafted images."""
        crafted, goal = self.crafted, self.aim.at(rows)
        if len(rows) and self.oracle.batch_sensitive:
            # In the same batch in which the judge will query them.
            batch = crafted.images.index_copy(0, rows, x)
            parts = torch.split(batch, list(self.parts or [len(batch)]))
            logits = torch.cat([self.oracle.logits(part) for part in parts])[rows]
        else:
            logits = self.oracle.logits(x)
        logits = self.oracle.fold(logits, goal.labels)
        labels = logits.argmax(1)
        if self.threat.eps is None and len(rows):  # points at the boundary must be beyond rounding
            hair = ROUNDING * largest(logits)
            labels = sure(logits, goal.labels, goal.targets, hair)
        broken = reached(labels, goal.labels, goal.targets)
        kept = rows[broken]
        crafted.forwards[rows] += 1
        crafted.images[kept] = x[broken]
        crafted.distance[kept] = self.ball.at(kept).distance(x[broken])
        return broken

    def _ascended(self, here: Ball, x: Tensor, rows: Tensor, climb: float) -> Tensor:
        """One step that increases the margin, of the rows that are near enough to the boundary."""
        slope, short, logits = self.oracle.gradient(x, margin, self.aim.at(rows))
        near = -short < HAIR * (logits.amax(1) - logits.amin(1))
        slope = torch.nan_to_num(slope, nan=0.0, posinf=0.0, neginf=0.0) * here.scaled(near)
        self.crafted.forwards[rows] += 1
        self.crafted.backwards[rows] += 1
        return here.project(x + here.steepest(slope, x, climb * here.radius))


def confirmed(
    oracle: Oracle,
    samples: Samples,
    threat: Threat,
    crafted: Crafted,
    pushes: tuple[float, ...],
    climbs: tuple[float, ...],
    run: Callable[[Samples], Crafted] | None,
    leave: Leave = "success",
    parts: Sequence[int] | None = None,
) -> Crafted:
    """The result of a search, with only those successes that the victim confirms.

    Rows that it does not confirm are attacked again by `run`, on the victim itself. Where the
    batch matters, the new successes are confirmed, too.
    """
    again = Confirmation(oracle, samples, threat, crafted, parts)(pushes, climbs)
    if len(again) and run is not None:
        crafted = _redone(crafted, again, run(samples.at(again)))
        if oracle.batch_sensitive:
            again = Confirmation(oracle, samples, threat, crafted, parts)(pushes)
        else:
            again = again[:0]
    crafted.success[again] = False
    crafted.distance[again] = torch.inf
    crafted.first_step[again] = crafted.first_query[again] = -1
    if leave == "success":  # failures return the clean image; otherwise the last image is kept
        crafted.images[again] = samples.images[again]
    return replace(crafted, padding=crafted.padding + oracle.padded)


def _redone(crafted: Crafted, again: Tensor, redone: Crafted) -> Crafted:
    """Replace the results of these rows on the twin by those on the victim."""
    # Queries of the twin did not decide these rows, so they count as passes only.
    for name in (
        "images",
        "success",
        "distance",
        "first_step",
        "first_query",
        "queries",
        "vanished",
    ):
        getattr(crafted, name)[again] = getattr(redone, name)
    if crafted.ascent is not None and redone.ascent is not None:
        crafted.ascent[again] = redone.ascent
    if crafted.descent is not None:
        crafted.descent[again] = torch.inf if redone.descent is None else redone.descent
    if crafted.no_start is not None and redone.no_start is not None:
        crafted.no_start[again] = redone.no_start
    if crafted.targets is not None and redone.targets is not None:
        crafted.targets[again] = redone.targets
    for name in ("forwards", "backwards"):
        getattr(crafted, name)[again] += getattr(redone, name)
    return replace(
        crafted,
        padding=crafted.padding + redone.padding,
        general=tuple(dict.fromkeys(crafted.general + redone.general)),
    )

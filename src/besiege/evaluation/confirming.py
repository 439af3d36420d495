"""Confirm: show what a search found to the victim itself, before the judge does.

A search on a twin knows its boundary only to rounding, and behind a GPU even a victim's own answer
depends, in its last digits, on how many images it is asked about at once. Attacks that look for the
smallest change end within that distance of the boundary.
"""

from __future__ import annotations

from collections.abc import Callable
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
"""How much farther a change is taken whose point fooled the twin by a hair, and not the victim."""
NUDGES = (1.0001, 1.001)
"""The same where each change is to be the smallest."""

CLIMBS = (0.005, 0.01, 0.02, 0.04)
"""Steps, as shares of the radius, that it is then led up the victim's own margin."""
HAIR = 0.01
"""Of the range of a row's logits: what rounding may move its margin by."""


@dataclass(frozen=True)
class Confirmation:
    """Showing what was crafted to the victim itself; the rows it does not confirm are helped on.

    Attributes
    ----------
    oracle : Oracle
        The victim, asked as the judge will ask it.
    samples, threat
        What was attacked, within what.
    crafted : Crafted
        What was found; its tensors are written to.
    """

    oracle: Oracle
    samples: Samples
    threat: Threat
    crafted: Crafted

    @property
    def ball(self) -> Ball:
        """Where changes may lie."""
        victim = self.oracle.victim
        radius = self.threat.radius
        return ball(self.threat.norm, self.samples.images, radius, victim.box, victim.grid)

    @property
    def aim(self) -> Aim:
        """What they are to reach."""
        return Aim(self.samples.labels, self.crafted.targets)

    def __call__(self, pushes: tuple[float, ...], climbs: tuple[float, ...] = ()) -> Tensor:
        """The rows that were called broken and are not, after all was tried.

        A point is pushed on along its own line, where the budget has room, and then led a few
        steps up the victim's own margin: what lies on the boundary is on either side of it by
        rounding alone.
        """
        again = self.crafted.success.nonzero()[:, 0]
        again = again[~self._fooled(self.crafted.images[again], again)]
        around = self.ball
        for push in pushes:
            if len(again):
                here, x = around.at(again), self.crafted.images[again]
                x = here.project(here.center + push * (x - here.center))
                again = again[~self._fooled(x, again)]
        x = self.crafted.images[again]
        for climb in climbs:
            if len(again):
                x = self._climbed(around.at(again), x, again, climb)
                stay = ~self._fooled(x, again)
                again, x = again[stay], x[stay]
        return again

    def _fooled(self, x: Tensor, rows: Tensor) -> Tensor:
        """Which rows these points break; they are kept."""
        crafted, goal = self.crafted, self.aim.at(rows)
        if len(rows) and self.oracle.batch_sensitive:
            # Among the neighbours they will have before the judge.
            whole = crafted.images.index_copy(0, rows, x)
            logits = self.oracle.logits(whole)[rows]
        else:
            logits = self.oracle.logits(x)
        labels = logits.argmax(1)
        if self.threat.eps is None and len(rows):  # what ends at the boundary is to hold
            hair = ROUNDING * largest(logits)
            labels = sure(logits, goal.labels, goal.targets, hair)
        broken = reached(labels, goal.labels, goal.targets)
        kept = rows[broken]
        crafted.forwards[rows] += 1
        crafted.images[kept] = x[broken]
        crafted.distance[kept] = self.ball.at(kept).distance(x[broken])
        return broken

    def _climbed(self, here: Ball, x: Tensor, rows: Tensor, climb: float) -> Tensor:
        slope, short, logits = self.oracle.gradient(x, margin, self.aim.at(rows))
        by_a_hair = -short < HAIR * (logits.amax(1) - logits.amin(1))
        slope = torch.nan_to_num(slope, nan=0.0, posinf=0.0, neginf=0.0) * here.scaled(by_a_hair)
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
) -> Crafted:
    """What a search found, as the victim itself confirms it.

    Rows that it does not confirm are attacked again by `run`, on the victim itself; what that
    claims is shown once more where the company a row is asked in matters, and what does not hold
    then either is no success.
    """
    again = Confirmation(oracle, samples, threat, crafted)(pushes, climbs)
    if len(again) and run is not None:
        crafted = _redone(crafted, again, run(samples.at(again)))
        if oracle.batch_sensitive:
            again = Confirmation(oracle, samples, threat, crafted)(pushes)
        else:
            again = again[:0]
    crafted.success[again] = False
    crafted.distance[again] = torch.inf
    crafted.first_step[again] = crafted.first_query[again] = -1
    if leave == "success":  # a failure is the clean image; what stays to the end is kept anyhow
        crafted.images[again] = samples.images[again]
    return replace(crafted, padding=crafted.padding + oracle.padded)


def _redone(crafted: Crafted, again: Tensor, redone: Crafted) -> Crafted:
    """Put what the victim itself gave into the place of what its twin gave."""
    # What the twin was asked decided nothing about these rows: it was computed, not used.
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
        findings=tuple(dict.fromkeys(crafted.findings + redone.findings)),
    )

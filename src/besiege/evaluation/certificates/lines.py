"""Certificates by bounds alone: intervals, and lines around ReLUs."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from besiege.bounds.bounding import Bounding
from besiege.core.samples import Samples
from besiege.core.victim import Victim
from besiege.evaluation.certificates import (
    METHODS,
    OPEN,
    PROVED,
    STEPS,
    Certificates,
    Method,
    Order,
    largest_radii,
)


class ByBounds(Method):
    """A proof wherever the bound of every margin is above zero."""

    def check(self, victim: Victim, samples: Samples) -> None:
        """Refuse a victim with an operation without bounds."""
        Bounding.of(victim, samples.images)

    def certify(self, order: Order) -> Certificates:
        """The margins' bounds at the budget, and at other radii for the curve."""
        found = Certificates.before(order)
        rows = order.open.nonzero()[:, 0]
        if not len(rows):
            return found
        images, labels = order.samples.images[rows], order.samples.labels[rows]
        bounding = Bounding.of(order.victim, images)
        needed = bounding.needed(images)

        def margins(some: Tensor, eighths: Tensor) -> Tensor:
            radius = (eighths.to(images) * (order.threat.radius / STEPS)).to(images.dtype)
            return bounding.margins(images[some], labels[some], order.threat, self.name, radius)

        def proves(some: Tensor, eighths: Tensor) -> Tensor:
            return margins(some, eighths) > needed[some]

        every = torch.arange(len(rows), device=rows.device)
        least = margins(every, torch.full_like(every, STEPS))
        first = least > needed
        radii = largest_radii(proves, first, order.curve[rows])
        place = rows.cpu()
        found.margin[place] = least.double().cpu()
        found.outcome[place] = torch.where(first, PROVED, OPEN).cpu()
        sizes = radii.double() * (order.threat.radius / STEPS)
        known = first | order.curve[rows]
        found.radius[place] = torch.where(known, sizes, torch.nan).cpu()
        found.regions[place] = 1
        return found


class Ibp(ByBounds):
    """Interval bound propagation."""

    name: ClassVar[str] = "ibp"
    work: ClassVar[float] = 10.0


class CrownIbp(ByBounds):
    """Margins by CROWN, with intervals inside the network."""

    name: ClassVar[str] = "crown-ibp"
    work: ClassVar[float] = 30.0


class FastLin(ByBounds):
    """Fast-Lin, the bound of Wong and Kolter."""

    name: ClassVar[str] = "fast-lin"


class Crown(ByBounds):
    """CROWN."""

    name: ClassVar[str] = "crown"


for one in (Ibp(), CrownIbp(), FastLin(), Crown()):
    METHODS.add(one.name, one)

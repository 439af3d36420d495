"""Certificates by bounds alone: intervals, and lines around ReLUs."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from besiege.evaluation.certificates import (
    METHODS,
    OPEN,
    PROVED,
    STEPS,
    Certificates,
    Method,
    Opened,
    Order,
    largest_radii,
)


class ByBounds(Method):
    """A proof wherever the bound of every margin is above zero."""

    def prove(self, order: Order, some: Opened, found: Certificates) -> None:
        """The margins' bounds at the budget, and at other radii for the curve."""
        rows, images, labels, needed = some.rows, some.images, some.labels, some.needed

        def margins(few: Tensor, eighths: Tensor) -> Tensor:
            radius = (eighths.to(images) * (order.threat.radius / STEPS)).to(images.dtype)
            of = images[few], labels[few], order.threat
            return some.bounding.margins(*of, self.name, radius)

        def proves(few: Tensor, eighths: Tensor) -> Tensor:
            return margins(few, eighths) > needed[few]

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

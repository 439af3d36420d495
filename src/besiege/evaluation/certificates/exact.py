"""Certificates by mixed-integer programming: the exact smallest perturbation in linf."""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import perf_counter
from typing import ClassVar

import torch
from torch import Tensor

from besiege.bounds.bounding import Bounding, crown, margin_bounds
from besiege.bounds.region import Region
from besiege.core.errors import BoundError
from besiege.core.samples import Samples
from besiege.core.threat import Linf, Norm
from besiege.core.victim import Victim
from besiege.evaluation.certificates import (
    BROKEN,
    METHODS,
    OPEN,
    PROVED,
    Certificates,
    Method,
    Opened,
    Order,
)
from besiege.evaluation.programs import Program

MOST_UNITS = 20_000
"""Units of the largest network for which a program is written."""
BEYOND = 1e-4
"""By what share a found perturbation is lengthened before the victim is asked about it: at the
optimum both logits are equal."""


@dataclass(frozen=True, eq=False)
class Smallest:
    """The smallest perturbation of an image lies between `below` and `above`.

    ``image`` is the perturbed image of size `above`, at which two logits are equal; None without.
    """

    below: float
    above: float
    image: Tensor | None

    @property
    def gap(self) -> float:
        """How far apart the two are, as a share of the larger."""
        return 1 - self.below / self.above if self.above > 0 else 0.0


def smallest(
    bounding: Bounding,
    program: Program,
    image: Tensor,
    label: int,
    radius: float,
    seconds: float,
) -> Smallest:
    """The exact smallest perturbation in linf that changes the class of an image.

    Radii are doubled until a perturbation is found: within a small radius few signs are unknown.

    Parameters
    ----------
    bounding, program
        The network.
    image, label
        One image ``[channels, height, width]`` that is classified correctly.
    radius : float
        The first radius that is searched.
    seconds : float
        Time limit in all.
    """
    end = perf_counter() + seconds
    low, high = bounding.victim.box
    proved = 0.0
    labels = torch.tensor([label], device=image.device)
    others = [k for k in range(bounding.graph.classes) if k != label]
    while True:
        region = Region.of(image[None], radius, Linf, (low, high))
        relaxed = crown(bounding.graph, region)
        least = margin_bounds(bounding.graph, relaxed, labels)[0]
        # The most promising class first: its distance limits the search for the others.
        order = [int(k) for k in least.argsort() if float(least[k]) <= 1e-6]
        best, below, found = math.inf, math.inf, None
        for k in order:
            left = end - perf_counter()
            if left <= 0:
                below = min(below, proved)
                continue
            limit = min(radius, best)
            under, above, point = program.solve(
                image, label, others[k], limit, (low, high), relaxed.bounds, left
            )
            below = min(below, max(under, proved))
            if above < best:
                best, found = above, point
        if math.isfinite(best):
            return Smallest(min(below, best), best, found)
        # A solver may also give up before: only where no class is within reach is a radius proved.
        if below < radius or perf_counter() >= end:
            return Smallest(min(below, radius), math.inf, None)
        proved = radius
        if radius >= high - low:
            return Smallest(proved, math.inf, None)
        radius = min(2 * radius, high - low)


class Exact(Method):
    """The smallest perturbation in linf, with the bounds between which it lies."""

    name: ClassVar[str] = "exact"
    norms: ClassVar[tuple[Norm, ...]] = (Linf,)
    late: ClassVar[bool] = True

    def check(self, victim: Victim, samples: Samples) -> None:
        """Refuse a victim without bounds, with max-pooling, or too large for a program."""
        graph = Bounding.of(victim, samples.images).graph
        if graph.units > MOST_UNITS:
            raise BoundError(
                f"'{victim.name}' has {graph.units:,} ReLUs, too many for an exact search (at most "
                f"{MOST_UNITS:,}): write --method complete"
            )
        Program.of(graph)

    def prove(self, order: Order, some: Opened, found: Certificates) -> None:
        """One image after the other, since each is a program of its own."""
        eps, program = order.threat.radius, Program.of(some.bounding.graph)
        for at, row in enumerate(some.rows.tolist()):
            image, label = some.images[at], int(some.labels[at])
            one = smallest(some.bounding, program, image, label, eps, order.seconds)
            found.below[row], found.above[row] = one.below, one.above
            if one.below > eps * (1 + 1e-5):
                found.outcome[row] = PROVED
            elif one.image is not None and self._breaks(order, image, label, one):
                found.outcome[row] = BROKEN
            else:
                found.outcome[row] = OPEN
            found.regions[row] = 1

    def _breaks(self, order: Order, image: Tensor, label: int, one: Smallest) -> bool:
        """Whether the victim misclassifies what was found, within the budget."""
        assert one.image is not None
        longer = (one.image.to(image) - image) * (1 + BEYOND)
        point = (image + longer).clamp(*order.victim.box)
        if float((point - image).abs().max()) > order.threat.radius:
            return False
        return int(order.victim(point[None]).argmax()) != label


METHODS.add(Exact.name, Exact())

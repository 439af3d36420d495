"""The methods that certify images, by name: one file each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pkgutil import iter_modules
from typing import ClassVar

import torch
from torch import Tensor

from besiege.bounds.bounding import Bounding, must_fit
from besiege.bounds.votes import Poll
from besiege.core.errors import InputError, ThreatError
from besiege.core.oracle import full_precision
from besiege.core.registry import Registry
from besiege.core.samples import Samples
from besiege.core.threat import L1, L2, Linf, Norm, Threat
from besiege.core.victim import Victim
from besiege.defenses.counting import must_suffice

PROVED, BROKEN, OPEN = 0, 1, 2
OUTCOMES = ("proved", "broken", "open")
"""The words for these codes: no image within the budget is misclassified; one is known that is; or
neither is known. An image that is misclassified without a perturbation is broken."""
STEPS = 8
"""Radii of the curve are multiples of this share of the budget,"""
FARTHEST = 16
"""up to this many of them."""

METHODS: Registry[Method] = Registry(
    "certificate",
    tuple(f"{__name__}.{module.name}" for module in iter_modules(__path__)),
    group="besiege.certificates",
)


@dataclass(frozen=True)
class Order:
    """What is to be certified.

    Attributes
    ----------
    victim : Victim
        The model.
    samples : Samples
        Images, labels and ids.
    threat : Threat
        The budget and its norm.
    open : Tensor
        Which images are classified correctly and not broken by an attack, ``[rows]``.
    curve : Tensor
        For which images radii besides the budget are wanted, ``[rows]``.
    seconds : float
        The time limit of each image, for methods that have one.
    seed : int
        Seed of every random number.
    poll : Poll
        How many votes are counted, for smoothing.
    batch : int, optional
        Images per call of the model, for methods that call it; it changes no result on a CPU.
    tick : callable, optional
        Called with the work that is done and all of it, by methods that take long.
    """

    victim: Victim
    samples: Samples
    threat: Threat
    open: Tensor
    curve: Tensor
    seconds: float = 10.0
    seed: int = 0
    poll: Poll = Poll()
    batch: int | None = None
    tick: Callable[[int, int], None] | None = None


@dataclass(frozen=True, eq=False)
class Certificates:
    """What is known about some images, ``[rows]`` each.

    Attributes
    ----------
    outcome : Tensor
        `PROVED`, `BROKEN` or `OPEN`.
    margin : Tensor
        Lower bound of the smallest margin within the budget; NaN where none was computed.
    radius : Tensor
        The largest radius tried for which there is a proof, 0 for none, NaN where only the
        budget was tried and not proved.
    below, above : Tensor
        Between which the exact smallest perturbation lies; NaN for methods that do not find it.
    regions : Tensor
        Into how many regions the images within the budget were split.
    chosen, hits : Tensor, optional
        The class that votes chose, and how many fresh votes it has; None without votes.
    """

    outcome: Tensor
    margin: Tensor
    radius: Tensor
    below: Tensor
    above: Tensor
    regions: Tensor
    chosen: Tensor | None = None
    hits: Tensor | None = None

    @classmethod
    def before(cls, order: Order) -> Certificates:
        """Those of an order before any work: images that are not open are broken."""
        rows = len(order.samples)
        unknown = torch.full((rows,), torch.nan, dtype=torch.float64)
        open_ = order.open.cpu()
        return cls(
            torch.where(open_, OPEN, BROKEN),
            unknown.clone(),
            torch.where(open_, unknown, 0.0),
            unknown.clone(),
            unknown.clone(),
            torch.zeros(rows, dtype=torch.int64),
        )


@dataclass(frozen=True, eq=False)
class Opened:
    """The images of an order that are open, and the network whose answers are bounded.

    Attributes
    ----------
    rows : Tensor
        Where they are in the order, ``[open]``.
    images, labels : Tensor
        The images and their labels.
    bounding : Bounding
        The network.
    """

    rows: Tensor
    images: Tensor
    labels: Tensor
    bounding: Bounding

    @cached_property
    def needed(self) -> Tensor:
        """What the bound of a margin must exceed to be a proof, ``[open]``."""
        return self.bounding.needed(self.images)


class Method:
    """One way to certify images; a file of this package registers an object of it.

    Attributes
    ----------
    name : str
        Its name.
    norms : tuple of Norm
        The norms of budgets that it is about.
    late : bool
        Whether it runs after the attacks, on what they left, because a proof takes seconds.
    work : float
        Estimated forward passes for one image, for the time that is left.
    """

    name: ClassVar[str]
    norms: ClassVar[tuple[Norm, ...]] = (Linf, L2, L1)
    late: ClassVar[bool] = False
    work: ClassVar[float] = 200.0

    def check(self, victim: Victim, samples: Samples) -> None:
        """Refuse a victim that it cannot certify, before any work."""
        Bounding.of(victim, samples.images)

    def certify(self, order: Order) -> Certificates:
        """Do the work: nothing for images that are broken, and `prove` for the others."""
        found = Certificates.before(order)
        rows = order.open.nonzero()[:, 0]
        if not len(rows):
            return found
        # What was made in a caller's inference mode has no gradients.
        images, labels = order.samples.images[rows].clone(), order.samples.labels[rows]
        bounding = Bounding.of(order.victim, images)
        with full_precision(images.device), order.victim.held():
            self.prove(order, Opened(rows, images, labels, bounding), found)
        return found

    def prove(self, order: Order, some: Opened, found: Certificates) -> None:
        """Write what is known of the images that are open into `found`."""
        raise NotImplementedError


def must_certify(
    name: str,
    victim: Victim,
    samples: Samples,
    threat: Threat,
    seconds: float,
    poll: Poll | None = None,
) -> None:
    """Refuse a certification that cannot be done, before any work."""
    method = METHODS.get(name)
    must_fit(threat)
    if threat.norm not in method.norms:
        known = ", ".join(map(str, method.norms))
        raise ThreatError(f"the certificate '{name}' is for {known}, not for {threat.norm}")
    if not seconds > 0:
        raise InputError(
            f"the time limit is {seconds:g} seconds, but a proof takes time: write for example 10"
        )
    if poll is not None:
        must_suffice(poll.n0, poll.n, poll.alpha)
    method.check(victim, samples)


def largest_radii(
    proves: Callable[[Tensor, Tensor], Tensor], first: Tensor, wanted: Tensor
) -> Tensor:
    """The largest radius that is proved, in eighths of the budget, by bisection.

    Parameters
    ----------
    proves : callable
        From rows and numbers of eighths to whether these radii are proved.
    first : Tensor
        Whether the budget itself, 8 eighths, is proved, ``[rows]``.
    wanted : Tensor
        For which rows other radii are tried, ``[rows]``.

    Returns
    -------
    Tensor
        0 to 16 eighths; it is proved itself. Others than `wanted` have 8 or 0.
    """
    low = torch.where(first, STEPS, 0)
    high = torch.where(first, FARTHEST + 1, STEPS)
    while len(rows := (wanted & (high - low > 1)).nonzero()[:, 0]):
        middle = (low[rows] + high[rows]) // 2
        proved = proves(rows, middle)
        low[rows] = torch.where(proved, middle, low[rows])
        high[rows] = torch.where(proved, high[rows], middle)
    return low

"""The methods that certify images, by name: one file each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import iter_modules
from typing import ClassVar

import torch
from torch import Tensor

from besiege.core.errors import InputError, ThreatError
from besiege.core.registry import Registry
from besiege.core.samples import Samples
from besiege.core.threat import L1, L2, Linf, Norm, Threat
from besiege.core.victim import Victim

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
    """

    victim: Victim
    samples: Samples
    threat: Threat
    open: Tensor
    curve: Tensor
    seconds: float = 10.0
    seed: int = 0


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
    """

    outcome: Tensor
    margin: Tensor
    radius: Tensor
    below: Tensor
    above: Tensor
    regions: Tensor

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
        raise NotImplementedError

    def certify(self, order: Order) -> Certificates:
        """Do the work."""
        raise NotImplementedError


def must_certify(
    name: str, victim: Victim, samples: Samples, threat: Threat, seconds: float
) -> None:
    """Refuse a certification that cannot be done, before any work."""
    from besiege.bounds.bounding import must_fit

    method = METHODS.get(name)
    must_fit(threat)
    if threat.norm not in method.norms:
        known = ", ".join(map(str, method.norms))
        raise ThreatError(f"the certificate '{name}' is for {known}, not for {threat.norm}")
    if not seconds > 0:
        raise InputError(
            f"the time limit is {seconds:g} seconds, but a proof takes time: write for example 10"
        )
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

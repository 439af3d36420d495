"""Radii of the balls that training images are crafted in, as frozen values with a text form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor

from besiege.core.dice import Dice
from besiege.core.fields import check_fields, number, one_of
from besiege.core.registry import Registry
from besiege.core.vocabulary import Vocabulary

RADII: Registry[type[TrainingRadius]] = Registry("radius", ("besiege.training.radii",))
LANGUAGE = Vocabulary(RADII)
T = TypeVar("T", bound="type[TrainingRadius]")


class TrainingRadius:
    """How large a budget each image is given, within that of the recipe's threat."""

    __post_init__ = check_fields

    def check(self, full: float) -> None:
        """Refuse settings that do not fit the budget of the threat."""

    def __call__(self, full: float, dice: Dice) -> Tensor:
        """The radius of every image, float64 ``[rows]``, given the budget of the threat."""
        raise NotImplementedError

    def __str__(self) -> str:
        return LANGUAGE.text(self)


def radius(name: str) -> Callable[[T], T]:
    """Register a radius under a name of the text form."""
    return RADII.register(name)


@radius("whole")
@dataclass(frozen=True)
class Whole(TrainingRadius):
    """The whole budget for every image."""

    def __call__(self, full: float, dice: Dice) -> Tensor:
        return torch.full((len(dice),), full, dtype=torch.float64, device=dice.key.device)


@radius("half_normal")
@dataclass(frozen=True)
class HalfNormal(TrainingRadius):
    """The absolute value of a normal draw, another for every image (Kurakin et al. 2017).

    Parameters
    ----------
    sigma, cap : float
        Standard deviation before the cut, and largest radius, in the units of the threat.
    draw : {"truncated", "clipped"}
        'truncated' draws again what exceeds the cap, as published. 'clipped' sets it to the cap,
        as DEEPSEC's code does, so that a share of all images has exactly the cap.
    """

    sigma: float = number(8 / 255, above=0)
    cap: float = number(16 / 255, above=0)
    draw: Literal["truncated", "clipped"] = one_of("truncated", "clipped")

    def check(self, full: float) -> None:
        if self.cap > full * (1 + 1e-9):
            raise ValueError(
                f"the radii of '{self}' go up to {self.cap:g}, but the threat's budget is "
                f"{full:g}: give the threat the larger one"
            )

    def __call__(self, full: float, dice: Dice) -> Tensor:
        if self.draw == "clipped":
            normal = dice.of("radius").normal((1,))[:, 0].double().abs()
            return (self.sigma * normal).clamp_max(self.cap)
        # By the inverse of the distribution function: a truncated draw without drawing again.
        share = dice.of("radius").uniform((1,))[:, 0].double()
        most = torch.erf(torch.tensor(self.cap / self.sigma / 2**0.5, dtype=torch.float64))
        return (self.sigma * 2**0.5 * torch.erfinv(share * most)).clamp_max(self.cap)


whole = Whole()

"""Layers in front of a victim: the real transformation forward, its own surrogate backward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from os.path import dirname
from pkgutil import iter_modules
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from besiege.core.dice import Dice
from besiege.core.registry import Registry
from besiege.core.resizing import random_resize_pad
from besiege.core.vocabulary import Vocabulary

LAYERS: Registry[Any] = Registry(
    "defense",
    tuple(f"besiege.defenses.{module.name}" for module in iter_modules([dirname(__file__)])),
)
LANGUAGE = Vocabulary(LAYERS)
T = TypeVar("T", bound="type[Layer]")


class Layer(ABC):
    """A transformation of images, as a frozen dataclass.

    `transform` is what is deployed. Where it has no useful gradient, `surrogate` is a
    differentiable map close to it, and the backward pass goes through that (BPDA, Athalye et al.
    2018): how a defense is attacked best is a property of the defense.
    """

    stochastic: ClassVar[bool] = False

    @abstractmethod
    def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        """What the victim sees of the images."""

    def surrogate(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor | None:
        """A differentiable stand-in, or None where the transformation itself is differentiable."""
        return None

    def __call__(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        """Transformed images whose gradient is the surrogate's where there is one."""
        if not (torch.is_grad_enabled() and x.requires_grad):
            return self.transform(x, box, dice)
        stand_in = self.surrogate(x, box, dice)
        if stand_in is None:
            return self.transform(x, box, dice)
        with torch.no_grad():
            real = self.transform(x, box, dice)
        passed: Tensor = _Straight.apply(stand_in, real)  # type: ignore[no-untyped-call]
        return passed

    def __str__(self) -> str:
        return LANGUAGE.text(self)


class _Straight(torch.autograd.Function):
    """Exactly the real value forward; ``x + (t - x).detach()`` would round."""

    @staticmethod
    def forward(ctx: Any, stand_in: Tensor, real: Tensor) -> Tensor:
        return real.clone()

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None]:
        return gradient[0], None


def layer(name: str) -> Callable[[T], T]:
    """Register a layer under a name of the text form."""
    return LAYERS.register(name)


@layer("bits")
@dataclass(frozen=True)
class BitDepth(Layer):
    """Pixels rounded to ``2**depth`` values, both ends of the box included (Xu et al. 2018).

    Rounding has no gradient; the surrogate is the identity.
    """

    depth: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.depth <= 16:
            raise ValueError(f"the depth is {self.depth!r}, but 1 to 16 bits make sense")

    def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        low, width = box[0], box[1] - box[0]
        levels = 2.0**self.depth - 1.0
        return torch.round((x - low) / width * levels) / levels * width + low

    def surrogate(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor | None:
        return x


@layer("resize_pad")
@dataclass(frozen=True)
class ResizePad(Layer):
    """Random shrinking and zero padding back to the input size, anew for every image.

    The height is uniform over the whole numbers from `least` of it up to all of it, the place
    uniform over those that fit, so that "nothing happens" is one of the outcomes
    (Xie et al. 2018; the range is RealSafe's).
    """

    least: float = 0.875
    stochastic = True

    def __post_init__(self) -> None:
        if not 0 < self.least <= 1:
            raise ValueError(f"the smallest share is {self.least!r}, but (0, 1] is the range")

    def transform(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        return random_resize_pad(x, dice, self.least)

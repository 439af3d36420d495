"""Layers in front of a victim: the real transformation forward, its own surrogate backward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from os.path import dirname
from pkgutil import iter_modules
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from besiege.core.cells import Cells, are_aligned, are_kept
from besiege.core.dice import Dice
from besiege.core.errors import InputError
from besiege.core.identity import fingerprint, plain
from besiege.core.registry import Registry
from besiege.core.victim import Victim
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
    revision: ClassVar[int] = 1
    """Of a shipped layer, part of the digest: raised when the same text gives other images."""

    @property
    def parts(self) -> Sequence[Victim | nn.Module]:
        """The networks inside: they are moved, put to evaluation mode and digested with it."""
        return ()

    @property
    def has_surrogate(self) -> bool:
        """Whether gradients are those of a surrogate, and not of the transformation itself."""
        return type(self).surrogate is not Layer.surrogate

    def identity(self) -> str:
        """What decides the images it makes, as part of a digest.

        Of a shipped layer its text and revision; of another one also its source.
        """
        inside = [_digest(part) for part in self.parts]
        if type(self).__module__.startswith("besiege.defenses."):
            return "\n".join([f"{self}, revision {self.revision}", *inside])
        return "\n".join([plain(self), *inside])

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
        return straight(stand_in, real)

    def __str__(self) -> str:
        return LANGUAGE.text(self)


class Unclamped(Layer):
    """A layer whose images may leave the box, such as noise that is Gaussian everywhere."""


class Rounding(Layer):
    """A layer that shows every pixel value, each on its own, as one of a few."""

    @abstractmethod
    def cells(self, box: tuple[float, float]) -> Cells | None:
        """The cells of pixel values that it does not tell apart; None for too many to search."""

    def __call__(self, x: Tensor, box: tuple[float, float], dice: Dice) -> Tensor:
        """Rounded images whose gradient is the surrogate's, or zero where a search keeps cells."""
        shown = super().__call__(x, box, dice)
        if shown.requires_grad and are_aligned() and are_kept(cells_of(self, box)):
            return straight(0 * shown, shown.detach())
        return shown


def cells_of(layer: Layer, box: tuple[float, float]) -> Cells | None:
    """The cells of a layer that rounds, always alike; None of anything else."""
    if not isinstance(layer, Rounding) or layer.stochastic:
        return None
    try:
        found = _cells(layer, box)
    except TypeError:  # a layer that has no hash, such as one with a list
        found = layer.cells(box)
    if not (found is None or isinstance(found, Cells)):
        raise InputError(
            f"cells() of {type(layer).__name__} returned a {type(found).__name__}: return "
            "besiege.core.cells.Cells, or None"
        )
    return found


@lru_cache(maxsize=64)
def _cells(layer: Rounding, box: tuple[float, float]) -> Cells | None:
    return layer.cells(box)


def _digest(part: Victim | nn.Module) -> str:
    return part.digest() if isinstance(part, Victim) else fingerprint(part)


def straight(stand_in: Tensor, real: Tensor) -> Tensor:
    """Exactly the real value, with the gradient of its stand-in."""
    passed: Tensor = _Straight.apply(stand_in, real)  # type: ignore[no-untyped-call]  # torch
    return passed


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


# The text of this class is part of the digests of records: an edit changes their keys. The layer

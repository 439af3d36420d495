"""Modules that draw random numbers inside a network, repeatably: `Draws`, and `Noise`.

In evaluation mode a module draws from the dice that its `Classifier` was given, so that an answer
depends on seed, image and number of the query only: not on the batch, its order or the device. In
training mode it draws as dropout does, from torch's own generator.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from besiege.core.dice import Dice
from besiege.core.errors import VictimError


class Draws(nn.Module):
    """Base class of modules that draw.

    A `Classifier` around a network with such a module is stochastic. It hands every drawing module
    a stream of its own before each forward pass, and takes it back afterwards.

    Examples
    --------
    >>> class Flicker(Draws):
    ...     def forward(self, x):
    ...         return x * (self.uniform(x) < 0.9)
    """

    # A slot, not an attribute: dice are no part of the module's state, digest or copies.
    __slots__ = ("_dice",)
    _dice: Dice | None

    def normal(self, x: Tensor) -> Tensor:
        """Standard normals in the shape and on the device of features ``[rows, ...]``."""
        if self.training:
            return torch.randn_like(x)
        return self._stream(x).normal(tuple(x.shape[1:])).to(x.dtype)

    def uniform(self, x: Tensor) -> Tensor:
        """Uniforms in [0, 1) in the shape and on the device of features ``[rows, ...]``."""
        if self.training:
            return torch.rand_like(x)
        return self._stream(x).uniform(tuple(x.shape[1:])).to(x.dtype)

    def _stream(self, x: Tensor) -> Dice:
        dice: Dice | None = getattr(self, "_dice", None)
        if dice is None:
            raise VictimError(
                f"{type(self).__name__} draws, and was given no dice: in evaluation mode ask the "
                "network as besiege.Classifier(net)(x, dice)"
            )
        if len(dice) != len(x):
            raise VictimError(
                f"{type(self).__name__} draws for {len(x)} rows, but there are {len(dice)} images: "
                "a drawing module needs features with one row per image"
            )
        # A module that is used again, or draws twice, must not repeat itself.
        self._dice = dice.of("next")
        return dice

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()


class Noise(Draws):
    """Adds Gaussian noise to features, in training and in evaluation mode (RSE, Liu et al. 2018).

    Parameters
    ----------
    sigma : float
        Standard deviation, in units of the features.
    """

    def __init__(self, sigma: float) -> None:
        super().__init__()
        if not 0 <= sigma < float("inf"):
            raise ValueError(f"sigma is {sigma!r}, but a standard deviation is 0 or more")
        self.sigma = float(sigma)

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[rows, ...]`` plus noise, as a new tensor."""
        return x + self.sigma * self.normal(x)

    def extra_repr(self) -> str:
        """The argument, as `print(net)` shows it."""
        return f"sigma={self.sigma}"


def drawing(module: nn.Module) -> list[Draws]:
    """The drawing modules of a network, in the order in which it lists its parts."""
    return [part for part in module.modules() if isinstance(part, Draws)]


@contextmanager
def given(parts: list[Draws], dice: Dice | None) -> Iterator[None]:
    """Give every drawing module a stream of its own, and take it back afterwards."""
    try:
        if dice is not None:
            for place, part in enumerate(parts):
                part._dice = dice.of("module", place)
        yield
    finally:
        for part in parts:
            part._dice = None

"""What several disguises share: the bare network, wrong gradients, and stored test images."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from besiege.data import load as load_data
from besiege.models.sources import load as load_model

BARE = "zoo:digits-natural"
"""The network behind every disguise."""
CLASSES = 10
PIXELS = 64


def bare() -> nn.Module:
    """A new copy of the network behind every disguise."""
    return deepcopy(_loaded())


@cache
def _loaded() -> nn.Module:
    return load_model(BARE).module.eval()


@cache
def test_images() -> Tensor:
    """All test images of digits; callers copy them before they keep them."""
    return load_data("digits").images


class Disguise(nn.Module):
    """A module around the bare network.

    Parameters
    ----------
    net : nn.Module
        Maps images to logits.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def logits(self, x: Tensor) -> Tensor:
        """The bare network's logits."""
        answer: Tensor = self.net(x)
        return answer


class _Backward(torch.autograd.Function):
    """The identity, with another function in place of its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.change(grads[0]), None


def with_gradient(x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """The same tensor; gradients that flow back through it are changed."""
    answer: Tensor = _Backward.apply(x, change)  # type: ignore[no-untyped-call]  # torch's
    return answer


def same_gradient(x: Tensor, value: Tensor) -> Tensor:
    """`value` forward; backward as if it were `x` (the straight-through surrogate)."""
    return x + (value - x).detach()


def winners(logits: Tensor, height: float = 1.0) -> Tensor:
    """`height` for the largest logit of each row, 0 for the others; constant, no gradient."""
    hot = functional.one_hot(logits.detach().argmax(1), logits.shape[1])
    return height * hot.to(logits.dtype)


class Stored(nn.Module):
    """The test images, which a disguise compares its input with."""

    images: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("images", test_images().clone())

    def nearest(self, x: Tensor) -> Tensor:
        """The stored image nearest to each image, in l2."""
        gaps = (x.detach()[:, None] - self.images[None]).flatten(2).square().sum(2)
        return self.images[gaps.argmin(1)]

    def shrunk(self, x: Tensor, share: float) -> Tensor:
        """Images whose distance to the nearest stored image is multiplied by `share`.

        The label of almost no image within the budget changes then: this looks robust.
        """
        centre = self.nearest(x)
        return centre + share * (x - centre)

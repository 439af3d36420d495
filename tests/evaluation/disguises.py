"""The natural digits net in disguise: what an examination must find, and what it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Change = Callable[[Tensor], Tensor]
Disguise = Callable[[nn.Module], nn.Module]


class _Backward(torch.autograd.Function):
    """The identity, whose gradient is changed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Change) -> Tensor:
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.change(gradient[0]), None


class Around(nn.Module):
    """Changes the images, the gradient of the images, or the answers of a network."""

    def __init__(
        self,
        net: nn.Module,
        before: Change | None = None,
        after: Callable[[Tensor, Tensor], Tensor] | None = None,
        backward: Change | None = None,
    ) -> None:
        super().__init__()
        self.net, self.before, self.after, self.backward_change = net, before, after, backward

    def forward(self, x: Tensor) -> Tensor:
        given = x
        if self.backward_change is not None:
            given = _Backward.apply(x, self.backward_change)  # type: ignore[no-untyped-call]
        if self.before is not None:
            given = self.before(given)
        logits: Tensor = self.net(given)
        return logits if self.after is None else self.after(logits, x)


def junk(gradient: Tensor) -> Tensor:
    source = torch.Generator().manual_seed(int(float(gradient.abs().sum()) * 1e4) % 2**31)
    return torch.randn(gradient.shape, generator=source) * gradient.std()


def on_half(factor: float) -> Change:
    """The gradient of the left half of the image multiplied by a factor."""

    def change(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        gradient[..., : gradient.shape[-1] // 2] *= factor
        return gradient

    return change


def straight(change: Change) -> Change:
    """A change whose gradient is that of the identity."""
    return lambda x: x + (change(x) - x).detach()


def waves(z: Tensor, x: Tensor) -> Tensor:
    """Small waves of high frequency added to the answers."""
    phases = 7.0 * torch.arange(z.shape[1])
    return z + 0.1 * torch.sin(5000.0 * x.flatten(1)[:, None] + phases[:, None]).sum(2)


def hashed(z: Tensor, x: Tensor) -> Tensor:
    """Noise that is a function of the exact image."""
    key = (x.detach().double().flatten(1) * 1e6).frac().sum(1)
    factors = torch.arange(z.shape[1]) + 1.0
    return z + 2 * torch.sin(key[:, None] * 12345.678 * factors).float()


def off_grid(change: Change) -> Callable[[Tensor, Tensor], Tensor]:
    """Other answers to images off the grid of the digits, 1/16."""

    def after(z: Tensor, x: Tensor) -> Tensor:
        off = ((x * 16 - (x * 16).round()).abs() > 1e-3).flatten(1).any(1)
        return torch.where(off[:, None], change(z), z)

    return after


class Memory(nn.Module):
    """Answers images near an earlier one with the earlier answer."""

    def __init__(self, net: nn.Module, radius: float) -> None:
        super().__init__()
        self.net, self.radius = net, radius
        self.seen: Tensor | None = None
        self.answers: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.net(x)
        flat = x.detach().flatten(1)
        if self.seen is None or self.answers is None:
            self.seen, self.answers = flat, z.detach()
            return z
        nearest, which = (flat[:, None] - self.seen[None]).abs().amax(2).min(1)
        z = torch.where((nearest < self.radius)[:, None], self.answers[which] + 0 * z, z)
        new = nearest >= self.radius
        self.seen = torch.cat([self.seen, flat[new]])
        self.answers = torch.cat([self.answers, z.detach()[new]])
        return z


class Late(nn.Module):
    """Answers differently after so many images."""

    def __init__(self, net: nn.Module, after: int) -> None:
        super().__init__()
        self.net, self.after, self.count = net, after, 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += len(x)
        z: Tensor = self.net(x)
        return z if self.count < self.after else z.roll(1, 1)


class Alternating(nn.Module):
    """Every second call is answered differently."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.calls = net, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        z: Tensor = self.net(x)
        return z + 0.5 * (self.calls % 2) * torch.arange(z.shape[1])


def first_row(z: Tensor, x: Tensor) -> Tensor:
    return torch.cat([z[:1].roll(1, 1), z[1:]])


def in_grad_mode(z: Tensor, x: Tensor) -> Tensor:
    return z.roll(1, 1) if torch.is_grad_enabled() else z


def with_gradient(z: Tensor, x: Tensor) -> Tensor:
    return 0.3 * z if x.requires_grad else z


def larger_than(rows: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda z, x: z if len(x) <= rows else z + 0.1 * z.roll(1, 1)


def of(**parts: Any) -> Disguise:
    return lambda net: Around(net, **parts)


GRADIENTS: dict[str, tuple[Disguise, str, str]] = {
    "junk": (of(backward=junk), "W45", "it is wrong"),
    "negated": (of(backward=lambda g: -g), "W45", "reversed"),
    "half": (of(backward=on_half(0.0)), "W45", "partial"),
    "half scaled": (of(backward=on_half(0.05)), "W45", "partial"),
    "half reversed": (of(backward=on_half(-1.0)), "W45", ""),
    "zero": (of(backward=lambda g: 0 * g), "W45", "vanishing"),
    "underflowing": (of(backward=lambda g: 1e-42 * g), "W45", "vanishing"),
    "scaled": (of(backward=lambda g: 1e-3 * g), "W45", "wrong in length"),
    "shattered images": (
        of(before=lambda x: x + 0.02 * torch.sin(500 * x)),
        "W12",
        "shattered",
    ),
    "shattered answers": (of(after=waves), "W12", "shattered"),
    "hashed noise": (of(after=hashed), "W45", "jump"),
    "rounded images": (of(before=straight(lambda x: (4 * x).round() / 4)), "W45", "jump"),
    "stairs with a leak": (
        of(before=lambda x: (8 * x).round() / 8 + 1e-3 * x),
        "W45",
        "jump",
    ),
}
"""Disguises that the checks of the gradients find, with rule and word."""

SAMENESS: dict[str, tuple[Disguise, str, str]] = {
    "memory": (lambda net: Memory(net, 0.1), "W46", "stateful"),
    "late": (lambda net: Late(net, 100), "W46", "stateful"),
    "alternating": (Alternating, "W46", "stateful"),
    "batch mean": (of(after=lambda z, x: z - z.mean(0)), "W46", "neighbours"),
    "batch of one": (of(after=larger_than(1)), "W46", "size of the batch"),
    "batch of 100": (of(after=larger_than(100)), "W46", "size of the batch"),
    "first row": (of(after=first_row), "W46", "place in the batch"),
    "grad mode": (of(after=in_grad_mode), "W46", "gradient-dependent"),
    "requires grad": (of(after=with_gradient), "W46", "gradient-dependent"),
    "batch norm in training mode": (
        of(before=lambda x: 0.3 * F.batch_norm(x, None, None, training=True) + 0.3),
        "W46",
        "neighbours",
    ),
    "dropout": (of(before=lambda x: F.dropout(x, 0.1)), "W14", "stochastic"),
}
"""Disguises of which an image has more than one answer."""

NEARBY: dict[str, tuple[Disguise, str, str]] = {
    "nan": (of(after=off_grid(lambda z: z * torch.nan)), "W47", "off the grid"),
    "infinity": (of(after=off_grid(lambda z: z + torch.inf)), "W47", "off the grid"),
    "zeros": (of(after=off_grid(lambda z: 0 * z)), "W47", "do not change"),
    "other scale": (of(after=off_grid(lambda z: 100 * z)), "W47", "jump"),
    "offset": (of(after=off_grid(lambda z: z + 10 * torch.eye(10)[3])), "W47", "jump"),
    "tanh": (of(after=lambda z, x: torch.tanh(20 * z)), "W47", "saturated"),
    "sharp softmax": (of(after=lambda z, x: torch.softmax(100 * z, 1)), "W47", "probabilities"),
    "sign": (
        of(after=lambda z, x: straight(torch.sign)(z - z.mean(1, keepdim=True))),
        "W47",
        "do not change",
    ),
    "stairs": (of(before=straight(lambda x: (4 * x).round() / 4)), "W47", "in steps"),
    "large offset": (of(after=lambda z, x: z + 1e7), "W47", "float32 loses"),
}
"""Disguises whose answers near the images are none."""

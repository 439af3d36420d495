"""The operations that have bounds, and how linear functions pass through each of them.

A linear function of the values after an operation is a tensor ``[functions, *shape]``. Affine
operations turn it into one of the values before (`Affine.transposed`) and a constant. They map the
middle of an interval exactly and its half-width by their absolute weights (`Affine.spread`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Shape = tuple[int, ...]


class Operation:
    """What happens at one node of a graph."""

    mixes = False
    """Whether a value after it depends on several values before it."""

    def __call__(self, *values: Tensor) -> Tensor:
        """The values after the operation, ``[rows, *shape]``."""
        raise NotImplementedError


class Affine(Operation):
    """An affine function of one or more tensors."""

    def spread(self, *radii: Tensor) -> Tensor:
        """Half-widths after the operation, of half-widths before it."""
        raise NotImplementedError

    def transposed(self, functions: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        """Linear functions of the values after it as such of each of the values before it."""
        raise NotImplementedError

    def constant(self, functions: Tensor, shapes: Sequence[Shape]) -> Tensor | None:
        """What the functions are where the values before are zero; None for zero."""
        return None

    def single(self, values: Tensor, shape: Shape, before: Sequence[Shape]) -> list[Tensor]:
        """Single values after it, by their numbers, as functions of the values before.

        This is `transposed` of rows of the unit matrix, which some operations need not multiply.
        """
        units = torch.zeros(len(values), math.prod(shape), device=values.device, dtype=self.dtype)
        units[torch.arange(len(values), device=values.device), values] = 1.0
        return self.transposed(units.reshape(len(values), *shape), before)

    @property
    def dtype(self) -> torch.dtype:
        """The precision of functions that it is the first to see."""
        return torch.float32


@dataclass(frozen=True, eq=False)
class Constant(Operation):
    """A tensor that does not depend on the image, ``[1, *shape]``."""

    value: Tensor

    def __call__(self, *values: Tensor) -> Tensor:
        return self.value


@dataclass(frozen=True, eq=False)
class Linear(Affine):
    """``x W' + b``, over the last dimension."""

    weight: Tensor
    bias: Tensor | None
    mixes = True

    def __call__(self, *values: Tensor) -> Tensor:
        return functional.linear(values[0], self.weight, self.bias)

    def spread(self, *radii: Tensor) -> Tensor:
        return functional.linear(radii[0], self.weight.abs())

    def transposed(self, functions: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        return [functions @ self.weight]

    def constant(self, functions: Tensor, shapes: Sequence[Shape]) -> Tensor | None:
        if self.bias is None:
            return None
        return (functions @ self.bias).reshape(len(functions), -1).sum(1)

    def single(self, values: Tensor, shape: Shape, before: Sequence[Shape]) -> list[Tensor]:
        if len(shape) > 1:
            return super().single(values, shape, before)
        return [self.weight[values]]

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype


@dataclass(frozen=True, eq=False)
class Convolution(Affine):
    """A convolution of images."""

    weight: Tensor
    bias: Tensor | None
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    mixes = True

    def __call__(self, *values: Tensor) -> Tensor:
        return self._convolved(values[0], self.weight, self.bias)

    def spread(self, *radii: Tensor) -> Tensor:
        return self._convolved(radii[0], self.weight.abs(), None)

    def _convolved(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        where = (self.stride, self.padding, self.dilation, self.groups)
        return functional.conv2d(x, weight, bias, *where)

    def transposed(self, functions: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        kernel = self.weight.shape[2:]
        # A stride may skip the last rows and columns: they come back as output padding.
        missing = [
            size - ((out - 1) * stride - 2 * padding + dilation * (width - 1) + 1)
            for size, out, stride, padding, dilation, width in zip(
                *(shapes[0][1:], functions.shape[2:], self.stride),
                *(self.padding, self.dilation, kernel),
                strict=True,
            )
        ]
        return [
            functional.conv_transpose2d(
                functions,
                self.weight,
                None,
                self.stride,
                self.padding,
                (missing[0], missing[1]),
                self.groups,
                self.dilation,
            )
        ]

    def constant(self, functions: Tensor, shapes: Sequence[Shape]) -> Tensor | None:
        return None if self.bias is None else functions.sum((2, 3)) @ self.bias

    def single(self, values: Tensor, shape: Shape, before: Sequence[Shape]) -> list[Tensor]:
        if self.groups > 1:
            return super().single(values, shape, before)
        # A value reads one window: its weights are put there, in an image with its padding.
        channel, place = values // (shape[1] * shape[2]), values % (shape[1] * shape[2])
        corner = (place // shape[2] * self.stride[0], place % shape[2] * self.stride[1])
        height, width = self.weight.shape[2:]
        device = values.device
        down = corner[0][:, None] + self.dilation[0] * torch.arange(height, device=device)
        right = corner[1][:, None] + self.dilation[1] * torch.arange(width, device=device)
        channels, *size = before[0]
        tall, wide = (n + 2 * p for n, p in zip(size, self.padding, strict=True))
        padded = self.weight.new_zeros((len(values), channels, tall, wide))
        every = torch.arange(len(values), device=device)[:, None, None, None]
        inside = torch.arange(channels, device=device)[:, None, None]
        padded[every, inside, down[:, None, :, None], right[:, None, None, :]] = self.weight[
            channel
        ]
        top, left = self.padding
        return [padded[:, :, top : top + size[0], left : left + size[1]].contiguous()]

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype


@dataclass(frozen=True, eq=False)
class Scaling(Affine):
    """``scale * x + shift`` of every value; both are ``[1, ...]`` and broadcast."""

    scale: Tensor
    shift: Tensor

    def __call__(self, *values: Tensor) -> Tensor:
        return values[0] * self.scale + self.shift

    def spread(self, *radii: Tensor) -> Tensor:
        return radii[0] * self.scale.abs()

    def transposed(self, functions: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        return [functions * self.scale]

    def constant(self, functions: Tensor, shapes: Sequence[Shape]) -> Tensor | None:
        return (functions * self.shift).flatten(1).sum(1)


@dataclass(frozen=True, eq=False)
class Moving(Affine):
    """An affine function without negative weights: pooling by means, padding, reshaping, slices.

    Parameters
    ----------
    move : callable
        The function, of a tensor ``[rows, ...]``.
    mixes : bool
        Whether it computes means or sums.
    shifted : bool
        Whether zeros become something else, such as padding by a constant.
    """

    move: Callable[[Tensor], Tensor]
    mixes: bool = False
    shifted: bool = False

    def __call__(self, *values: Tensor) -> Tensor:
        return self.move(values[0])

    def spread(self, *radii: Tensor) -> Tensor:
        moved = self.move(radii[0])
        return moved - self.move(torch.zeros_like(radii[0][:1])) if self.shifted else moved

    def transposed(self, functions: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        zeros = functions.new_zeros((len(functions), *shapes[0]), requires_grad=True)
        with torch.inference_mode(False), torch.enable_grad():
            moved = self.move(zeros)
        keeps = functions.requires_grad
        (back,) = torch.autograd.grad(moved, zeros, functions, create_graph=keeps)
        return [back]

    def constant(self, functions: Tensor, shapes: Sequence[Shape]) -> Tensor | None:
        if not self.shifted:
            return None
        return (functions * self.move(functions.new_zeros((1, *shapes[0])))).flatten(1).sum(1)


@dataclass(frozen=True)
class Reshaping(Affine):
    """The same values in another shape."""

    shape: Shape

    def __call__(self, *values: Tensor) -> Tensor:
        return values[0].reshape(len(values[0]), *self.shape)

    def spread(self, *radii: Tensor) -> Tensor:
        return self(*radii)

    def transposed(self, functions: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        return [functions.reshape(len(functions), *shapes[0])]


@dataclass(frozen=True)
class Sum(Affine):
    """Tensors added up, each times a number; they broadcast."""

    factors: tuple[float, ...]
    mixes = True

    def __call__(self, *values: Tensor) -> Tensor:
        total = self.factors[0] * values[0]
        for factor, value in zip(self.factors[1:], values[1:], strict=True):
            total = total + factor * value
        return total

    def spread(self, *radii: Tensor) -> Tensor:
        return Sum(tuple(map(abs, self.factors)))(*radii)

    def transposed(self, functions: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        count = len(functions)
        return [
            (factor * functions).sum_to_size(count, *_aligned(shape, functions.ndim - 1))
            .reshape(count, *shape)
            for factor, shape in zip(self.factors, shapes, strict=True)
        ]  # fmt: skip


def _aligned(shape: Shape, ndim: int) -> Shape:
    return (1,) * (ndim - len(shape)) + shape


@dataclass(frozen=True)
class Joined(Affine):
    """Tensors one after the other along a dimension, which is not the first."""

    along: int

    def __call__(self, *values: Tensor) -> Tensor:
        rows = max(map(len, values))
        return torch.cat([v.expand(rows, *v.shape[1:]) for v in values], self.along)

    def spread(self, *radii: Tensor) -> Tensor:
        return self(*radii)

    def transposed(self, functions: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        return list(torch.split(functions, [s[self.along - 1] for s in shapes], self.along))


@dataclass(frozen=True)
class Rectifier(Operation):
    """ReLU, or leaky ReLU: ``max(x, slope * x)`` with a slope from 0 to below 1."""

    slope: float = 0.0

    def __call__(self, *values: Tensor) -> Tensor:
        x = values[0]
        return x.clamp_min(0) if self.slope == 0 else functional.leaky_relu(x, self.slope)


@dataclass(frozen=True, eq=False)
class MaxPool(Operation):
    """The largest value of every window.

    Parameters
    ----------
    windows : Tensor
        ``[windows, positions]``: positions of each window in a flattened channel. Windows with
        fewer positions repeat one of them.
    shape : tuple of int
        Height and width afterwards.
    """

    windows: Tensor
    shape: tuple[int, int]
    mixes = True

    def seen(self, x: Tensor) -> Tensor:
        """The values of all windows, ``[rows, channels, windows, positions]``."""
        return x.flatten(2)[:, :, self.windows]

    def __call__(self, *values: Tensor) -> Tensor:
        largest = self.seen(values[0]).amax(3)
        return largest.reshape(*largest.shape[:2], *self.shape)


def pool_windows(
    sizes: tuple[int, int], shape: tuple[int, int], spans: Sequence[Sequence[tuple[int, ...]]]
) -> Tensor:
    """The windows of `MaxPool` from the positions of each window along height and width."""
    tall, wide = (max(map(len, axis)) for axis in spans)
    rows, columns = (
        torch.tensor([[*span, *[span[0]] * (most - len(span))] for span in axis])
        for axis, most in zip(spans, (tall, wide), strict=True)
    )
    grid = rows[:, None, :, None] * sizes[1] + columns[None, :, None, :]
    return grid.reshape(shape[0] * shape[1], tall * wide)


def window_spans(
    size: int, outputs: int, kernel: int, stride: int, padding: int, dilation: int
) -> list[tuple[int, ...]]:
    """The positions of every window along one axis, without padding."""
    starts = (index * stride - padding for index in range(outputs))
    return [
        tuple(p for p in range(start, start + dilation * kernel, dilation) if 0 <= p < size)
        for start in starts
    ]


def adaptive_spans(size: int, outputs: int) -> list[tuple[int, ...]]:
    """The positions of every window of an adaptive pooling along one axis."""
    return [
        tuple(range(index * size // outputs, -(-(index + 1) * size // outputs)))
        for index in range(outputs)
    ]


def pair(value: Any) -> tuple[int, int]:
    """One number or two as two."""
    if isinstance(value, int):
        return value, value
    numbers = [int(v) for v in value]
    return (numbers[0], numbers[-1])

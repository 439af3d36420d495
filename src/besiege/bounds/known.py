"""The functions of torch that have bounds, and the operation that each of them is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from besiege.bounds.operations import (
    Convolution,
    Joined,
    Linear,
    MaxPool,
    Moving,
    Operation,
    Rectifier,
    Reshaping,
    Scaling,
    Sum,
    adaptive_spans,
    pair,
    pool_windows,
    window_spans,
)

Found = tuple[Operation | None, list[Tensor]]
"""An operation, None for one that changes nothing, and the tensors it reads."""


class Unbounded(Exception):
    """Arguments with which a known function has no bounds."""


def _must_have_channels(x: Tensor) -> None:
    if x.ndim != 4:  # torch takes the rows for the channels of one image
        raise Unbounded("values without channels")


def _linear(result: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Found:
    return Linear(weight, bias), [x]


def _convolution(
    result: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Found:
    _must_have_channels(x)
    step, spacing = pair(stride), pair(dilation)
    kernel = weight.shape[2:]
    if padding == "valid":
        padding = 0
    elif padding == "same":
        padding = [d * (k - 1) // 2 for d, k in zip(spacing, kernel, strict=True)]
        if any(d * (k - 1) % 2 for d, k in zip(spacing, kernel, strict=True)):
            raise Unbounded("padding that differs between sides")
    return Convolution(weight, bias, step, pair(padding), spacing, groups), [x]


def _batch_norm(
    result: Tensor,
    x: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Found:
    if training or mean is None or var is None:
        raise Unbounded("statistics of the batch")
    scale = (var + eps).rsqrt()
    scale = scale if weight is None else scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    shape = (1, -1, *(1,) * (x.ndim - 2))
    return Scaling(scale.reshape(shape), shift.reshape(shape)), [x]


def _relu(result: Tensor, x: Tensor, inplace: bool = False) -> Found:
    return Rectifier(), [x]


def _leaky(result: Tensor, x: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Found:
    if not 0 <= negative_slope < 1:
        raise Unbounded(f"a slope of {negative_slope}")
    return Rectifier(float(negative_slope)), [x]


def _clamp(result: Tensor, x: Tensor, min: Any = None, max: Any = None) -> Found:
    if max is not None or min is None or isinstance(min, Tensor) or min != 0:
        raise Unbounded("a limit other than a lower one of 0")
    return Rectifier(), [x]


def _max_pool(
    result: Tensor,
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Found:
    _must_have_channels(x)
    kernel = pair(kernel_size)
    every = kernel if stride is None or stride == [] else pair(stride)
    size, shape = (pair(t.shape[2:]) for t in (x, result))
    around, spacing = pair(padding), pair(dilation)
    spans = [
        window_spans(size[i], shape[i], kernel[i], every[i], around[i], spacing[i]) for i in (0, 1)
    ]
    return MaxPool(pool_windows(size, shape, spans).to(x.device), shape), [x]


def _adaptive_max(
    result: Tensor, x: Tensor, output_size: Any, return_indices: bool = False
) -> Found:
    _must_have_channels(x)
    size, shape = (pair(t.shape[2:]) for t in (x, result))
    spans = [adaptive_spans(size[i], shape[i]) for i in (0, 1)]
    return MaxPool(pool_windows(size, shape, spans).to(x.device), shape), [x]


def _average(function: Callable[..., Tensor]) -> Callable[..., Found]:
    def found(result: Tensor, x: Tensor, *args: Any, **kwargs: Any) -> Found:
        if kwargs.get("divisor_override") is not None or args[5:] not in ((), (None,)):
            raise Unbounded("a divisor of its own")
        return Moving(lambda v: function(v, *args, **kwargs), mixes=True), [x]

    return found


def _pad(
    result: Tensor, x: Tensor, pad: Sequence[int], mode: str = "constant", value: Any = None
) -> Found:
    if len(pad) > 2 * (x.ndim - 1):
        raise Unbounded("padding of rows")
    amounts = tuple(int(p) for p in pad)
    move = lambda v: functional.pad(v, amounts, mode, value)  # noqa: E731
    return Moving(move, mixes=mode != "constant", shifted=bool(value)), [x]


def _reshaped(result: Tensor, x: Tensor, *_: Any, **__: Any) -> Found:
    if x.numel() != result.numel() or not len(result) == len(x):
        raise Unbounded("rows in one")
    return Reshaping(tuple(result.shape[1:])), [x]


def _permuted(result: Tensor, x: Tensor, *args: Any, **kwargs: Any) -> Found:
    order = kwargs.get("dims", args[0] if len(args) == 1 else args)
    order = tuple(int(d) % x.ndim for d in order)
    if order[0] != 0:
        raise Unbounded("rows that become something else")
    return Moving(lambda v: v.permute(order)), [x]


def _transposed(result: Tensor, x: Tensor, dim0: int, dim1: int) -> Found:
    if 0 in (dim0 % x.ndim, dim1 % x.ndim):
        raise Unbounded("rows that become something else")
    return Moving(lambda v: v.transpose(dim0, dim1)), [x]


def _reduced(scaled: bool) -> Callable[..., Found]:
    def found(
        result: Tensor, x: Tensor, dim: Any = None, keepdim: bool = False, **kwargs: Any
    ) -> Found:
        dims = (
            ()
            if dim is None
            else tuple(d % x.ndim for d in ((dim,) if isinstance(dim, int) else dim))
        )
        if not dims or 0 in dims or kwargs.get("dtype") is not None:
            raise Unbounded("a mean or sum over rows")
        if scaled:
            return Moving(lambda v: v.mean(dims, keepdim), mixes=True), [x]
        return Moving(lambda v: v.sum(dims, keepdim), mixes=True), [x]

    return found


def _part(result: Tensor, x: Tensor, index: Any) -> Found:
    parts = index if isinstance(index, tuple) else (index,)
    if not parts or not all(isinstance(p, slice | int) or p is Ellipsis for p in parts):
        raise Unbounded("an index other than slices and numbers")
    if parts[0] is not Ellipsis and parts[0] != slice(None):
        raise Unbounded("a choice of rows")
    if parts[0] is Ellipsis and len(parts) > x.ndim - 1 + 1:
        raise Unbounded("a choice of rows")
    return Moving(lambda v: v[parts]), [x]


def _joined(result: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> Found:
    along = dim % result.ndim
    if along == 0:
        raise Unbounded("rows joined to rows")
    return Joined(along), list(tensors)


def _sum(sign: float) -> Callable[..., Found]:
    def found(result: Tensor, one: Any, two: Any, *, alpha: float = 1.0) -> Found:
        pieces = [v if isinstance(v, Tensor) else result.new_tensor(float(v)) for v in (one, two)]
        return Sum((1.0, sign * float(alpha))), pieces

    return found


def _less_from(result: Tensor, one: Any, two: Any) -> Found:
    """``two - one``, as ``2 - x`` calls it."""
    return _sum(-1.0)(result, two, one)


def _product(result: Tensor, one: Any, two: Any) -> Found:
    x, factor = (one, two) if isinstance(one, Tensor) and one.shape == result.shape else (two, one)
    return _scaled(result, x, factor)


def _quotient(result: Tensor, x: Any, divisor: Any) -> Found:
    if not isinstance(x, Tensor):
        raise Unbounded("a division by values")
    return _scaled(result, x, 1 / divisor)


def _negated(result: Tensor, x: Tensor) -> Found:
    return _scaled(result, x, -1.0)


def _scaled(result: Tensor, x: Any, factor: Any) -> Found:
    if not isinstance(x, Tensor) or x.shape != result.shape:
        raise Unbounded("a factor that changes the shape")
    scale = factor if isinstance(factor, Tensor) else result.new_tensor(float(factor))
    if scale.ndim == result.ndim and len(scale) > 1:
        raise Unbounded("a factor that differs between rows, or a product of two values,")
    scale = scale.reshape((1,) * (result.ndim - scale.ndim) + tuple(scale.shape))
    return Scaling(scale, torch.zeros_like(scale)), [x]


def _same(result: Tensor, x: Tensor, *_: Any, **__: Any) -> Found:
    if result.dtype != x.dtype or result.shape != x.shape:
        raise Unbounded("another precision")
    return None, [x]


def _dropout(
    result: Tensor, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Found:
    if training and p > 0:
        raise Unbounded("randomness")
    return None, [x]


def _functions(
    names: str, found: Callable[..., Found], *homes: Any
) -> dict[Callable[..., Any], Callable[..., Found]]:
    places = homes or (torch, Tensor, functional)
    return {
        getattr(home, name): found
        for name in names.split()
        for home in places
        if hasattr(home, name)
    }


KNOWN: dict[Callable[..., Any], Callable[..., Found]] = {
    **_functions("linear", _linear, functional),
    **_functions("conv2d", _convolution),
    **_functions("batch_norm", _batch_norm, functional),
    **_functions("relu relu_", _relu),
    **_functions("leaky_relu leaky_relu_", _leaky),
    **_functions("clamp clamp_", _clamp),
    **_functions("clamp_min clamp_min_", _clamp),
    **_functions("max_pool2d", _max_pool),
    **_functions("adaptive_max_pool2d", _adaptive_max, functional),
    **_functions("avg_pool2d", _average(functional.avg_pool2d)),
    **_functions("adaptive_avg_pool2d", _average(functional.adaptive_avg_pool2d)),
    **_functions("pad", _pad, functional),
    **_functions("flatten reshape view squeeze unsqueeze unflatten", _reshaped, torch, Tensor),
    **_functions("permute", _permuted, torch, Tensor),
    **_functions("transpose", _transposed, torch, Tensor),
    **_functions("mean", _reduced(scaled=True), torch, Tensor),
    **_functions("sum", _reduced(scaled=False), torch, Tensor),
    **_functions("__getitem__", _part, Tensor),
    **_functions("cat concat concatenate", _joined, torch),
    **_functions("add add_ __add__ __radd__ __iadd__", _sum(1.0), torch, Tensor),
    **_functions("sub sub_ __sub__ __isub__ subtract", _sum(-1.0), torch, Tensor),
    **_functions("rsub __rsub__", _less_from, torch, Tensor),
    **_functions("mul mul_ __mul__ __rmul__ __imul__ multiply", _product, torch, Tensor),
    **_functions("div div_ __truediv__ __itruediv__ true_divide", _quotient, torch, Tensor),
    **_functions("neg __neg__ negative", _negated, torch, Tensor),
    **_functions("contiguous clone detach to float", _same, Tensor),
    **_functions("dropout dropout2d feature_dropout alpha_dropout", _dropout, functional),
}
"""What each function of torch is: from its result and arguments to an operation and its inputs."""

_FACTS = "size dim ndimension numel is_floating_point is_contiguous stride __len__ get_device"
_PROPERTIES = "shape ndim dtype device is_cuda requires_grad layout"

FACTS: frozenset[Any] = frozenset(
    [getattr(Tensor, name) for name in _FACTS.split()]
    + [getattr(Tensor, name).__get__ for name in _PROPERTIES.split()]
    + [torch.numel, torch.is_floating_point]
)
"""Functions of a tensor's shape and kind: what they return depends on no value."""

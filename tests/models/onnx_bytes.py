"""Small ONNX files, written by hand: a flattened image times a matrix, and its argmax if wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TYPES = {"float32": 1, "uint8": 2, "int64": 7, "float16": 10, "float64": 11}
Dim = int | str


def linear(
    weight: NDArray[Any],
    shape: Sequence[Dim],
    *,
    dtype: str = "float32",
    labels: bool = False,
    last: bool = False,
) -> bytes:
    """``logits = flatten(x) @ weight``, of images of a shape; bytes are divided by 255.

    With `labels` the argmax is the output, with `last` channels come last.
    """
    kind = "float32" if dtype == "uint8" else dtype
    held = [_tensor("weight", weight.astype(kind))]
    nodes, at = [], "image"
    if dtype == "uint8":
        held.append(_tensor("levels", np.array(255.0, np.float32)))
        nodes += [_node("Cast", [at], "cast", to=1), _node("Div", ["cast", "levels"], "scaled")]
        at = "scaled"
    if last:
        nodes.append(_node("Transpose", [at], "turned", perm=[0, 3, 1, 2]))
        at = "turned"
    if len(shape) == 4:
        nodes.append(_node("Flatten", [at], "flat", axis=1))
        at = "flat"
    nodes.append(_node("MatMul", [at, "weight"], "logits"))
    out = _value("logits", kind, [shape[0], weight.shape[1]])
    if labels:
        nodes.append(_node("ArgMax", ["logits"], "label", axis=1, keepdims=0))
        out = _value("label", "int64", [shape[0]])
    graph = b"".join(_field(1, node) for node in nodes) + _field(2, b"graph")
    graph += b"".join(_field(5, tensor) for tensor in held)
    graph += _field(11, _value("image", dtype, shape)) + _field(12, out)
    return _number(1, 8) + _field(8, _field(1, b"") + _number(2, 13)) + _field(7, graph)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _tensor(name: str, values: NDArray[Any]) -> bytes:
    dims = b"".join(_number(1, side) for side in values.shape)
    kind = _number(2, _TYPES[values.dtype.name])
    return dims + kind + _field(8, name.encode()) + _field(9, values.tobytes())


def _value(name: str, dtype: str, shape: Sequence[Dim]) -> bytes:
    dims = b"".join(
        _field(1, _number(1, side) if isinstance(side, int) else _field(2, side.encode()))
        for side in shape
    )
    tensor = _number(1, _TYPES[dtype]) + _field(2, dims)
    return _field(1, name.encode()) + _field(2, _field(1, tensor))


def _node(op: str, inputs: Sequence[str], output: str, **attributes: int | list[int]) -> bytes:
    body = b"".join(_field(1, name.encode()) for name in inputs)
    body += _field(2, output.encode()) + _field(4, op.encode())
    for name, value in attributes.items():
        if isinstance(value, int):
            attribute = _number(3, value) + _number(20, 2)
        else:
            attribute = b"".join(_number(8, one) for one in value) + _number(20, 7)
        body += _field(5, _field(1, name.encode()) + attribute)
    return body

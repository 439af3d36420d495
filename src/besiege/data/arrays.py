"""Reads data from arrays: a pair of images and labels, or an ``.npz`` file with both."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from besiege.core.errors import DataError, InputError
from besiege.core.files import must_be_file
from besiege.core.samples import is_near
from besiege.data.dataset import Data

_SLACK = 1e-6
"""How far rounding may put a pixel value outside the box; it is clipped."""
_UNIT = (0.0, 1.0)
_CHANNELS = (1, 3)
LAYOUTS = ("nchw", "nhwc")
MOST_CLASSES = 100_000
_PACKED = 64 << 20
"""Bytes of an array above which its compression ratio is checked."""
_TIMES = 200
"""Largest compression ratio of images: ten is usual, a decompression bomb has a thousand."""
_WRITTEN = "write it with numpy.savez(path, x=images, y=labels)"


def from_pair(
    images: Any, labels: Any, layout: str | None = None, box: tuple[float, float] = _UNIT
) -> Data:
    """Samples of a pair of tensors or arrays; ids count them from 0.

    Images are bytes, which are scaled to the box, or floating point numbers in the box;
    ``[rows, height, width]`` is grey. Of
    four dimensions, the channels are the second or the last, whichever has size 1 or 3; if both or
    neither have, the second one of a tensor, and `layout` must say it of an array. The arrays are
    copied.
    """
    return _samples("tensors", "all", images, labels, layout=layout, box=box)


def from_npz(
    path: Path, split: str = "test", layout: str | None = None, labelled: bool = True
) -> Data:
    """Samples of an ``.npz`` file with ``x`` and ``y``, or ``x_test`` and ``y_test`` and so on.

    It may also hold ``ids`` (unique whole numbers) and ``class_names``. Nothing is unpickled, and
    no array is read before its header shows that it fits into memory. If the file is not
    `labelled`, every label is -1.
    """
    part = ""

    def chosen(members: Collection[str]) -> Mapping[str, str]:
        nonlocal part
        part = _part(members, split)
        absent = [repr(k + part) for k in ("xy" if labelled else "x") if k + part not in members]
        if absent:
            raise DataError(
                f"{path} has no {' and no '.join(absent)}; it holds {_listed(members)}: {_WRITTEN}"
            )
        keys = {"x": "x" + part, "y": "y" + part, "ids": "ids" + part, "names": "class_names"}
        return keys if labelled else {"x": keys["x"]}  # ids and names belong to labels

    held = read_arrays(path, chosen)
    images = held["x"]
    if not labelled:  # placeholders for the checks below, replaced afterwards
        held["y"] = np.broadcast_to(np.int64(0), images.shape[:1])
    try:
        data = _samples(
            path.stem,
            part[1:] or "all",
            images,
            held["y"],
            ids=held.get("ids"),
            class_names=held.get("names"),
            layout=layout,
        )
    except InputError as error:
        raise DataError(f"{path}: {error}") from None
    return data if labelled else replace(data, labels=torch.full_like(data.labels, -1))


def has_labels(path: Path, split: str = "test") -> bool:
    """Whether an ``.npz`` file holds labels; True if it is damaged, which `from_npz` reports."""
    try:
        with zipfile.ZipFile(path) as file:
            held = {name.removesuffix(".npy") for name in file.namelist()}
    except Exception:
        return True
    part = _part(held, split)
    return f"x{part}" not in held or f"y{part}" in held


def _part(held: Collection[str], split: str) -> str:
    """The suffix of the names of a split's arrays."""
    return "" if "x" in held or f"x_{split}" not in held else f"_{split}"


def from_bytes(pixels: NDArray[np.uint8]) -> Tensor:
    """Bytes as float32 numbers in [0, 1]: correctly rounded multiples of 1/255."""
    images = pixels.astype(np.float32, order="C")
    np.divide(images, np.float32(255), out=images)
    return torch.from_numpy(images)


def read_arrays(
    path: Path, choose: Callable[[Collection[str]], Mapping[str, str]]
) -> dict[str, NDArray[Any]]:
    """Some arrays of an ``.npz`` file, under other names.

    `choose` gets the names in the file, and returns those to read, by their new names; it may
    raise an error. Names that the file does not have are left out.
    """
    must_be_file(path)
    try:
        # Opened here, because numpy does not close a file that it cannot read.
        with path.open("rb") as content:
            return _read(content, choose, path)
    except (DataError, KeyboardInterrupt):
        raise
    except Exception as error:  # a damaged archive can raise almost anything
        raise DataError(
            f"{path} is damaged or not an .npz file ({type(error).__name__}): write it again"
        ) from None


def _listed(members: Collection[str]) -> str:
    return ", ".join(sorted(members)[:20]) or "nothing"


def _read(
    content: IO[bytes], choose: Callable[[Collection[str]], Mapping[str, str]], path: Path
) -> dict[str, NDArray[Any]]:
    if content.read(6) == npy.MAGIC_PREFIX:
        raise DataError(f"{path} holds only one array: {_WRITTEN}")
    with zipfile.ZipFile(content) as file:
        members = {info.filename.removesuffix(".npy"): info for info in file.infolist()}
        keys = choose(members)
        wanted = {short: members[key] for short, key in keys.items() if key in members}
        _fits({short: _claimed(file, info, path) for short, info in wanted.items()}, path)
        arrays = {}
        for short, info in wanted.items():
            with file.open(info) as array:
                arrays[short] = npy.read_array(array, allow_pickle=False)
    return arrays


def _claimed(file: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> int:
    """The number of values of an array, from its header, checked against the archive."""
    key = info.filename.removesuffix(".npy")
    with file.open(info) as array:
        readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        shape, _, kind = readers[npy.read_magic(array)](array)
        begin = array.tell()
    if kind.hasobject:
        raise DataError(
            f"{path}: '{key}' holds Python objects, which could run code when they are read: "
            "store arrays of numbers"
        )
    numbers = prod(shape)
    if info.file_size != begin + numbers * kind.itemsize:
        raise DataError(
            f"{path}: '{key}' announces {numbers * kind.itemsize:,} bytes and has "
            f"{info.file_size - begin:,}: write it again"
        )
    if info.file_size > max(_PACKED, _TIMES * info.compress_size):
        raise DataError(
            f"{path}: '{key}' unpacks {info.compress_size:,} bytes to {info.file_size:,}, which "
            f"no images do: {_WRITTEN}, uncompressed, if they are yours"
        )
    return numbers


def _fits(numbers: Mapping[str, int], path: Path) -> None:
    """Refuse arrays that this machine's memory cannot hold as float32 numbers."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on every system
        return
    needed = 4 * sum(numbers.values())
    if needed > memory:
        raise DataError(
            f"{path} needs {needed / 2**30:,.0f} GiB of memory, and this machine has "
            f"{memory / 2**30:,.0f}: store fewer images, or image files in class folders"
        )


def _samples(
    name: str,
    split: str,
    images: Any,
    labels: Any,
    *,
    ids: Any = None,
    class_names: Any = None,
    layout: str | None = None,
    box: tuple[float, float] = _UNIT,
) -> Data:
    pixels = as_pixels(images, layout, box)
    rows = len(pixels)
    classified = as_labels(labels, rows)
    numbers = np.arange(rows) if ids is None else as_whole(_as_array(ids, "ids"), "ids", rows)
    if len(np.unique(numbers)) != rows:
        raise InputError("the ids are not unique: every sample needs an id of its own")
    names = names_of(classified, class_names)
    order = np.argsort(numbers, kind="stable")
    if (order[1:] < order[:-1]).any():
        pixels, classified, numbers = pixels[order], classified[order], numbers[order]
    return Data(
        name=name,
        split=split,
        images=torch.from_numpy(pixels),
        labels=torch.from_numpy(classified),
        ids=torch.from_numpy(numbers),
        classes=len(names),
        class_names=names,
    )


def names_of(labels: NDArray[np.int64], class_names: Any = None) -> tuple[str, ...]:
    """The names of the classes, by default their numbers; labels without one are refused."""
    if class_names is None:
        if labels.max() >= MOST_CLASSES:
            raise InputError(
                f"labels go up to {labels.max()}, but classes are counted from 0: are these ids?"
            )
        names = tuple(str(label) for label in range(int(labels.max()) + 1))
    else:
        names = tuple(str(text) for text in np.asarray(class_names).ravel())
    wrong = (labels < 0) | (labels >= len(names))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        named = f" to {len(names) - 1}: there are {len(names)} names"
        raise InputError(
            f"labels[{row}] is {labels[row]}, but classes are whole numbers from 0"
            + ("" if class_names is None else named)
        )
    return names


def as_pixels(
    images: Any, layout: str | None = None, box: tuple[float, float] = _UNIT
) -> NDArray[np.float32]:
    """Images of a tensor or an array, checked: float32 ``[rows, channels, height, width]``."""
    array = _as_array(images, "images")
    # If the shape is ambiguous, tensors have torch's layout.
    usual = "nchw" if isinstance(images, Tensor) else None
    return _pixels(_channels_first(array, layout, usual), box)


def as_labels(values: Any, rows: int) -> NDArray[np.int64]:
    """Labels of a tensor, an array or a list, checked: int64 ``[rows]``."""
    return as_whole(_as_array(values, "labels"), "labels", rows)


def _as_array(values: Any, name: str) -> NDArray[Any]:
    """Tensors and lists as arrays; types that numpy lacks (bfloat16) become float32."""
    try:
        if isinstance(values, Tensor):
            held = values.detach().cpu()
            return np.asarray(held.float() if held.is_floating_point() else held)
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError):
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "biuf":
        raise InputError(
            f"{name} must be a tensor or an array of numbers, not {type(values).__name__}"
            + (f" of {array.dtype}" if isinstance(values, np.ndarray) else "")
        )
    return array


def _pixels(array: NDArray[Any], box: tuple[float, float]) -> NDArray[np.float32]:
    """Float32 images, checked; always a copy."""
    if 0 in array.shape:
        raise InputError(f"images have the shape {array.shape}: there are none")
    if array.dtype == np.uint8:
        if array.max() == 1:
            raise InputError(
                "images are bytes of only 0 and 1, but bytes go from 0 to 255: pass floating point "
                "numbers if 1 is white"
            )
        if box == _UNIT:
            return from_bytes(array).numpy()
        # In float64, so that the ends of the box, and whole numbers of a box to 255, are exact.
        return (box[0] + array.astype(np.float64) * ((box[1] - box[0]) / 255)).astype(np.float32)
    if array.dtype.kind != "f":
        shown = "[0, 1]" if box == _UNIT else f"the box {box}"
        raise InputError(
            f"images are {array.dtype}, but bytes (uint8) or floating point numbers in {shown} are "
            "expected: for values from 0 to 255, convert them to uint8"
        )
    images = np.array(array, dtype=np.float32, order="C")
    low, high = float(images.min()), float(images.max())
    if not np.isfinite([low, high]).all():
        row = int(np.flatnonzero(~np.isfinite(images).reshape(len(images), -1).all(1))[0])
        raise InputError(f"images[{row}] has pixels that are NaN or infinite: clean the data first")
    if low < box[0] - _SLACK or high > box[1] + _SLACK:
        advice = (
            "if they are normalised already, undo that (x * std + mean) and give the "
            "normalisation to the model: Classifier(net, mean=..., std=...)"
        )
        if is_near(low, high, box):
            advice = "clip them to that range, or scale them"
        elif box == _UNIT and low >= 0 and high <= 100:
            advice = f"divide them by the value that stands for white, such as {high:g}"
        elif box == _UNIT and low >= 0 and high <= 255:
            advice = "these look like bytes: divide them by 255, or store them as uint8"
        raise InputError(f"images go from {low:.4g} to {high:.4g}, but {box} is expected: {advice}")
    return np.clip(images, *box, out=images)


def _channels_first(array: NDArray[Any], layout: str | None, usual: str | None) -> NDArray[Any]:
    if layout is not None and layout not in LAYOUTS:
        raise InputError(f"the layout is '{layout}': write 'nchw' or 'nhwc'")
    if array.ndim == 3:
        return array[:, None]
    if array.ndim != 4:
        raise InputError(
            f"images have the shape {array.shape}, but [rows, channels, height, width], "
            "[rows, height, width, channels] or, for grey, [rows, height, width] is expected"
        )
    if layout is None:
        first, middle, last = (size in _CHANNELS for size in array.shape[1:])
        clear = first != last and not (last and middle)
        layout = ("nchw" if first else "nhwc") if clear else usual
        if layout is None:
            raise InputError(
                f"images have the shape {array.shape}, and either the second or the last "
                "dimension may be the channels: pass layout='nchw' or layout='nhwc'"
            )
    return array if layout == "nchw" else np.moveaxis(array, 3, 1)


def as_whole(array: NDArray[Any], name: str, rows: int) -> NDArray[np.int64]:
    """Whole numbers, one for each image, checked."""
    if array.dtype.kind not in "iu":
        raise InputError(
            f"{name} are {array.dtype}, but whole numbers are expected: convert them to int64"
        )
    if array.shape == (rows, 1):
        array = array[:, 0]
    if array.shape != (rows,):
        raise InputError(
            f"{name} have the shape {array.shape}, but one per image is expected: ({rows},)"
            + (f"; for one-hot {name}, pass {name}.argmax(1)" if array.ndim == 2 else "")
        )
    if array.dtype == np.uint64 and array.max() > np.iinfo(np.int64).max:
        raise InputError(f"{name} exceed 63 bits")
    return array.astype(np.int64)

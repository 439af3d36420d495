"""Reads CIFAR-10 in its public layouts: Python pickles (restricted to arrays) and binary."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from besiege.core.errors import DataError

Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]
_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_CLASSES = 10
# The names that a pickled array of numbers refers to, in numpy's old and new modules.
_ADMITTED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}


class ArraysOnly(pickle.Unpickler):
    """Reads numpy arrays and plain containers; everything else a pickle could call is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Resolve the names that numpy arrays need, and no others."""
        if (module, name) == ("_codecs", "encode"):
            # Newer pickles write bytes this way; only one codec is allowed.
            return _latin1
        if (module, name) not in _ADMITTED:
            raise DataError(
                f"a CIFAR-10 file refers to {module}.{name}, but should hold only arrays: "
                "it is not what it claims to be and was not read"
            )
        # Resolved here by numpy's present module name: the old one warns.
        if name == "_reconstruct":
            return np.empty(0).__reduce__()[0]
        return getattr(np, name)


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    if encoding != "latin1":
        raise DataError(f"a CIFAR-10 file asks for the codec '{encoding}'; it was not read")
    return text.encode("latin1")


def read_python(files: Sequence[Path]) -> Batch:
    """Bytes ``[rows, 3, 32, 32]`` and labels of pickled batches, in the public order."""
    return _joined([_pickled(path) for path in files])


def read_binary(files: Sequence[Path]) -> Batch:
    """The same from the binary layout: for every image a byte for the label, then the pixels."""
    return _joined([_binary(path) for path in files])


def _pickled(path: Path) -> Batch:
    try:
        with path.open("rb") as file:
            batch = ArraysOnly(file, encoding="latin1").load()
        data, labels = batch["data"], np.asarray(batch["labels"], dtype=np.int64)
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can raise almost anything
        raise _damaged(path, type(error).__name__) from None
    if (
        not isinstance(data, np.ndarray)
        or data.dtype != np.uint8
        or data.shape != (len(labels), _PIXELS)
        or not ((labels >= 0) & (labels < _CLASSES)).all()
    ):
        raise _damaged(path)
    return data, labels


def _binary(path: Path) -> Batch:
    try:
        content = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise _damaged(path, type(error).__name__) from None
    if len(content) == 0 or len(content) % (1 + _PIXELS):
        raise _damaged(path, f"{len(content)} bytes are not a multiple of {1 + _PIXELS}")
    rows = content.reshape(-1, 1 + _PIXELS)
    if rows[:, 0].max() >= _CLASSES:
        raise _damaged(path, f"a label is {rows[:, 0].max()}")
    return rows[:, 1:], rows[:, 0].astype(np.int64)


def _joined(batches: Sequence[Batch]) -> Batch:
    pixels = batches[0][0] if len(batches) == 1 else np.concatenate([data for data, _ in batches])
    return pixels.reshape(-1, *_SHAPE), np.concatenate([labels for _, labels in batches])


def _damaged(path: Path, why: str = "") -> DataError:
    reason = f" ({why})" if why else ""
    return DataError(f"{path} is damaged or not a CIFAR-10 batch{reason}: unpack it again")

"""CIFAR-10 in its public python layout, read without trusting the pickles."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from besiege.core.errors import DataError
from besiege.data.dataset import Data

FOLDER = "cifar-10-batches-py"
CLASS_NAMES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
_FILES = {"test": ("test_batch",), "train": tuple(f"data_batch_{i}" for i in range(1, 6))}
# All that a pickled array of plain numbers refers to, under numpy's old and new module names.
_ADMITTED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}


class ArraysOnly(pickle.Unpickler):
    """Reads numpy arrays and plain containers; anything else a pickle could call is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Resolve what a numpy array needs, and nothing more."""
        if (module, name) == ("_codecs", "encode"):
            # Newer pickles write bytes this way; the codec is fixed so that none other is reached.
            return _latin1
        if (module, name) not in _ADMITTED:
            raise DataError(
                f"a CIFAR-10 file refers to {module}.{name}, but it holds arrays alone: "
                "the file was not what it claims to be and was not read"
            )
        # Resolved here by numpy's present name: the old one warns.
        if name == "_reconstruct":
            return np.empty(0).__reduce__()[0]
        return getattr(np, name)


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    if encoding != "latin1":
        raise DataError(f"a CIFAR-10 file asks for the codec '{encoding}'; it was not read")
    return text.encode("latin1")


def read(split: str) -> Data:
    """A split of CIFAR-10 from the data root; ids are the index in the public order."""
    root = os.environ.get("BESIEGE_DATA")
    if not root:
        raise DataError(
            f"cifar10 is not shipped: set BESIEGE_DATA to a data root that holds {FOLDER}/"
        )
    pixels, labels = [], []
    for name in _FILES[split]:
        path = Path(root) / FOLDER / name
        if not path.is_file():
            raise DataError(
                f"cifar10 ({split}) needs {path}, which does not exist: unpack CIFAR-10's python "
                "version there, or set BESIEGE_DATA to a data root that has it"
            )
        data, targets = _read_batch(path)
        pixels.append(data)
        labels.append(targets)
    images = np.concatenate(pixels).reshape(-1, 3, 32, 32).astype(np.float32) / np.float32(255)
    targets = np.concatenate(labels)
    return Data(
        name="cifar10",
        split=split,
        images=torch.from_numpy(images),
        labels=torch.from_numpy(targets),
        ids=torch.arange(len(targets)),
        classes=10,
        class_names=CLASS_NAMES,
    )


def _read_batch(path: Path) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], np.ndarray[Any, Any]]:
    damaged = f"{path} is damaged or not a CIFAR-10 batch: unpack it again"
    try:
        with path.open("rb") as file:
            batch = ArraysOnly(file, encoding="latin1").load()
        data, labels = batch["data"], np.asarray(batch["labels"], dtype=np.int64)
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can raise almost anything
        raise DataError(f"{damaged} ({type(error).__name__})") from None
    if (
        not isinstance(data, np.ndarray)
        or data.dtype != np.uint8
        or data.shape != (len(labels), 3072)
        or not ((labels >= 0) & (labels < 10)).all()
    ):
        raise DataError(damaged)
    return data, labels

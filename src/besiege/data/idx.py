"""Reads the idx files of MNIST and Fashion-MNIST, compressed with gzip or not."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from besiege.core.errors import DataError

_BYTES = 0x08
_CLASSES = 10
_MOST = 256 << 20
"""Bytes read of a file, uncompressed; the largest public one has 47 million. A longer file is cut
here, so that its length does not match its header."""


def read_idx(files: Sequence[Path]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Bytes ``[rows, 1, height, width]`` and labels of a file of images and one of labels."""
    images = _read(files[0], dimensions=3)
    labels = _read(files[1], dimensions=1).astype(np.int64)
    if len(images) != len(labels):
        raise DataError(
            f"{files[0]} holds {len(images)} images, but {files[1].name} {len(labels)} labels: "
            "they are not of the same data set; fetch both again"
        )
    if len(labels) == 0:
        raise DataError(f"{files[0]} holds no images: fetch it again")
    if labels.max() >= _CLASSES:
        raise DataError(
            f"{files[1]} holds the label {labels.max()}, but there are {_CLASSES} classes: "
            "fetch it again"
        )
    return images[:, None], labels


def _read(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """An array of bytes: a magic number, the sizes as big-endian 32-bit numbers, the content."""
    try:
        with path.open("rb") as file:
            # Detected by its first bytes: files are often unpacked without being renamed.
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            content = (gzip.GzipFile(fileobj=file) if packed else file).read(_MOST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged ({error}): fetch it again") from None
    magic = bytes((0, 0, _BYTES, dimensions))
    begin = 4 + 4 * dimensions
    if content[:4] != magic or len(content) < begin:
        raise DataError(
            f"{path} is damaged or not an idx file: it has {len(content)} bytes that begin with "
            f"'{content[:4].hex()}', but '{magic.hex()}' is expected; fetch it again"
        )
    sizes = np.frombuffer(content, dtype=">u4", count=dimensions, offset=4).astype(int).tolist()
    expected = prod(sizes)
    if len(content) - begin != expected:
        raise DataError(
            f"{path} is damaged: it announces {expected} bytes of content and has "
            f"{len(content) - begin}; fetch it again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=begin).reshape(sizes)

"""Reads image files with Pillow: upright, in one size and one number of channels."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from besiege.core.errors import BesiegeError, DataError, InputError
from besiege.core.files import must_be_file
from besiege.core.text import MOST, quoted

ENDINGS = frozenset(
    ".png .jpg .jpeg .bmp .gif .webp .ppm .pgm .pbm .pnm .tif .tiff".split()  # noqa: SIM905
)
# Listed here, because some of Pillow's other formats start external programs.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
_MOST_PIXELS = 64 << 20
"""Most pixels of one image, before and after resizing: larger ones are mistakes or malicious."""
_GREY = ("1", "L", "LA", "La")
_DEEP = ("I;16", "I;16L", "I;16B", "I;16N", "I")
_ORIENTATION = 0x0112
# The operation that undoes each EXIF orientation.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

Size = tuple[int, int]
"""Height and width."""


@dataclass(frozen=True)
class Fit:
    """How images are resized, cropped and converted to one number of channels.

    Parameters
    ----------
    resize : int or tuple of int, optional
        The length of the shorter side, keeping the proportions; or height and width.
    crop : tuple of int, optional
        Height and width of the centre crop, after resizing.
    channels : int, optional
        1 makes all grey and 3 all RGB; by default grey if all sampled files are grey.
    """

    resize: int | Size | None = None
    crop: Size | None = None
    channels: int | None = None

    @classmethod
    def of(cls, resize: Any = None, crop: Any = None, channels: Any = None) -> Fit:
        """From a caller's values, validated."""
        if channels not in (None, 1, 3):
            raise InputError(f"channels is {channels!r}: write 1 for grey or 3 for colour")
        if resize is not None and not _length(resize):
            resize = _size(resize, "resize")
        if crop is not None:
            crop = _size((crop, crop) if _length(crop) else crop, "crop")
        return cls(resize, crop, channels)

    def resized(self, size: Size) -> Size:
        """The size of an image of this size after resizing."""
        if isinstance(self.resize, tuple):
            size = self.resize
        elif self.resize is not None:
            # The longer side is rounded down to whole pixels, as torchvision does.
            short = min(size)
            height, width = (max(1, self.resize * side // short) for side in size)
            size = height, width
        if size[0] * size[1] > _MOST_PIXELS:
            raise InputError(
                f"images of {shown(size)} (height x width) were requested: pass a smaller resize, "
                f"at most {_MOST_PIXELS:,} pixels"
            )
        return size

    def final(self, size: Size, path: Path) -> Size:
        """The size of an image of this size after resizing and cropping."""
        size = self.resized(size)
        if self.crop is None:
            return size
        if self.crop[0] > size[0] or self.crop[1] > size[1]:
            raise InputError(
                f"a crop of {shown(self.crop)} was requested, but {path} has {shown(size)} "
                f"(height x width): pass resize={max(self.crop)} with it, or a smaller crop"
            )
        return self.crop


@dataclass(frozen=True)
class Header:
    """An image's size when upright, and whether it is grey, from the header of its file."""

    size: Size
    grey: bool


@dataclass(frozen=True)
class Pictures:
    """Image files below a root, of one shape, that are decoded when they are needed."""

    root: Path
    files: tuple[str, ...]
    shape: tuple[int, int, int]
    fit: Fit

    def at(self, rows: Sequence[int]) -> Pictures:
        """Some of the files."""
        return replace(self, files=tuple(self.files[row] for row in rows))

    def decode(self) -> Tensor:
        """Their images, decoded in threads, because Pillow releases Python's lock."""
        images = np.empty((len(self.files), *self.shape), dtype=np.float32)

        def put(row: int) -> None:
            images[row] = self._pixels(self.root / self.files[row])

        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            list(pool.map(put, range(len(self.files))))  # raises what a thread raised
        return torch.from_numpy(images)

    def _pixels(self, path: Path) -> NDArray[np.float32]:
        with _opened(path) as (image, turn):
            if turn in _UPRIGHT:
                image = image.transpose(_UPRIGHT[turn])
            if self.fit.final((image.height, image.width), path) != self.shape[1:]:
                raise DataError(f"{path} has changed since it was listed: load the data again")
            return fitted(image, self.shape[0], self.fit, path)


def fitted(image: Image.Image, channels: int, fit: Fit, path: Path) -> NDArray[np.float32]:
    """An image as float32 ``[channels, height, width]`` in [0, 1], resized and cropped."""
    image, white = _grey_or_rgb(image, channels, path)
    before = (image.height, image.width)
    size, (height, width) = fit.final(before, path), fit.resized(before)
    if (height, width) != before:
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    top, left = round((height - size[0]) / 2), round((width - size[1]) / 2)
    pixels = np.asarray(image)[top : top + size[0], left : left + size[1]]
    values = pixels.astype(np.float32) / np.float32(white)
    if values.ndim == 2:
        return np.broadcast_to(values, (channels, *values.shape))
    return np.moveaxis(values, 2, 0)


def is_grey(image: Image.Image) -> bool:
    """Whether an image has one channel."""
    return image.mode in (*_GREY, *_DEEP)


def header(path: Path) -> Header:
    """The header of a file; nothing is decoded."""
    kind = Image.DecompressionBombWarning  # not needed: large images are refused here
    with warnings.catch_warnings(action="ignore", category=kind), _opened(path) as (image, turn):
        if image.width * image.height > _MOST_PIXELS:
            raise DataError(
                f"{path} has {shown((image.height, image.width))} pixels (height x width), and at "
                f"most {_MOST_PIXELS:,} are read: make it smaller"
            )
        if image.mode == "F":
            raise DataError(
                f"{path} holds floating point numbers of unknown range: store the images as "
                "bytes, or all of them in an .npz file with x and y"
            )
        size = (image.height, image.width)
        return Header(size[::-1] if turn > 4 else size, is_grey(image))


def shown(size: Sequence[int]) -> str:
    """A size as text: ``32x32``."""
    return "x".join(map(str, size))


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Image.Image, int]]:
    """An open image and its orientation; every error inside names the file."""
    must_be_file(path)
    try:
        with Image.open(path, formats=_FORMATS) as image:
            yield image, _orientation(image)
    except (BesiegeError, MemoryError):
        raise
    except Exception as error:  # a damaged image can raise almost anything
        why = "no image" if isinstance(error, UnidentifiedImageError) else str(error)
        raise DataError(
            f"{path} cannot be read as an image ({why or type(error).__name__}): replace it or "
            "remove it"
        ) from None


def _orientation(image: Image.Image) -> int:
    try:
        # The base class's method: the one for PNG would decode the whole image.
        return int(Image.Image.getexif(image).get(_ORIENTATION, 1))
    except Exception:  # malformed EXIF data: assume that the image is upright
        return 1


def _grey_or_rgb(image: Image.Image, channels: int, path: Path) -> tuple[Image.Image, int]:
    """The image in grey or RGB, and the pixel value of white."""
    if image.mode in _DEEP:
        values = np.asarray(image, dtype=np.float32)
        if values.min() < 0 or values.max() > 65535:
            raise DataError(f"{path} has values beyond 16 bits: store it as a PNG of 8 or 16 bits")
        return Image.fromarray(values), 65535
    if image.has_transparency_data:
        # On white, as web pages show it: the colour of transparent pixels is often arbitrary.
        under = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(under, image.convert("RGBA"))
    return image.convert("L" if channels == 1 else "RGB"), 255


def _length(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    if not 1 <= value <= MOST:
        raise InputError(f"a size is {quoted(value)}: write 1 or more pixels")
    return True


def _size(value: Any, name: str) -> Size:
    if isinstance(value, (tuple, list)) and len(value) == 2 and all(map(_length, value)):
        return value[0], value[1]
    raise InputError(f"{name} is {value!r}: write a length such as 224 or (height, width)")

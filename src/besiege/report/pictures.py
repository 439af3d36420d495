"""The images of the page as embedded PNG: clean, magnified perturbation, adversarial."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from besiege.core.errors import BesiegeError
from besiege.metrics.values import Picture

Pixels = NDArray[np.float32]
Pictures = Callable[[Picture], tuple[Pixels, Pixels]]

ROOM = 2_000_000
"""Largest number of characters for the pictures of a page; above it they are made smaller."""

_SIDE = 128  # of a picture on the page
_NICE: list[int] = [*range(1, 7), 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80]
_NICE += [100, 150, 200, 300, 400, 500, 1000]


@dataclass(frozen=True)
class Shown:
    """The three pictures of one sample, as ``data:`` URLs.

    Parameters
    ----------
    item : Picture
        The item of the gallery.
    clean, change, adversarial : str
        ``data:`` URLs of PNG files; empty if the images could not be read.
    times : int
        Magnification of the perturbation.
    width, height : int
        Size of the original images.
    reduced : int
        Side of the square of pixels that became one pixel; 1 if all are shown.
    missing : str
        Why there are no pictures.
    """

    item: Picture
    clean: str = ""
    change: str = ""
    adversarial: str = ""
    times: int = 1
    width: int = 1
    height: int = 1
    reduced: int = 1
    missing: str = ""

    @property
    def size(self) -> str:
        """CSS variables: the width, about 128 units, the ratio of the sides, and the pixels across.

        Small images are scaled by a whole number.
        """
        longest = max(self.width, self.height)
        scale = _SIDE // longest if longest <= _SIDE else _SIDE / longest
        # At least 16 units, so that a single row of pixels is visible.
        width, height = (max(16, round(scale * side)) for side in (self.width, self.height))
        across = max(1, self.width // self.reduced)
        return f"--wide:{width}px;--ratio:{width}/{height};--across:{across}px"

    @property
    def fine(self) -> bool:
        """Whether it has more pixels than are shown: then they are smoothed."""
        return max(self.width, self.height) / self.reduced > _SIDE


def gallery(
    items: Sequence[Picture],
    pictures: Pictures,
    box: Sequence[float] = (0.0, 1.0),
    room: int = ROOM,
) -> list[Shown]:
    """The pictures of a gallery, reduced where they need more than `room` characters."""
    read: list[tuple[Picture, Pixels, Pixels] | Shown] = []
    for item in items:
        try:
            clean, adversarial = pictures(item)
        except (BesiegeError, OSError) as error:
            read.append(Shown(item, missing=f"{type(error).__name__}: {error}"))
            continue
        read.append((item, _within(clean, box), _within(adversarial, box)))
    largest = max((max(r[1].shape[1:]) for r in read if not isinstance(r, Shown)), default=1)
    reduced = 1
    while True:
        made: list[Shown] = []
        left = room
        for one in read:
            made.append(one if isinstance(one, Shown) else _shown(*one, reduced))
            left -= sum(map(len, (made[-1].clean, made[-1].change, made[-1].adversarial)))
            if left < 0 and largest / reduced > 32:
                break
        else:
            return made
        reduced += 1


def magnification(change: Pixels) -> int:
    """The largest round factor that keeps 99.5 % of the pixel values below full contrast.

    Examples
    --------
    >>> magnification(np.full((1, 8, 8), 8 / 255, np.float32))
    12
    """
    size = float(np.quantile(np.abs(change), 0.995)) if change.size else 0.0
    if size <= 0:
        return 1
    # Below black and white, where noise would hide its structure.
    return max(n for n in _NICE if n == 1 or n * size <= 0.4 * (1 + 1e-4))


def encoded(pixels: Pixels) -> str:
    """An image ``[channels, height, width]`` in [0, 1] as the ``data:`` URL of a PNG."""
    levels = np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8)
    if levels.shape[0] == 3:
        image = Image.fromarray(np.ascontiguousarray(levels.transpose(1, 2, 0)))
    else:
        image = Image.fromarray(np.ascontiguousarray(levels[0]))
    file = io.BytesIO()
    image.save(file, format="PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _shown(item: Picture, clean: Pixels, adversarial: Pixels, reduced: int) -> Shown:
    change = adversarial - clean
    times = magnification(change)
    # A mean would blur the perturbation, so each block shows its first pixel.
    few = change[:, ::reduced, ::reduced]
    return Shown(
        item,
        encoded(_smaller(clean, reduced)),
        encoded(0.5 + times * few),
        encoded(_smaller(adversarial, reduced)),
        times,
        clean.shape[2],
        clean.shape[1],
        reduced,
    )


def _within(image: Pixels, box: Sequence[float]) -> Pixels:
    """The image in [0, 1] with one channel or three; other numbers of channels are averaged."""
    low, high = map(float, box)
    scaled = (np.asarray(image, dtype=np.float32) - low) / (high - low)
    if scaled.shape[0] not in (1, 3):
        scaled = scaled.mean(axis=0, keepdims=True)
    return scaled.astype(np.float32)


def _smaller(image: Pixels, factor: int) -> Pixels:
    """Means of blocks of pixels; incomplete blocks at the edge are left out."""
    channels, height, width = image.shape
    if factor == 1 or min(height, width) < factor:
        return image
    rows, columns = height // factor, width // factor
    blocks = image[:, : rows * factor, : columns * factor]
    means: Pixels = blocks.reshape(channels, rows, factor, columns, factor).mean(axis=(2, 4))
    return means

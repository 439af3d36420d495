"""Images as they are shown: clean, the change magnified, adversarial, inside the page as PNG."""

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
"""Characters the pictures of a page may take; above it they are drawn smaller."""

_SIDE = 128  # of a picture on the page
_NICE = (
    1,
    2,
    3,
    4,
    5,
    6,
    8,
    10,
    12,
    15,
    20,
    25,
    30,
    40,
    50,
    60,
    80,
    100,
    150,
    200,
    300,
    400,
    500,
    1000,
)


@dataclass(frozen=True)
class Shown:
    """The three pictures of one sample, as addresses that hold their content.

    Parameters
    ----------
    item : Picture
        What the gallery says about the sample.
    clean, change, adversarial : str
        ``data:`` addresses of PNG files; empty when the images could not be read.
    times : int
        How often the change is magnified.
    width, height : int
        Size of the images themselves.
    reduced : int
        How many pixels across became one, 1 when all are shown.
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
        """The style that shows it some 128 units wide, in whole multiples where it is small."""
        longest = max(self.width, self.height)
        scale = _SIDE // longest if longest <= _SIDE else _SIDE / longest
        # A row of pixels is still to be seen.
        width, height = (max(16, round(scale * side)) for side in (self.width, self.height))
        return f"width:{width}px;aspect-ratio:{width}/{height}"

    @property
    def fine(self) -> bool:
        """Whether it has more pixels than it is shown with: then they are smoothed."""
        return max(self.width, self.height) / self.reduced > _SIDE


def gallery(
    items: Sequence[Picture],
    pictures: Pictures,
    box: Sequence[float] = (0.0, 1.0),
    room: int = ROOM,
) -> list[Shown]:
    """The pictures of a gallery, as large as they are, or smaller when they need too much room."""
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
    """The largest round factor that keeps all but the few largest entries short of full contrast.

    Examples
    --------
    >>> magnification(np.full((1, 8, 8), 8 / 255, np.float32))
    12
    """
    size = float(np.quantile(np.abs(change), 0.995)) if change.size else 0.0
    if size <= 0:
        return 1
    # Not quite to black and white: glaring noise hides its own structure.
    return max(n for n in _NICE if n == 1 or n * size <= 0.4 * (1 + 1e-4))


def encoded(pixels: Pixels) -> str:
    """An image ``[channels, height, width]`` in [0, 1] as the address of a PNG."""
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
    # A mean would wash the change out: of each block its first pixel is shown.
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
    """The image in [0, 1] with one channel or three: other numbers of channels are averaged."""
    low, high = map(float, box)
    found = (np.asarray(image, dtype=np.float32) - low) / (high - low)
    if found.shape[0] not in (1, 3):
        found = found.mean(axis=0, keepdims=True)
    return found.astype(np.float32)


def _smaller(image: Pixels, factor: int) -> Pixels:
    """Means of blocks; what does not fill a block at the edge is left off."""
    channels, height, width = image.shape
    if factor == 1 or min(height, width) < factor:
        return image
    rows, columns = height // factor, width // factor
    blocks = image[:, : rows * factor, : columns * factor]
    means: Pixels = blocks.reshape(channels, rows, factor, columns, factor).mean(axis=(2, 4))
    return means

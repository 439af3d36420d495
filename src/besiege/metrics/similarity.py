"""How alike clean and adversarial images are: distances, SSIM and perturbation sensitivity.

Every function takes images ``[images, channels, height, width]`` with values from 0 to 1 and gives
one number per image. DEEPSEC's paper and its code differ; both are here, and each says which it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from besiege.core.errors import InputError

Numbers = NDArray[np.float64]
Pairs = tuple[Numbers, Numbers]
"""Clean and adversarial images."""
Form = Literal["plain", "relative"]
Sensitivity = Literal["code", "paper"]

WINDOW = 7
"""Side of the uniform window of SSIM."""
SMALLEST = 1 / 255
"""The least standard deviation that ``1 / std`` divides by: one level of 8 bits."""
_BLOCK = 1 << 19
"""Pixel values computed at once: a few arrays of 4 MB each."""
NORMS = ("l0", "l2", "linf")


def to_unit(images: NDArray[np.generic], box: tuple[float, float]) -> NDArray[np.float64]:
    """Images of a model's range of pixel values as values from 0 to 1.

    Examples
    --------
    >>> to_unit(np.array([[[[-1.0, 1.0]]]]), (-1.0, 1.0)).tolist()
    [[[[0.0, 1.0]]]]
    """
    low, high = box
    return np.asarray((images.astype(np.float64) - low) / (high - low))


def distance(
    clean: NDArray[np.generic],
    adversarial: NDArray[np.generic],
    norm: str,
    form: Form = "plain",
) -> Numbers:
    """The size of the perturbation of each image, in one of DEEPSEC's two forms.

    ``plain``, as its code and tables: ``|x' - x|_p``; for l0 the share of pixel values that differ
    after rounding to 8 bits. ``relative``, as its paper: ``|x' - x|_p / |x|_p``, without rounding;
    not a number for an image that is 0 everywhere.

    Parameters
    ----------
    clean, adversarial : array
        Images.
    norm : {"l0", "l2", "linf"}
        The norm.
    form : {"plain", "relative"}
        The form.

    Examples
    --------
    >>> clean = np.full((1, 1, 2, 2), 0.5)
    >>> moved = clean + [[[[0.1, 0.001], [0.0, 0.0]]]]
    >>> [float(distance(clean, moved, norm)[0].round(3)) for norm in NORMS]
    [0.25, 0.1, 0.1]
    >>> [float(distance(clean, moved, norm, "relative")[0].round(3)) for norm in NORMS]
    [0.5, 0.1, 0.2]
    """
    if norm not in NORMS:
        raise InputError(f"'{norm}' is no norm of ALD: choose one of {', '.join(NORMS)}")
    if form not in ("plain", "relative"):
        raise InputError(f"'{form}' is no form of ALD: choose 'plain' or 'relative'")

    def one(x: Numbers, y: Numbers) -> Numbers:
        if norm == "l0" and form == "plain":
            return np.asarray((levels(x) != levels(y)).mean((1, 2, 3)))
        size = _norm(y - x, norm)
        if form == "plain":
            return size
        whole = _norm(x, norm)
        return np.asarray(
            np.divide(size, whole, out=np.full(len(size), np.nan), where=whole > 0), np.float64
        )

    return _each(clean, adversarial, one)


def levels(images: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Values from 0 to 1 as the nearest of 256 levels; halves go to the even one, as in numpy."""
    return np.asarray(np.rint(np.clip(images, 0, 1) * 255.0).astype(np.uint8))


def _norm(change: Numbers, norm: str) -> Numbers:
    if norm == "l0":
        return np.asarray((change != 0).sum((1, 2, 3)), np.float64)
    if norm == "l2":
        return np.asarray(np.sqrt(np.einsum("nchw,nchw->n", change, change)))
    return np.asarray(np.abs(change).max((1, 2, 3)))


def ssim(
    clean: NDArray[np.generic],
    adversarial: NDArray[np.generic],
    data_range: float = 255.0,
    window: int = WINDOW,
) -> Numbers:
    """The mean structural similarity of each pair of images (Wang et al. 2004), 1 for equal ones.

    With a uniform window, sample covariances, means over all windows inside the image and over the
    channels, on values from 0 to 255, as scikit-image computes it.

    Parameters
    ----------
    clean, adversarial : array
        Images.
    data_range : float
        What the constants ``C1 = (0.01 range)^2`` and ``C2 = (0.03 range)^2`` are derived from: 255
        is that of the images. DEEPSEC published values of 2, the default of a library for numbers
        with a point, which makes both constants 127.5^2 times too small.
    window : int
        Side of the window, odd. Smaller images are refused.

    Examples
    --------
    >>> images = np.linspace(0, 1, 64).reshape(1, 1, 8, 8)
    >>> float(ssim(images, images)[0])
    1.0
    """
    if window < 3 or window % 2 == 0 or not data_range > 0:
        raise InputError(
            f"SSIM with a window of {window} and a range of {data_range}: give an odd window of 3 "
            "or more and a range above 0, such as 7 and 255"
        )
    least = min(clean.shape[2:], default=0)
    if least < window:
        raise InputError(
            f"images of {' x '.join(map(str, clean.shape[2:]))} pixels are smaller than the window "
            f"of SSIM, {window} x {window}: {_window_for(least)}"
        )
    first, second = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    count = window**2

    def one(x: Numbers, y: Numbers) -> Numbers:
        x, y = 255 * x, 255 * y
        mean_x, mean_y = (_sums(v, window) / count for v in (x, y))
        squares = (_sums(a * b, window) / count for a, b in ((x, x), (y, y), (x, y)))
        means = (mean_x * mean_x, mean_y * mean_y, mean_x * mean_y)
        sample = count / (count - 1)
        xx, yy, xy = (sample * (s - m) for s, m in zip(squares, means, strict=True))
        alike = (2 * means[2] + first) * (2 * xy + second)
        alike /= (means[0] + means[1] + first) * (xx + yy + second)
        return np.asarray(alike.mean((1, 2, 3)))

    return _each(clean, adversarial, one)


def _window_for(side: int) -> str:
    largest = side - 1 + side % 2
    if largest < 3:
        return "SSIM is not defined on images this small; use the distances"
    return f"window={largest} would do"


def _sums(values: Numbers, window: int) -> Numbers:
    """The sums over all windows inside the image, without running totals, which would round."""
    return _line_sums(_line_sums(values, 2, window), 3, window)


def _line_sums(values: Numbers, axis: int, window: int) -> Numbers:
    """The sums of `window` neighbours along an axis, from those of powers of two."""
    total: Numbers | None = None
    power, size, begin = values, 1, 0
    length = values.shape[axis] - window + 1
    while begin < window:
        if window & size:
            part = _cut(power, axis, begin, length)
            total = part if total is None else total + part
            begin += size
        if begin < window:
            kept = power.shape[axis] - size
            power = _cut(power, axis, 0, kept) + _cut(power, axis, size, kept)
            size *= 2
    assert total is not None, "a window has a side"
    return total


def _cut(values: Numbers, axis: int, begin: int, length: int) -> Numbers:
    where = [slice(None)] * values.ndim
    where[axis] = slice(begin, begin + length)
    return values[tuple(where)]


def psd(
    clean: NDArray[np.generic], adversarial: NDArray[np.generic], form: Sensitivity = "code"
) -> Numbers:
    """The perturbation sensitivity distance of each pair: changes weigh more in flat places.

    ``sum_j |x'_j - x_j| Sen(x_j)``, where the standard deviation is that of the 3x3 pixel values
    around the clean one, of its channel, mirrored at the border.

    Parameters
    ----------
    clean, adversarial : array
        Images.
    form : {"code", "paper"}
        ``Sen`` is ``1 - std`` in DEEPSEC's code and tables, and ``1 / std`` in its paper (Luo et
        al. 2018), which diverges in flat places: there at most one level of 8 bits divides.

    Examples
    --------
    >>> clean = np.full((1, 1, 4, 4), 0.5)
    >>> (
    ...     float(psd(clean, clean + 0.1)[0].round(3)),
    ...     float(psd(clean, clean + 0.1, "paper")[0].round()),
    ... )
    (1.6, 408.0)
    """
    if form not in ("code", "paper"):
        raise InputError(f"'{form}' is no form of PSD: choose 'code' or 'paper'")
    if clean.ndim == 4 and min(clean.shape[2:]) < 2:
        raise InputError(
            f"images of {' x '.join(map(str, clean.shape[2:]))} pixels have no 3x3 surroundings: "
            "PSD needs two pixels in each direction; use the distances"
        )

    def one(x: Numbers, y: Numbers) -> Numbers:
        wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="reflect")
        # Less the middle value: squares of differences lose no digits.
        near = [wide[:, :, i : i + x.shape[2], j : j + x.shape[3]] - x for i, j in _AROUND]
        total, square = np.zeros_like(x), np.zeros_like(x)
        for value in near:
            total += value
            square += value * value
        spread = np.sqrt(np.maximum(square / 9 - (total / 9) ** 2, 0))
        weight = 1 - spread if form == "code" else 1 / np.maximum(spread, SMALLEST)
        return np.asarray(np.einsum("nchw,nchw->n", np.abs(y - x), weight))

    return _each(clean, adversarial, one)


_AROUND = tuple((i, j) for i in range(3) for j in range(3) if (i, j) != (1, 1))


def _each(
    clean: NDArray[np.generic],
    adversarial: NDArray[np.generic],
    one: Callable[[Numbers, Numbers], Numbers],
) -> Numbers:
    """A number for each pair, block by block: memory does not grow with the number of images."""
    if clean.shape != adversarial.shape or clean.ndim != 4:
        raise InputError(
            f"clean images of the shape {clean.shape} and adversarial ones of "
            f"{adversarial.shape} are no pairs: give [images, channels, height, width] for both"
        )
    parts = [
        one(*(a[block].astype(np.float64) for a in (clean, adversarial)))
        for block in _blocks(clean.shape)
    ]
    return np.concatenate(parts) if parts else np.zeros(0)


def _blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    size = max(1, _BLOCK // max(int(np.prod(shape[1:])), 1))
    return (slice(begin, begin + size) for begin in range(0, shape[0], size))

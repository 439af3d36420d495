"""Reads samples of a dataset by their indices, and checks that they are the same every time."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from besiege.core.errors import BesiegeError, InputError, described
from besiege.data.arrays import as_labels, as_pixels

Box = tuple[float, float]
Block = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Images and labels of some samples."""
BATCH = 64
_IMAGE = ("image", "images", "pixel_values", "img", "x", "input", "inputs")
_LABEL = ("label", "labels", "target", "targets", "y", "class", "fine_label")


@dataclass(frozen=True, eq=False)
class Reader:
    """How the samples of a dataset are read.

    Attributes
    ----------
    name : str
        What the data are called.
    dataset : object
        It has a length and gives a sample by its index.
    collate : callable, optional
        The loader's own function from samples to a batch; None if the samples themselves are used.
    options : mapping
        Further arguments of the `DataLoader` that reads: the batch size, workers.
    layout, box
        As for `besiege.data.load`.
    fit : Fit, optional
        How pictures of Pillow are resized and cropped.
    """

    name: str
    dataset: Any
    collate: Callable[[list[Any]], Any] | None = None
    options: Mapping[str, Any] = field(default_factory=lambda: {"batch_size": BATCH})
    layout: str | None = None
    box: Box = (0.0, 1.0)
    fit: Any = None

    def blocks(self, indices: Sequence[int]) -> Iterator[Block]:
        """The samples of these indices, in order, some at a time."""
        loader = DataLoader(
            Subset(self.dataset, indices),
            collate_fn=list if self.collate is None else self.collate,
            **self.options,
        )
        for held in self._read(loader):
            yield self.block(held)

    def block(self, held: Any) -> Block:
        """One batch: a list of samples, or what a loader made of them."""
        if self.collate is None:
            pairs = [self._pair(one) for one in held]
            images, layout = self._stacked([image for image, _ in pairs])
            labels: Any = [_label(label) for _, label in pairs]
        else:
            (images, labels), layout = self._pair(held), self.layout
        try:
            pixels = as_pixels(images, layout, self.box)
            return pixels, as_labels(labels, len(pixels))
        except InputError as problem:
            raise InputError(f"{self.name}: {problem}") from None

    def _read(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches; what a dataset or its workers raise becomes one sentence."""
        try:
            yield from batches
        except (BesiegeError, MemoryError):
            raise
        except Exception as problem:
            raise InputError(f"{self.name} could not be read: {described(problem)}") from problem

    def _pair(self, held: Any) -> tuple[Any, Any]:
        """Image and label of a sample, or of a batch: the first two, or by their usual names."""
        if isinstance(held, Mapping):
            keys = [next((k for k in names if k in held), None) for names in (_IMAGE, _LABEL)]
            if None not in keys:
                return held[keys[0]], held[keys[1]]
            got = f"a dictionary of {', '.join(map(str, held))}"
        elif isinstance(held, (tuple, list)) and len(held) >= 2:
            return held[0], held[1]
        else:
            got = f"a {type(held).__name__}"
        raise InputError(
            f"a sample of {self.name} is {got}, but (image, label), or a dictionary with 'image' "
            "and 'label', is expected"
        )

    def _stacked(self, images: list[Any]) -> tuple[Any, str | None]:
        """Images of one shape as one tensor or array, and the layout of it if that is known."""
        pictures = hasattr(images[0], "convert") and hasattr(images[0], "mode")  # of Pillow
        if pictures:
            images = [self._fitted(image) for image in images]
        elif not isinstance(images[0], Tensor):
            images = [np.asarray(image) for image in images]
        shapes = sorted({tuple(image.shape) for image in images})
        if len(shapes) > 1:
            raise InputError(
                f"the images of {self.name} have different shapes, {shapes[0]} and {shapes[1]}: "
                "give the dataset a transform that resizes and crops them, such as Resize(256) and "
                "CenterCrop(224)"
            )
        if isinstance(images[0], Tensor):
            return torch.stack(images), self.layout
        return np.stack(images), "nchw" if pictures else self.layout

    def _fitted(self, picture: Any) -> NDArray[np.float32]:
        """A picture of Pillow in the box: ``[channels, height, width]``."""
        from besiege.data.pictures import Fit, fitted, is_grey

        fit = self.fit or Fit()
        channels = fit.channels or (1 if is_grey(picture) else 3)
        pixels = fitted(picture, channels, fit, Path(self.name))
        low, high = self.box
        return pixels if self.box == (0.0, 1.0) else pixels * np.float32(high - low) + low


@dataclass(frozen=True, eq=False)
class Items:
    """Images of a dataset that are read when they are needed, and are the same every time."""

    reader: Reader
    indices: tuple[int, ...]
    marks: tuple[bytes, ...]
    shape: tuple[int, int, int]

    def at(self, rows: Sequence[int]) -> Items:
        """Some of the images."""
        return replace(
            self,
            indices=tuple(self.indices[row] for row in rows),
            marks=tuple(self.marks[row] for row in rows),
        )

    def decode(self) -> Tensor:
        """The images, read again."""
        images = np.empty((len(self.indices), *self.shape), dtype=np.float32)
        place = 0
        with unchanged_randomness():
            for pixels, labels in self.reader.blocks(self.indices):
                some = slice(place, place + len(pixels))
                must_repeat(self.reader, self.indices[some], self.marks[some], pixels, labels)
                images[some] = pixels
                place += len(pixels)
        return torch.from_numpy(images)


def must_repeat(
    reader: Reader,
    indices: Sequence[int],
    marks: Sequence[bytes],
    pixels: NDArray[np.float32],
    labels: NDArray[np.int64],
) -> None:
    """Refuse samples that differ from the first reading."""
    for index, mark, now in zip(indices, marks, marks_of(pixels, labels), strict=True):
        if mark != now:
            raise InputError(
                f"sample {index} of {reader.name} is another image, or has another label, when it "
                "is read again: a random transform augments the data, or a collate_fn depends on "
                "the other samples of a batch. Use the transform of the "
                "test set (no RandomCrop, RandomHorizontalFlip, ColorJitter), so that every run "
                "attacks the same images"
            )


def marks_of(pixels: NDArray[np.float32], labels: NDArray[np.int64]) -> list[bytes]:
    """Digests of samples."""
    return [
        hashlib.blake2b(image.tobytes() + label.tobytes(), digest_size=16).digest()
        for image, label in zip(pixels, labels, strict=True)
    ]


def _label(label: Any) -> Any:
    """The label of one sample as a number, where it is one."""
    if isinstance(label, Tensor) and label.numel() == 1 and not label.is_floating_point():
        return int(label)
    return label


@contextmanager
def unchanged_randomness() -> Iterator[None]:
    """Leave the random states of torch, numpy and Python as they are, whatever a dataset draws.

    One state for all that is read inside: what is drawn must differ from one reading to the next.
    """
    own, array = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(own)
        np.random.set_state(array)

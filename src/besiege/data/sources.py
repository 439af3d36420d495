"""`load`: data from a name, a folder, a file, arrays, image files, a dataset or a loader."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch

from besiege.core.errors import DataError, InputError, UnknownNameError, near
from besiege.core.text import short
from besiege.data import cifar, digits, idx
from besiege.data.arrays import from_bytes, from_npz, from_pair
from besiege.data.catalogue import CATALOGUE, NAMES, PICTURES, Entry, check_split
from besiege.data.dataset import Data
from besiege.data.fetching import found
from besiege.data.loaders import from_dataset, is_dataset

_FORMS = (
    "data are a name, the path of a folder of class folders or of an .npz file with x and y, a "
    "pair (images, labels) of arrays or (files, labels), a torch Dataset or a DataLoader"
)
_PICTURES = "folders of images, image files, datasets of pictures and imagenet-sample"
_OPTIONS = {
    "resize": _PICTURES,
    "crop": _PICTURES,
    "channels": _PICTURES,
    "layout": "arrays",
    "box": "pairs of tensors, datasets and loaders",
}
_PATH = (str, os.PathLike)
_READERS: Mapping[str, Callable[..., Any]] = {
    "cifar-python": cifar.read_python,
    "cifar-binary": cifar.read_binary,
    "idx": idx.read_idx,
}


def load(
    source: Any,
    split: str = "test",
    count: int | None = None,
    seed: int = 0,
    *,
    resize: int | tuple[int, int] | None = None,
    crop: int | tuple[int, int] | None = None,
    channels: int | None = None,
    layout: str | None = None,
    box: tuple[float, float] | None = None,
) -> Data:
    """Samples of a data set: images, labels, stable ids.

    Parameters
    ----------
    source : str, path, pair, list, Dataset, DataLoader or Data
        A name (``besiege.data.NAMES``); the path of a folder of class folders or of an ``.npz``
        file with ``x`` and ``y``; a pair ``(images, labels)`` of tensors or arrays; image files
        ``(files, labels)`` or ``[(file, label), ...]``; a map-style ``Dataset`` whose samples are
        ``(image, label)`` or dictionaries with both; a ``DataLoader``; or `Data` already loaded.
        A loader that shuffles or a dataset that augments is refused: some samples are read twice.
        Of a map-style dataset only the chosen samples are read. Named sets that are not shipped
        are searched in the folder that the environment variable ``BESIEGE_DATA`` names, then in
        the user's cache; otherwise they are downloaded into the cache, unless ``BESIEGE_OFFLINE``
        is set. imagenet-sample is not downloaded.
    split : str
        Part of the data: ``"test"`` or ``"train"`` of a named set, a split folder of a folder,
        ``x_test`` or ``x_train`` of a file. Data without splits are used as a whole, and their
        split is ``"all"``.
    count : int, optional
        Use only this many samples, chosen by a hash of seed and id: a larger count contains every
        smaller one.
    seed : int
        Seed of that choice.
    resize : int or (height, width), optional
        Image files and pictures: the length of the shorter side, or both sides.
    crop : int or (height, width), optional
        Image files and pictures: size of the centre crop, after resizing.
    channels : {1, 3}, optional
        Image files and pictures: all grey or all RGB; by default grey if they are.
    layout : {"nchw", "nhwc"}, optional
        Arrays: needed if the shape does not show which dimension is the channels.
    box : (low, high), optional
        Pairs, datasets and loaders: the range of pixel values, if it is not [0, 1]. Floating
        point numbers must lie in it; bytes, from 0 to 255, are scaled to it.

    Returns
    -------
    Data
        In ascending order of ids.

    Examples
    --------
    >>> load("digits", count=100)
    Data('digits', 'test', 100 images 1x8x8)
    >>> load(([[[0.0, 1.0]]], [1]))
    Data('tensors', 'all', 1 images 1x1x2)
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> samples = TensorDataset(torch.rand(50, 3, 8, 8), torch.arange(50) % 10)
    >>> load(DataLoader(samples, batch_size=16), count=20)
    Data('TensorDataset', 'all', 20 images 3x8x8)
    """
    fitting = {"resize": resize, "crop": crop, "channels": channels}
    # A name takes precedence over a folder of that name; './digits' is the folder.
    if isinstance(source, str) and source in CATALOGUE:
        refuse(layout=layout, box=box)
        return _named(CATALOGUE[source], split, count, seed, fitting)
    if isinstance(source, (str, os.PathLike)):
        path = _existing(source)
        if path.is_dir():
            from besiege.data.folders import from_folder
            from besiege.data.pictures import Fit

            refuse(layout=layout, box=box)
            return from_folder(path, split, count, seed, Fit.of(**fitting))
        refuse(**fitting, box=box)
        data = from_npz(path, split, layout)
    elif (listed := _files(source)) is not None:
        from besiege.data.folders import from_files
        from besiege.data.pictures import Fit

        refuse(layout=layout, box=box)
        return from_files(*listed, count, seed, Fit.of(**fitting))
    elif is_dataset(source):
        from besiege.data.pictures import Fit

        whole = (0.0, 1.0) if box is None else _box(box)
        return from_dataset(source, count, seed, layout, whole, Fit.of(**fitting))
    elif isinstance(source, (tuple, list)) and len(source) == 2:
        refuse(**fitting)
        data = from_pair(source[0], source[1], layout, (0.0, 1.0) if box is None else _box(box))
    else:
        refuse(**fitting, layout=layout, box=box)
        if not isinstance(source, Data):
            raise InputError(f"data cannot be read from {type(source).__name__}: {_FORMS}")
        data = source
    return data if count is None else data.subset(count, seed)


def is_in_box(source: object) -> bool:
    """Whether images are given as numbers in the box of a model: arrays, datasets and loaders.

    Names, folders, image files and `Data` have pixels in [0, 1], whatever the model takes.
    """
    if isinstance(source, (str, os.PathLike, Data)) or _files(source) is not None:
        return False
    return isinstance(source, (tuple, list)) or is_dataset(source)


def _files(source: object) -> tuple[Sequence[Any], Any] | None:
    """Image files and their labels, if a source is ``(files, labels)`` or ``[(file, label)]``."""
    if not isinstance(source, (tuple, list)) or not source:
        return None
    if all(_is_pair(one) for one in source):
        return [file for file, _ in source], [label for _, label in source]
    first = source[0]
    if isinstance(first, np.ndarray) and first.dtype.kind == "U":
        first = first.tolist()
    if all(isinstance(one, _PATH) for one in source):
        raise InputError(
            "the data are a list of files without labels: pass (files, labels), or pairs "
            "[(file, label), ...]"
        )
    of_paths = isinstance(first, (tuple, list)) and first and isinstance(first[0], _PATH)
    return (first, source[1]) if of_paths and len(source) == 2 else None


def _is_pair(value: object) -> bool:
    """Whether a value is a file with its label, not two files."""
    return (
        isinstance(value, (tuple, list))
        and len(value) == 2
        and isinstance(value[0], _PATH)
        and not isinstance(value[1], _PATH)
    )


def _named(
    known: Entry, split: str, count: int | None, seed: int, fitting: Mapping[str, Any]
) -> Data:
    check_split(known, split)
    if any(layout.reader == PICTURES for layout in known.layouts):
        from besiege.data.folders import from_place
        from besiege.data.pictures import Fit

        fit = Fit.of(**fitting)
        return from_place(known, split, found(known, split), count, seed, fit)
    refuse(**fitting)
    data = digits.read(known, split) if known.shipped else _arrays(known, split)
    return data if count is None else data.subset(count, seed)


def _arrays(known: Entry, split: str) -> Data:
    """A split whose files hold the pixels of all images."""
    place = found(known, split)
    pixels, labels = _READERS[place.reader](place.files)
    if pixels.shape[1:] != known.shape:
        raise DataError(
            f"{place.files[0]} holds images of {pixels.shape[1:]}, but those of {known.name} are "
            f"{known.shape} (channels, height, width): fetch it again"
        )
    return Data(
        name=known.name,
        split=split,
        images=from_bytes(pixels),
        labels=torch.from_numpy(labels),
        ids=torch.arange(len(labels)),
        classes=known.classes,
        class_names=known.class_names,
    )


def _box(box: Any) -> tuple[float, float]:
    try:
        low, high = map(float, box)
        if -math.inf < low < high < math.inf:
            return low, high
    except (TypeError, ValueError, OverflowError):
        pass
    raise InputError("the box is the lowest and the highest pixel value: pass for example (0, 255)")


def refuse(**options: Any) -> None:
    """Refuse options that do not apply to the kind of data."""
    for name, value in options.items():
        if value is not None:
            raise InputError(f"{name} is for {_OPTIONS[name]}: leave it out")


def _existing(source: str | os.PathLike[str]) -> Path:
    """The folder or .npz file that a text or path names, or an error with near matches."""
    text = os.fspath(source)
    if not text:
        raise InputError(f"the name of the data is empty: {_FORMS}")
    # os.path's functions accept any text; Path's raise an exception for some.
    written = os.path.expanduser(text)
    path = Path(written)
    if os.path.isdir(written):
        return path
    if os.path.exists(written):
        if path.suffix.lower() == ".npz":
            return path
        raise InputError(f"{path} is a file of an unknown kind: {_FORMS}")
    if isinstance(source, str) and not any(mark in text for mark in "/\\~."):
        # Names that share a few letters only, such as my_images and imagenet-sample, help nobody.
        known = get_close_matches(text.casefold(), NAMES, n=3, cutoff=0.6)
        known += _close(text, Path())
        hint = f": {near(text, known)}" if known else "; `besiege data` lists the names"
        raise UnknownNameError(
            f"no data set is called '{short(text)}', and no folder here is{hint} ({_FORMS})"
        )
    shown = short(str(path), 200)
    if not os.path.isdir(path.parent):
        above = short(str(path.parent), 200)
        raise DataError(f"{shown} does not exist, and neither does {above}: check the path")
    close = _close(path.name, path.parent)
    raise DataError(
        f"{shown} does not exist: " + (near(path.name, close) if close else "check the path")
    )


def _close(name: str, folder: Path) -> list[str]:
    """Similar names in a folder."""
    return get_close_matches(name, [other.name for other in folder.iterdir()], n=3)

"""Reads the 8x8 digits that come with scikit-learn: 1,797 images, no download."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from besiege.data.catalogue import Entry
from besiege.data.dataset import Data, rank


@cache
def _table() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The 64 pixel values of every image, and the labels."""
    # Read the file without the package: importing scikit-learn would take most of the time.
    spec = find_spec("sklearn")
    for place in (spec and spec.submodule_search_locations) or ():
        path = Path(place, "datasets", "data", "digits.csv.gz")
        if path.is_file():
            table = np.loadtxt(path, delimiter=",")
            return table[:, :-1], table[:, -1]
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return pixels, labels


@cache
def _order() -> list[int]:
    """The indices of all images by the hash of each."""
    return sorted(range(len(_table()[1])), key=rank)


def read(known: Entry, split: str) -> Data:
    """A split of digits: 1,400 images for training and the other 397 for testing.

    scikit-learn publishes no split; this one orders the images by a hash of their index, so that
    it depends on no random generator. Ids are indices in scikit-learn's order.
    """
    pixels, labels = _table()
    order, train = _order(), known.images["train"]
    chosen = np.sort(np.array(order[:train] if split == "train" else order[train:]))
    # Values are whole numbers from 0 to 16, so the division is exact.
    images = (pixels[chosen].reshape(-1, 8, 8) / 16).astype(np.float32)
    return Data(
        name=known.name,
        split=split,
        images=torch.from_numpy(images).unsqueeze(1),
        labels=torch.from_numpy(labels[chosen].astype(np.int64)),
        ids=torch.from_numpy(chosen.astype(np.int64)),
        classes=known.classes,
        class_names=known.class_names,
    )

"""Data sets by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from besiege.core.errors import InputError, UnknownNameError, near
from besiege.data.dataset import Data

# Each home offers read(split) -> Data and is imported on first use.
_HOMES: Mapping[str, str] = {"cifar10": "cifar", "digits": "digits"}
NAMES = tuple(_HOMES)
_SPLITS = ("train", "test")


def load(name: str, split: str = "test", count: int | None = None, seed: int = 0) -> Data:
    """Samples of a named data set.

    Parameters
    ----------
    name : {"cifar10", "digits"}
        Which data set; those that are not shipped are looked for in the folder that the
        environment variable ``BESIEGE_DATA`` names.
    split : {"test", "train"}
        Which part of it.
    count : int, optional
        Take this many samples only, chosen by a hash of seed and id: a larger count contains
        every smaller one.
    seed : int
        Decides the choice.

    Returns
    -------
    Data
        In ascending order of ids.

    Examples
    --------
    >>> load("digits", count=100)
    Data('digits', 'test', 100 images 1x8x8)
    """
    if name not in _HOMES:
        raise UnknownNameError(f"no data set is called '{name}': {near(name, _HOMES)}")
    if split not in _SPLITS:
        raise InputError(f"the split is '{split}': write 'test' or 'train'")
    read: Callable[[str], Data] = import_module(f"besiege.data.{_HOMES[name]}").read
    data = read(split)
    return data if count is None else data.subset(count, seed)

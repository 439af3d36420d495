"""Finds named data sets on disk: in the data root, then in the user's cache. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from besiege.core.errors import DataError
from besiege.core.files import cache_folder
from besiege.data.catalogue import CATALOGUE, PICTURES, Entry, Layout


@dataclass(frozen=True)
class Place:
    """The files of one split, or its class folders, and the name of their reader."""

    reader: str
    files: tuple[Path, ...]

    @property
    def folder(self) -> Path:
        """The folder that contains them."""
        return self.files[0].parent


@dataclass(frozen=True)
class Listing:
    """One line of a list of data sets: the facts, and the place of each split."""

    entry: Entry
    where: Mapping[str, str]


def data_root() -> Path | None:
    """The folder that the environment variable ``BESIEGE_DATA`` names, if it names one."""
    named = os.environ.get("BESIEGE_DATA")
    return Path(named).expanduser() if named else None


def cache_root() -> Path:
    """The folder for downloads: ``besiege/data`` in the user's cache folder."""
    cache = cache_folder()
    if cache is None:
        raise DataError(
            "this user has no home folder to store data in: set BESIEGE_DATA to a data root, or "
            "XDG_CACHE_HOME to a folder for downloads"
        )
    return cache / "data"


def locate(entry: Entry, split: str) -> Place | None:
    """The files of a split in the data root, or else in the cache; None if incomplete."""
    named = data_root()
    place = None if named is None else locate_in(named, entry, split)
    return place or locate_in(cache_root(), entry, split)


def locate_in(root: Path, entry: Entry, split: str) -> Place | None:
    """The files of a split in one root; None unless all exist."""
    for layout in entry.layouts:
        for folder in layout.folders:
            files = [_spelled(root / folder / name, layout) for name in layout.files[split]]
            if None not in files:
                return Place(layout.reader, tuple(filter(None, files)))
    return None


def expected(root: Path, entry: Entry, split: str) -> Path:
    """The first missing file, in the layout with the fewest missing files."""
    best: tuple[int, Path] | None = None
    for layout in entry.layouts:
        for folder in layout.folders:
            absent = []
            for name in layout.files[split]:
                path = root / folder / name
                if _spelled(path, layout) is None:
                    absent.append(path.with_name(name + layout.suffixes[-1]))
            # An existing folder was probably meant; among others, the first is the usual one.
            score = 2 * len(absent) - 9 * (root / folder).is_dir()
            if absent and (best is None or score < best[0]):
                best = (score, absent[0])
    assert best is not None, "asked only when no layout is complete"
    return best[1]


def listing() -> list[Listing]:
    """Every named data set, with the place of each split: shipped, a folder, a download or none.

    Examples
    --------
    >>> [line.where["test"] for line in listing() if line.entry.name == "digits"]
    ['shipped']
    """
    return [
        Listing(entry, {split: _where(entry, split) for split in entry.images})
        for entry in CATALOGUE.values()
    ]


def _where(entry: Entry, split: str) -> str:
    if entry.shipped:
        return "shipped"
    if place := locate(entry, split):
        return str(place.folder)
    if entry.remotes is None:
        return f"not in BESIEGE_DATA/{entry.layouts[0].folders[0]}"
    size = sum(remote.bytes for remote in entry.remotes.get(split, ()))
    return f"downloads {size / 1e6:.0f} MB"


def _spelled(path: Path, layout: Layout) -> Path | None:
    """The file with one of the suffixes it may have; None if there is none."""
    candidates = (path.with_name(path.name + suffix) for suffix in layout.suffixes)
    there = Path.is_dir if layout.reader == PICTURES else Path.is_file
    return next((path for path in candidates if there(path)), None)

"""Where the named data sets lie: the data root, then the user's cache. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from besiege.core.errors import DataError
from besiege.data.catalogue import CATALOGUE, SPLITS, Entry, Layout


@dataclass(frozen=True)
class Place:
    """The files of one split as they were found, and which reader takes them."""

    reader: str
    files: tuple[Path, ...]

    @property
    def folder(self) -> Path:
        """The folder they lie in."""
        return self.files[0].parent


@dataclass(frozen=True)
class Listing:
    """One line of a list of data sets: the facts, and for each split where it is."""

    entry: Entry
    where: Mapping[str, str]


def data_root() -> Path | None:
    """The folder that the environment variable ``BESIEGE_DATA`` names, if it names one."""
    named = os.environ.get("BESIEGE_DATA")
    return Path(named).expanduser() if named else None


def cache_root() -> Path:
    """Where downloads are kept: ``besiege/data`` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    # The standard says to ignore what is not absolute.
    if base and Path(base).is_absolute():
        return Path(base) / "besiege" / "data"
    try:
        return Path.home() / ".cache" / "besiege" / "data"
    except RuntimeError:
        raise DataError(
            "this user has no home folder to keep data in: set BESIEGE_DATA to a data root, or "
            "XDG_CACHE_HOME to a folder for downloads"
        ) from None


def locate(entry: Entry, split: str) -> Place | None:
    """The files of a split in the data root or else in the cache, or nothing."""
    named = data_root()
    place = None if named is None else locate_in(named, entry, split)
    return place or locate_in(cache_root(), entry, split)


def locate_in(root: Path, entry: Entry, split: str) -> Place | None:
    """The files of a split in one root, or nothing unless they are all there."""
    for layout in entry.layouts:
        for folder in layout.folders:
            files = [_spelled(root / folder / name, layout) for name in layout.files[split]]
            found = tuple(path for path in files if path is not None)
            if len(found) == len(files):
                return Place(layout.reader, found)
    return None


def expected(root: Path, entry: Entry, split: str) -> Path:
    """The first file that is not where it should be, in the layout that is nearest to complete."""
    best: tuple[int, Path] | None = None
    for layout in entry.layouts:
        for folder in layout.folders:
            absent = []
            for name in layout.files[split]:
                path = root / folder / name
                if _spelled(path, layout) is None:
                    absent.append(path.with_name(name + layout.suffixes[-1]))
            # A folder that exists was meant; among the rest the first is the usual one.
            score = 2 * len(absent) - 9 * (root / folder).is_dir()
            if absent and (best is None or score < best[0]):
                best = (score, absent[0])
    assert best is not None, "asked only when no layout is complete"
    return best[1]


def listing() -> list[Listing]:
    """Every named data set, with where each split is: shipped, a folder, or a download's size.

    Examples
    --------
    >>> [line.where["test"] for line in listing() if line.entry.name == "digits"]
    ['shipped']
    """
    return [
        Listing(entry, {split: _where(entry, split) for split in SPLITS})
        for entry in CATALOGUE.values()
    ]


def _where(entry: Entry, split: str) -> str:
    if entry.shipped:
        return "shipped"
    if place := locate(entry, split):
        return str(place.folder)
    size = sum(remote.bytes for remote in (entry.remotes or {}).get(split, ()))
    return f"downloads {size / 1e6:.0f} MB"


def _spelled(path: Path, layout: Layout) -> Path | None:
    """The file under one of the endings it may have, or nothing."""
    for suffix in layout.suffixes:
        candidate = path.with_name(path.name + suffix)
        if candidate.is_file():
            return candidate
    return None

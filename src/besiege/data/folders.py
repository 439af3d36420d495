"""Reads data from a folder with one sub-folder of images per class, or from a list of files."""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import prod
from pathlib import Path
from typing import Any

import torch

from besiege.core.errors import DataError, InputError, near
from besiege.core.text import quoted
from besiege.data.arrays import as_labels, names_of
from besiege.data.catalogue import CATALOGUE, Entry
from besiege.data.dataset import Data, choose
from besiege.data.pictures import ENDINGS, Fit, Pictures, header, shown
from besiege.data.places import Place, locate_in

SPLIT_FOLDERS = ("train", "training", "test", "testing", "val", "valid", "validation", "dev")
LISTS = ("classes.txt", "labels.txt")
_LOOKED_AT = 256
"""How many files, spread over the folder, decide whether its images are grey."""
_AT_ONCE = 256 << 20
"""Size in bytes up to which images are decoded when they are loaded."""


@dataclass(frozen=True)
class Listed:
    """The files of a folder with their labels and ids, in ascending order of ids.

    Files are text relative to the root: millions of `Path` objects would take seconds.
    """

    root: Path
    files: tuple[str, ...]
    labels: tuple[int, ...]
    ids: tuple[int, ...]
    class_names: tuple[str, ...]


def from_folder(
    folder: Path,
    split: str = "test",
    count: int | None = None,
    seed: int = 0,
    fit: Fit | None = None,
) -> Data:
    """Samples of a folder of class folders.

    Files are listed, a subset is chosen by seed, and the headers of these files are read. Images
    are decoded when `images` is first read; at once if they take up to 256 MiB, so that a damaged
    file is reported early. A folder of ``train/`` and ``test/`` (or similar) holds splits.

    Parameters
    ----------
    folder : Path
        It holds a folder per class; ``classes.txt`` in it may fix their numbers.
    split, count, seed
        As for `besiege.data.load`.
    fit : Fit, optional
        How images are resized, cropped and converted.
    """
    root, name, part = _class_root(folder, split)
    return _data(_listed(root), name, part, count, seed, fit or Fit())


def from_files(
    files: Sequence[str | os.PathLike[str]],
    labels: Any,
    count: int | None = None,
    seed: int = 0,
    fit: Fit | None = None,
) -> Data:
    """Samples of a list of image files and their labels; ids count them from 0.

    As of a folder, headers are read first, and images are decoded when they are needed.
    """
    for file in files:
        if not isinstance(file, (str, os.PathLike)):
            raise InputError(
                f"a file is {quoted(file)}, but the files are a list of paths: pass "
                "(['a.png', 'b.png'], [0, 1])"
            )
    if not len(files):
        raise InputError("the list of files is empty")
    # Absolute, because the working folder may change before they are decoded.
    paths = tuple(os.path.abspath(os.path.expanduser(os.fspath(file))) for file in files)
    known = as_labels(labels, len(paths))
    names = names_of(known)
    listed = Listed(Path(), paths, tuple(known.tolist()), tuple(range(len(paths))), names)
    return _data(listed, "files", "all", count, seed, fit or Fit())


def from_place(
    known: Entry, split: str, place: Place, count: int | None, seed: int, fit: Fit
) -> Data:
    """Samples of a named data set of one image per class; ids are the numbers of the classes."""
    files = []
    for folder in place.files:
        inside = _images(place.folder, folder.name)
        if len(inside) != 1:
            raise DataError(
                f"{folder} holds {len(inside)} images, but {known.name} has one of each class: "
                "unpack it again"
            )
        files += inside
    numbers = tuple(range(len(files)))
    listed = Listed(place.folder, tuple(files), numbers, numbers, known.class_names)
    # Known, so that no headers are read to find out whether all images are grey.
    in_colour = replace(fit, channels=fit.channels or known.shape[0])
    data = _data(listed, known.name, split, count, seed, in_colour)
    if fit == Fit() and data.shape != known.shape:
        raise DataError(
            f"{place.folder} holds images of {shown(data.shape[1:])}, but those of {known.name} "
            f"are {shown(known.shape[1:])} (height x width): pass resize={known.shape[1]}, "
            f"crop={known.shape[1]}"
        )
    return data


def _data(listed: Listed, name: str, part: str, count: int | None, seed: int, fit: Fit) -> Data:
    """Samples of listed files, or of some of them chosen by seed."""
    rows: Sequence[int] = range(len(listed.files))
    if count is not None:
        rows = choose(listed.ids, count, seed, f"{name} ({part})")
    pixels = _pictures(listed, rows, fit)
    data = Data.lazy(
        pixels,
        name=name,
        split=part,
        labels=torch.tensor([listed.labels[row] for row in rows]),
        ids=torch.tensor([listed.ids[row] for row in rows]),
        classes=len(listed.class_names),
        class_names=listed.class_names,
        total=len(listed.files),
        chosen_by=None if count is None else seed,
        files=pixels.files,
    )
    if 4 * len(data) * prod(data.shape) <= _AT_ONCE:
        _ = data.images
    return data


def file_id(relative: str) -> int:
    """The id of a file: 63 bits of the hash of its path below the folder of class folders."""
    # Normalised, because some systems store letters and accents of file names separately.
    text = unicodedata.normalize("NFC", relative)
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()[:8]) >> 1


def named_number(line: str) -> tuple[str, str] | None:
    """The name and the number of a line such as ``cat 3`` or ``cat, 3``; None for other lines.

    Parsed from the end, because a regular expression would take minutes for some lines.
    """
    before = line.rstrip("0123456789")
    name = before.rstrip()
    if name.endswith((",", ";", ":", "=")):
        name = name[:-1].rstrip()
    if before == line or name in ("", before):
        return None
    return name, line[len(before) :]


def _class_root(folder: Path, split: str) -> tuple[Path, str, str]:
    """The folder that holds the class folders, the name of the data, and that of the split."""
    full = Path(os.path.abspath(folder))
    inside = {path.name.lower(): path for path in _folders(folder)}
    # A class may be called 'train' too; but class folders hold images, and splits hold folders.
    splits = bool(inside) and all(
        name in SPLIT_FOLDERS and _folders(path) and not _loose(path)
        for name, path in inside.items()
    )
    if not splits:
        if full.name.lower() in SPLIT_FOLDERS:
            return folder, full.parent.name, full.name.lower()
        return folder, full.name, "all"
    if split not in inside:
        other = next(iter(inside))
        raise InputError(
            f"{folder} has no split '{split}': it has {' and '.join(inside)}; pass "
            f"split='{other}', or the folder {inside[other]}"
        )
    return inside[split], full.name, split


def _listed(root: Path) -> Listed:
    images = {path.name: _images(root, path.name) for path in _folders(root)}
    numbers = _numbered(root, images)
    by_id: dict[int, tuple[str, int]] = {}
    for name, label in numbers.items():
        for file in images.get(name, ()):
            number = file_id(file)
            if number in by_id:
                raise DataError(
                    f"{root / file} and {root / by_id[number][0]} get the same id: rename one"
                )
            by_id[number] = (file, label)
    if not by_id:
        raise DataError(f"{root} holds no images of the classes listed: {_known_kinds()}")
    ids = sorted(by_id)
    files, labels = zip(*(by_id[number] for number in ids), strict=True)
    names = {label: name for name, label in numbers.items()}
    class_names = tuple(names.get(label, str(label)) for label in range(max(names) + 1))
    return Listed(root, files, labels, tuple(ids), class_names)


def _numbered(root: Path, images: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The number of every class folder: from a list beside them, or in the order of names."""
    for place in (root, root.parent):
        for file in LISTS:
            # A list beside the split folders applies to each of them.
            if (place / file).is_file() and (place == root or root.name.lower() in SPLIT_FOLDERS):
                return _as_listed(place / file, root, images)
    if not images:
        raise _no_classes(root)
    empty = [name for name in images if not images[name]]
    if len(empty) == len(images):
        raise _named_instead(root, root) or DataError(
            f"{root} holds folders without images: {_known_kinds()}"
        )
    if empty:
        # Counting it as a class would silently shift the numbers of all classes after it.
        raise DataError(
            f"{root / empty[0]} holds no images: remove it if it is not a class, or number the "
            f"classes in {root / LISTS[0]}, one name a line; {_known_kinds()}"
        )
    if len(images) == 1:
        (name,) = images
        hint = f"pass {root / name} if its folders are the classes, or "
        raise DataError(
            f"{root} has only one class folder, '{name}', so its number is unknown: "
            f"{hint if _folders(root / name) else ''}write '{name} 0' (or its real number) into "
            f"{root / LISTS[0]}"
        )
    return _ordered(root, images)


def _ordered(root: Path, names: Iterable[str]) -> dict[str, int]:
    """Classes in alphabetical order, or in numerical order if all names are numbers."""
    if not all(re.fullmatch("[0-9]+", name) for name in names):
        return {name: label for label, name in enumerate(sorted(names))}
    order = sorted(names, key=lambda name: (int(name), name))
    if [int(name) for name in order] != list(range(int(order[0]), int(order[0]) + len(order))):
        raise DataError(
            f"the class folders of {root} are numbers with gaps ({', '.join(order[:3])}, ...), so "
            f"'{order[-1]}' may be class {len(order) - 1} or {order[-1]}: write one line "
            f"'FOLDER NUMBER' per folder into {root / LISTS[0]}"
        )
    return {name: label for label, name in enumerate(order)}


def _as_listed(file: Path, root: Path, images: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Class numbers from a list: a folder a line, counted from 0, or folder and number a line."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read as text ({error}): store it as UTF-8") from None
    lines = [line for line in lines if line and not line.startswith("#")]
    pairs = [named_number(line) for line in lines]
    read = [(pair[0], int(pair[1])) for pair in pairs if pair is not None and len(pair[1]) <= 6]
    # Names may end in digits: these are a number only if a folder has the shorter name.
    if len(read) < len(lines) or not any(name in images for name, _ in read):
        read = [(line, label) for label, line in enumerate(lines)]
    numbers = dict(read)
    for kind, values in (("folder", list(numbers)), ("number", set(numbers.values()))):
        if len(values) < len(read):
            raise DataError(f"{file} has a {kind} twice: keep one line of each")
    if not any(name in images for name in numbers):
        raise DataError(
            f"none of the classes that {file} lists is a folder of {root}: write one folder a line"
        )
    for name, held in images.items():
        if held and name not in numbers:
            close = get_close_matches(name, numbers, n=3)
            hint = f" ({near(name, close)})" if close else ""
            raise DataError(
                f"{file} does not list the folder '{name}'{hint}: add a line for it, or move the "
                "folder away"
            )
    return numbers


def _pictures(listed: Listed, rows: Sequence[int], fit: Fit) -> Pictures:
    """The chosen files as images of one shape, all headers checked."""
    channels = fit.channels
    if channels is None:
        # From all files, not the chosen ones, so that channels do not depend on the seed.
        every = sorted(listed.files)
        step = -(-len(every) // _LOOKED_AT)
        some = (header(listed.root / file) for file in every[::step])
        channels = 1 if all(seen.grey for seen in some) else 3
    size, example = None, listed.root / listed.files[rows[0]]
    for row in rows:
        path = listed.root / listed.files[row]
        seen = header(path)
        if channels == 1 and fit.channels is None and not seen.grey:
            raise InputError(
                f"{path} is in colour, but the images read first are grey: pass channels=3 to "
                "read all in colour, or channels=1 to read all as grey"
            )
        final = fit.final(seen.size, path)
        if size is not None and final != size:
            raise InputError(
                f"the images have different sizes: {example} is {shown(size)} and {path} "
                f"{shown(final)} (height x width): pass resize=(height, width), or the shorter "
                "side and a crop, such as resize=256, crop=224"
            )
        size = final
    assert size is not None, "a subset is never empty"
    files = tuple(listed.files[row] for row in rows)
    # Absolute, because the working folder may change before they are decoded.
    return Pictures(Path(os.path.abspath(listed.root)), files, (channels, *size), fit)


def _folders(folder: Path) -> list[Path]:
    try:
        inside = sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError as error:
        raise DataError(
            f"{folder} cannot be listed ({error.strerror}): check its permissions"
        ) from None
    return [path for path in inside if not path.name.startswith((".", "__MACOSX"))]


def _images(root: Path, name: str) -> list[str]:
    """Image files at any depth of a folder of the root, without hidden ones."""
    images = []
    for place, inner, files in os.walk(root / name):
        inner[:] = [name for name in inner if not name.startswith(".")]
        within = os.path.relpath(place, root).replace(os.sep, "/")
        images += [f"{within}/{file}" for file in files if _is_image(file)]
    return sorted(images)


def _loose(folder: Path) -> list[str]:
    """Images directly in a folder."""
    return sorted(path.name for path in folder.iterdir() if _is_image(path.name))


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in ENDINGS and not name.startswith(".")


def _no_classes(root: Path) -> DataError:
    """The error for a folder without class folders."""
    if loose := _loose(root):
        return DataError(
            f"{root} holds images itself ({loose[0]}, ...), but labels come from the names of "
            f"folders: put the images of each class into one, such as {root / 'cat' / loose[0]}"
        )
    empty = not any(root.iterdir())
    return (not empty and _named_instead(root, root.parent)) or DataError(
        f"{root} {'is empty' if empty else 'holds no class folders'}: put a folder of images per "
        f"class into it, such as {root / 'cat' / '1.png'}"
    )


def _named_instead(folder: Path, root: Path) -> DataError | None:
    """The error for the folder of a named data set; None for other folders."""
    for name, known in CATALOGUE.items():
        if any(locate_in(root, known, split) for split in known.images):
            return DataError(
                f"{folder} holds no class folders: for {name}, set BESIEGE_DATA={root} and pass "
                f"'{name}'"
            )
    return None


def _known_kinds() -> str:
    kinds = ", ".join(sorted(ending[1:] for ending in ENDINGS))
    return f"files that end in {kinds} are read"

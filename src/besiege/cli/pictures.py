"""Reads the images of ``besiege attack`` from files, and writes adversarial ones to files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from besiege.core.errors import DataError, InputError
from besiege.core.files import must_be_file
from besiege.core.text import short, whole
from besiege.data import Data, load
from besiege.data.arrays import MOST_CLASSES, from_npz, has_labels
from besiege.data.catalogue import CATALOGUE
from besiege.data.folders import file_id, named_number
from besiege.data.pictures import ENDINGS, Fit, Pictures, header, shown
from besiege.data.sources import refuse

PREDICTED = "predicted"
_MOST_TEXT = 64 << 20
"""Largest size of a file of labels, in bytes."""


@dataclass(frozen=True)
class Inputs:
    """Images to attack.

    Attributes
    ----------
    data : Data
        Images, labels and ids; a label of -1 must still be predicted.
    names : dict
        The name of the file of each id, without folders above the input.
    labelled : str
        Where the labels come from, in words.
    """

    data: Data
    names: Mapping[int, str]
    labelled: str

    @property
    def predicted(self) -> bool:
        return bool((self.data.labels < 0).any())


def read(
    source: str,
    labels: str | None,
    split: str,
    count: int | None,
    seed: int,
    fit: Mapping[str, Any],
) -> Inputs:
    """Images of a folder, a file or a named data set.

    Parameters
    ----------
    source : str
        A folder of class folders, a folder of images, an image, an ``.npz`` file with ``x`` and
        perhaps ``y``, or the name of a data set.
    labels : str, optional
        The labels where the files have none: numbers with commas in the order of the file names,
        a text file with a label, or a name and a label, in each line, or 'predicted'.
    split, count, seed, fit
        As for `besiege.data.load`.
    """
    path = Path(os.path.expanduser(source))
    named, plain = source in CATALOGUE, os.path.isfile(path)  # Path.is_file raises for some texts
    if not named and plain and path.suffix.lower() in ENDINGS:
        found = _loose(path.parent, [path.name], fit, labels)
    elif not named and os.path.isdir(path) and not _folders(path):
        names = sorted(p.name for p in path.iterdir() if _is_image(p))
        if not names:
            kinds = ", ".join(sorted(ending[1:] for ending in ENDINGS))
            raise DataError(f"{path} holds no images: files that end in {kinds} are read")
        found = _loose(path, names, fit, labels)
    elif not named and plain and path.suffix.lower() == ".npz" and not has_labels(path, split):
        found = _arrays(path, split, labels, fit)
    else:
        if labels is not None and (named or os.path.exists(path)):
            raise InputError(f"{source} has labels of its own: leave --labels out")
        return _labelled(source, split, count, seed, fit)
    if count is not None:
        found = replace(found, data=found.data.subset(count, seed))
    return found


def _labelled(
    source: str, split: str, count: int | None, seed: int, fit: Mapping[str, Any]
) -> Inputs:
    data = load(source, split=split, count=count, seed=seed, **fit)
    if isinstance(data.pixels, Pictures):
        pairs = zip(data.ids.tolist(), data.pixels.files, strict=True)
        return Inputs(data, dict(pairs), "the names of the folders")
    names = {number: f"{number:05d}" for number in data.ids.tolist()}
    return Inputs(data, names, "the data")


def _loose(root: Path, names: Sequence[str], fit: Mapping[str, Any], labels: str | None) -> Inputs:
    """Images without class folders."""
    if fit.get("layout") is not None:
        raise InputError("layout is for arrays: leave it out")
    how = Fit.of(**{name: value for name, value in fit.items() if name != "layout"})
    heads = [header(root / name) for name in names]
    channels = how.channels or (1 if all(head.grey for head in heads) else 3)
    sizes = [how.final(head.size, root / name) for head, name in zip(heads, names, strict=True)]
    other = next((row for row, size in enumerate(sizes) if size != sizes[0]), None)
    if other is not None:
        raise InputError(
            f"the images have different sizes: {names[0]} is {shown(sizes[0])} and {names[other]} "
            f"{shown(sizes[other])} (height x width): give --resize, such as --resize 32x32"
        )
    numbers = {name: file_id(name) for name in names}
    order = sorted(names, key=numbers.__getitem__)
    given = _given(labels, names)
    data = Data.lazy(
        Pictures(root.resolve(), tuple(order), (channels, *sizes[0]), how),
        name=root.name,
        split="all",
        labels=torch.tensor([given.get(name, -1) for name in order]),
        ids=torch.tensor([numbers[name] for name in order]),
        classes=max(given.values(), default=0) + 1,
        class_names=(),
    )
    return Inputs(data, {numbers[name]: name for name in names}, _words(given))


def _arrays(path: Path, split: str, labels: str | None, fit: Mapping[str, Any]) -> Inputs:
    """An ``.npz`` file of images without labels."""
    refuse(**{name: value for name, value in fit.items() if name != "layout"})
    data = from_npz(path, split, fit.get("layout"), labelled=False)
    names = {number: f"{number:05d}" for number in data.ids.tolist()}
    given = _given(labels, list(names.values()))
    if given:
        data = replace(data, labels=torch.tensor(list(given.values())))
    return Inputs(data, names, _words(given))


def _given(labels: str | None, names: Sequence[str]) -> dict[str, int]:
    """The given label of every file; empty where the model predicts them."""
    if labels is None or labels == PREDICTED:
        return {}
    if re.fullmatch(r"[0-9]+(\s*,\s*[0-9]+)*,?", labels.strip()):
        return _in_order(re.findall("[0-9]+", labels), names)
    path = Path(os.path.expanduser(labels))
    if not os.path.isfile(path):
        raise InputError(
            f"--labels is '{short(labels)}', which is not a file: write numbers with commas, a "
            f"text file with 'NAME LABEL' lines, or '{PREDICTED}'"
        )
    if must_be_file(path) > _MOST_TEXT:
        raise DataError(f"{path} is too large for a list of labels: write 'NAME LABEL' lines")
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text: write 'NAME LABEL' lines") from None
    lines = [line for line in lines if line and not line.startswith("#")]
    if all(re.fullmatch("[0-9]+", line) for line in lines):
        return _in_order(lines, names)
    found = {}
    for line in lines:
        pair = named_number(line)
        if pair is None:
            raise InputError(f"'{short(line)}' in {path} is not understood: write NAME LABEL")
        found[pair[0]] = _label(pair[1])
    absent = [name for name in names if name not in found]
    if absent:
        raise InputError(f"{path} has no label for {absent[0]}: write a line for every image")
    return {name: found[name] for name in names}


def _label(text: str) -> int:
    return whole(text, "a label", 0, MOST_CLASSES - 1)


def _in_order(labels: Sequence[str], names: Sequence[str]) -> dict[str, int]:
    if len(labels) != len(names):
        raise InputError(
            f"{len(labels)} labels were given for {len(names)} images: give one for each, in the "
            "order of the file names"
        )
    return dict(zip(names, map(_label, labels), strict=True))


def _words(given: Mapping[str, int]) -> str:
    return "--labels" if given else "the model's own predictions, since none were given"


def _folders(path: Path) -> list[Path]:
    return [p for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")]


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS and not path.name.startswith(".") and path.is_file()


def file_names(names: Mapping[int, str]) -> dict[int, str]:
    """The name of the PNG file of each id; no two inputs share one."""
    taken: set[str] = set()
    found = {}
    for number, name in sorted(names.items(), key=lambda pair: pair[1]):
        inside = Path(name)
        plain = inside.with_suffix(".png") if inside.suffix.lower() in ENDINGS else None
        target = plain or inside.with_name(inside.name + ".png")
        if target.as_posix() in taken:  # 1.jpg beside 1.png
            target = inside.with_name(inside.name.replace(".", "-") + ".png")
        taken.add(target.as_posix())
        found[number] = target.as_posix()
    return found


def write_png(path: Path, image: Tensor, box: tuple[float, float]) -> None:
    """Write an image whose pixels are multiples of 1/255 of the box as PNG, without loss."""
    low, high = box
    pixels = ((image.double() - low) / (high - low) * 255).round().to(torch.uint8).cpu().numpy()
    path.parent.mkdir(parents=True, exist_ok=True)
    shaped = pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, 2)
    Image.fromarray(np.ascontiguousarray(shaped)).save(path, "PNG")


def write_exact(path: Path, arrays: Mapping[str, Tensor]) -> None:
    """Write tensors to an ``.npz`` or ``.safetensors`` file."""
    plain = {name: value.detach().cpu().contiguous() for name, value in arrays.items()}
    if path.suffix == ".npz":
        held: dict[str, Any] = {name: value.numpy() for name, value in plain.items()}
        np.savez_compressed(path, **held)
    else:
        from safetensors.torch import save_file

        save_file(plain, path)

"""Reads data from a map-style dataset or a `DataLoader` of torch; nothing random is accepted.

The samples are chosen first, and only these are read. What is read twice must be the same: a
loader that shuffles, or a transform that augments, would attack other images in every run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, default_collate

from besiege.core.errors import InputError
from besiege.data.arrays import names_of
from besiege.data.dataset import Data, choose, rank
from besiege.data.items import (
    BATCH,
    Block,
    Box,
    Items,
    Reader,
    marks_of,
    must_repeat,
    unchanged_randomness,
)

_AT_ONCE = 1 << 30
"""Size in bytes up to which images stay in memory; more are read again when they are needed."""
_TWICE = 32
"""Samples that are read twice: of images flipped at random, all are the same by 2^-32 only."""


def is_dataset(source: object) -> bool:
    """Whether an object is a dataset or a loader, of torch or alike: its samples have numbers."""
    if isinstance(source, (DataLoader, Dataset)):
        return True
    plain = (str, bytes, tuple, list, Mapping, Tensor, np.ndarray, Data)
    return (
        hasattr(source, "__getitem__")
        and hasattr(source, "__len__")
        and not isinstance(source, plain)
    )


def from_dataset(
    source: Any,
    count: int | None = None,
    seed: int = 0,
    layout: str | None = None,
    box: Box = (0.0, 1.0),
    fit: Any = None,
) -> Data:
    """Samples of a dataset or a loader; a loader's workers and its function of batches are used.

    Ids are the indices in the dataset. Images are in the box, and bytes are scaled to it.
    """
    loader = source if isinstance(source, DataLoader) else None
    dataset: Any = source if loader is None else loader.dataset
    name = _name(dataset)
    reader = Reader(name, dataset, layout=layout, box=box, fit=fit)
    with unchanged_randomness():
        if loader is not None:
            reader = _as_loaded(reader, loader)
            if isinstance(dataset, IterableDataset):
                return _streamed(reader, loader, count, seed)
        elif isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise InputError(
                f"{name} has no samples by number: pass torch.utils.data.DataLoader({name}(...), "
                "batch_size=64), which is read in its order"
            )
        order = range(len(dataset)) if loader is None else _order(loader)
        if not len(order):
            raise InputError(f"{name} has no samples")
        rows = range(len(order)) if count is None else choose(order, count, seed, name)
        indices = sorted(order[row] for row in rows)
        return _data(reader, indices, len(order), None if count is None else seed)


def _as_loaded(reader: Reader, loader: DataLoader[Any]) -> Reader:
    """The reader with the loader's workers and, unless it only stacks, its function."""
    single = loader.batch_sampler is None
    own = None if single or loader.collate_fn is default_collate else loader.collate_fn
    options = {
        "batch_size": loader.batch_size or BATCH,
        "num_workers": loader.num_workers,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "timeout": loader.timeout,
    }
    return replace(reader, collate=own, options=options)


def _order(loader: DataLoader[Any]) -> Sequence[int]:
    """The indices of a loader in its order, which must be the same when it is read again."""
    # Without drawing from the loader's own generator twice: it stays as it was.
    generator = loader.generator
    held = None if generator is None else generator.get_state()
    first, again = (_indices(loader) for _ in range(2))
    if generator is not None and held is not None:
        generator.set_state(held)
    if first != again:
        raise _shuffles()
    if len(set(first)) < len(first):
        raise InputError(
            "the DataLoader gives some samples twice: leave its sampler out, so that it gives each "
            "once"
        )
    return first


def _indices(loader: DataLoader[Any]) -> list[int]:
    if loader.batch_sampler is None:
        return [int(index) for index in loader.sampler]
    return [int(index) for batch in loader.batch_sampler for index in batch]


def _data(reader: Reader, indices: Sequence[int], total: int, chosen_by: int | None) -> Data:
    """The samples of some indices, read once, and some of them twice."""
    found: list[NDArray[np.int64]] = []
    marks: list[bytes] = []
    shape: tuple[int, ...] = ()
    kept: NDArray[np.float32] | None = None
    for pixels, labels in reader.blocks(indices):
        if not shape and 4 * len(indices) * prod(pixels.shape[1:]) <= _AT_ONCE:
            kept = np.empty((len(indices), *pixels.shape[1:]), dtype=np.float32)
        shape = _one_shape(reader, shape, pixels)
        if kept is not None:
            kept[len(marks) : len(marks) + len(pixels)] = pixels[: len(indices) - len(marks)]
        marks += marks_of(pixels, labels)
        found.append(labels)
    if len(marks) != len(indices):
        raise InputError(
            f"{reader.name} gave {len(marks)} samples for {len(indices)} indices: let its "
            "collate_fn keep every sample"
        )
    places = range(0, len(indices), max(1, len(indices) // _TWICE))
    for chosen in filter(
        None, (places[::2], places[1::2])
    ):  # other neighbours: no sample may depend on them
        some, known = [indices[k] for k in chosen], [marks[k] for k in chosen]
        done = 0
        for pixels, labels in reader.blocks(some):
            part = slice(done, done + len(pixels))
            must_repeat(reader, some[part], known[part], pixels, labels)
            done += len(pixels)
    values = np.concatenate(found)
    names = names_of(values, _class_names(reader.dataset, int(values.max())))
    about: dict[str, Any] = {
        "name": reader.name,
        "split": "all",
        "labels": torch.from_numpy(values),
        "ids": torch.tensor(list(indices), dtype=torch.int64),
        "classes": len(names),
        "class_names": names,
        "total": total,
        "chosen_by": chosen_by,
    }
    if kept is not None:
        return Data(images=torch.from_numpy(kept), **about)
    whole: Any = shape
    return Data.lazy(Items(reader, tuple(indices), tuple(marks), whole), **about)


def _streamed(reader: Reader, loader: DataLoader[Any], count: int | None, seed: int) -> Data:
    """The samples of a loader that can only be read in its order; ids count them.

    Of a subset only the chosen samples stay in memory.
    """
    shape: tuple[int, ...] = ()
    kept: dict[int, tuple[NDArray[np.float32], int]] = {}
    first: list[bytes] = []
    different: set[bytes] = set()
    total = 0
    for pixels, labels in _blocks_of(reader, loader):
        shape = _one_shape(reader, shape, pixels)
        marks = marks_of(pixels, labels)
        first += marks[: max(0, _TWICE - len(first))]
        different.update(marks)
        kept |= {total + k: (pixels[k], int(labels[k])) for k in range(len(pixels))}
        total += len(pixels)
        if count is not None and len(kept) > 2 * count + BATCH:
            kept = _fewest(kept, count, seed)
    if not total:
        raise InputError(f"{reader.name} has no samples")
    if loader.num_workers > 1 and 2 * len(different) <= total:
        raise InputError(
            f"{reader.name} gives its samples several times ({total:,}, of which "
            f"{len(different):,} are different): each of the {loader.num_workers} workers reads "
            "all of them. Set num_workers=0, or let every worker read its own part"
        )
    again: list[bytes] = []
    for pixels, labels in _blocks_of(reader, loader):
        again += marks_of(pixels, labels)
        if len(again) >= len(first):
            break
    if again[: len(first)] != first:
        raise InputError(
            f"{reader.name} gives other samples when it is read again: it shuffles or augments. "
            "Let it read the files in a fixed order, with the transform of the test set, so that "
            "every run attacks the same images"
        )
    if count is not None:
        choose(range(total), count, seed, reader.name)  # refuses a count that is too large
        kept = _fewest(kept, count, seed)
    values = np.array([kept[number][1] for number in sorted(kept)], dtype=np.int64)
    names = names_of(values)
    return Data(
        name=reader.name,
        split="all",
        images=torch.from_numpy(np.stack([kept[number][0] for number in sorted(kept)])),
        labels=torch.from_numpy(values),
        ids=torch.tensor(sorted(kept), dtype=torch.int64),
        classes=len(names),
        class_names=names,
        total=total,
        chosen_by=None if count is None else seed,
    )


def _fewest(kept: Mapping[int, Any], count: int, seed: int) -> dict[int, Any]:
    """The samples that `choose` would choose of these."""
    return {number: kept[number] for number in sorted(kept, key=lambda k: rank(seed, k))[:count]}


def _blocks_of(reader: Reader, loader: DataLoader[Any]) -> Iterator[Block]:
    single = loader.batch_size is None and loader.batch_sampler is None
    stacked = replace(reader, collate=default_collate)
    for held in reader._read(loader):
        yield reader.block([held]) if single else stacked.block(held)


def _shuffles() -> InputError:
    return InputError(
        "the DataLoader shuffles: it gives the samples in another order when it is read again. Set "
        "shuffle=False and no random sampler, so that every run attacks the same images"
    )


def _one_shape(reader: Reader, shape: tuple[int, ...], pixels: NDArray[Any]) -> tuple[int, ...]:
    if shape and shape != pixels.shape[1:]:
        raise InputError(
            f"the images of {reader.name} have different shapes, {shape} and {pixels.shape[1:]}: "
            "give the dataset a transform that resizes and crops them"
        )
    return tuple(pixels.shape[1:])


def _name(dataset: Any) -> str:
    """What the data are called: the class of the dataset behind all subsets of it."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return type(dataset).__name__


def _class_names(dataset: Any, highest: int) -> list[str] | None:
    """The names of the classes, where the dataset lists enough of them."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    names = getattr(dataset, "classes", None)
    listed = isinstance(names, (list, tuple)) and len(names) > highest
    return [str(name) for name in names] if listed else None  # type: ignore[union-attr]

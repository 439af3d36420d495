"""`Data`: images with labels and ids, in memory or decoded from disk on first use."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import index as whole
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor

from besiege.core.errors import InputError
from besiege.core.text import MOST, check_whole

_AT_A_TIME = 256
"""How many undecoded images a digest decodes at a time."""


class Pixels(Protocol):
    """Images that are decoded when they are needed."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""

    def at(self, rows: Sequence[int]) -> Pixels:
        """The images in these rows, still undecoded."""

    def decode(self) -> Tensor:
        """All of them: float32 ``[rows, channels, height, width]`` in [0, 1], contiguous."""


@dataclass(frozen=True, eq=False)
class Data:
    """Samples of a data set, in ascending order of their ids.

    Images are in memory, or (`lazy`) on disk until `images` is first read; `take`, `subset` and
    `shards` of undecoded samples decode nothing.

    Parameters
    ----------
    name, split : str
        Which data set, and which part of it; ``"all"`` for data without parts.
    images : Tensor
        float32 ``[rows, channels, height, width]`` in [0, 1], contiguous.
    labels, ids : Tensor
        int64 ``[rows]``; the id is the index in the public order of a named set, or 63 bits of the
        hash of a file's relative path.
    classes : int
        Number of classes of the data set.
    class_names : tuple of str
        Their names, in the order of the labels.
    total : int
        Number of samples in the whole split; by default the number of these.
    chosen_by : int, optional
        The seed that chose these samples from the split, if they are a subset.
    files : tuple of str, optional
        The file of every sample, relative to the folder of class folders. Ids follow from them:
        they are no part of the digest.
    """

    name: str
    split: str
    images: Tensor
    labels: Tensor
    ids: Tensor
    classes: int
    class_names: tuple[str, ...]
    total: int = 0
    chosen_by: int | None = None
    files: tuple[str, ...] | None = None
    pixels: Pixels | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.total == 0:
            object.__setattr__(self, "total", len(self.ids))
        given = self.__dict__["images"]
        if not isinstance(given, Tensor):
            # Removed, so that the first access to `images` reaches `__getattr__`, which decodes.
            del self.__dict__["images"]
            object.__setattr__(self, "pixels", given)

    if not TYPE_CHECKING:  # for a type checker `images` is a plain field

        def __getattr__(self, name: str) -> Any:
            pixels = self.__dict__.get("pixels")
            if name != "images" or pixels is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            images = pixels.decode()
            object.__setattr__(self, "images", images)
            return images

    @classmethod
    def lazy(cls, pixels: Pixels, **others: Any) -> Data:
        """Samples whose images are decoded when `images` is first read.

        The other fields are those of `Data`, by name.
        """
        return cls(images=cast(Tensor, pixels), **others)

    @property
    def decoded(self) -> bool:
        """Whether the images are in memory."""
        return "images" in self.__dict__

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of every image; decodes nothing."""
        return self.pixels.shape if self.pixels is not None else tuple(self.images.shape[1:])

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return f"Data({self.name!r}, {self.split!r}, {len(self)} images {shape})"

    @cached_property
    def digest(self) -> str:
        """SHA-256 of images, labels and ids, as hexadecimal text; decodes a few at a time."""
        digest = hashlib.sha256()
        if self.decoded:
            _feed(digest, self.images)
        else:
            digest.update(f"{torch.float32}{(len(self), *self.shape)}".encode())
            for shard in self.shards(_AT_A_TIME):
                digest.update(shard.images.numpy().data)
        _feed(digest, self.labels)
        _feed(digest, self.ids)
        return digest.hexdigest()

    def take(self, rows: Sequence[int] | Tensor) -> Data:
        """The samples in these rows, in the order given; a mask of booleans works too."""
        try:
            index = torch.as_tensor(rows)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            index = torch.empty(())
        wrong = index.is_floating_point() or index.is_complex() or index.is_sparse or index.is_meta
        if index.dim() != 1 or (wrong and len(index)):
            raise InputError("rows must be a list or tensor of whole numbers, or a mask")
        if index.dtype == torch.bool:
            if index.shape != self.ids.shape:
                raise InputError(
                    f"the mask has {len(index)} rows, but there are {len(self)} samples"
                )
            index = index.nonzero()[:, 0]
        index = index.to(torch.int64)
        if len(index) and not (-len(self) <= int(index.min()) <= int(index.max()) < len(self)):
            raise InputError(
                f"rows {int(index.min())} to {int(index.max())} of {len(self)} samples do not "
                f"exist: rows are counted from 0 to {len(self) - 1}"
            )
        return self._at(index, self.chosen_by)

    def subset(self, count: int, seed: int = 0) -> Data:
        """A random subset by seed; a larger count contains every smaller one."""
        rows = choose(self.ids.tolist(), count, seed, f"{self.name} ({self.split})")
        return self._at(torch.tensor(rows), seed)

    def shards(self, size: int) -> Iterator[Data]:
        """The samples in shards of this size, in order; the last may be smaller.

        Undecoded images are decoded shard by shard, so that only one is in memory.

        Examples
        --------
        >>> import besiege
        >>> [len(shard) for shard in besiege.data.load("digits").shards(200)]
        [200, 197]
        """
        check_whole(size, "the size of a shard")
        return (
            self.take(range(begin, min(begin + size, len(self))))
            for begin in range(0, len(self), size)
        )

    def _at(self, rows: Tensor, chosen_by: int | None) -> Data:
        lazy = None if self.decoded else self.pixels
        places = rows.tolist()
        some: Any = self.images[rows] if lazy is None else lazy.at(places)
        return replace(
            self,
            images=some,
            labels=self.labels[rows],
            ids=self.ids[rows],
            chosen_by=chosen_by,
            files=None if self.files is None else tuple(self.files[row] for row in places),
        )


def choose(ids: Sequence[int], count: int, seed: int, what: str) -> list[int]:
    """The rows of a random subset by seed, in ascending order of ids; errors name `what`."""
    try:
        wanted, seed = whole(count), whole(seed)
    except TypeError:
        raise InputError(
            f"the count is a {type(count).__name__} and the seed a {type(seed).__name__}, but "
            "whole numbers are expected"
        ) from None
    check_whole(wanted, "the count", -MOST)
    check_whole(seed, "the seed", -MOST - 1)
    if not 1 <= wanted <= len(ids):
        raise InputError(
            f"{wanted} samples of {what} were requested, which has {len(ids)}: request 1 to "
            f"{len(ids)}"
        )
    ranked = sorted(range(len(ids)), key=lambda row: rank(seed, ids[row]))
    return sorted(ranked[:wanted], key=lambda row: ids[row])


def rank(*parts: int) -> bytes:
    """A pseudo-random sort key that does not depend on any library's version."""
    return hashlib.sha256(":".join(map(str, parts)).encode()).digest()


def _feed(digest: Any, tensor: Tensor) -> None:
    content = tensor.cpu().contiguous()
    digest.update(f"{content.dtype}{tuple(content.shape)}".encode())
    digest.update(content.numpy().data)

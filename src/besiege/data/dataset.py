"""Samples: images with labels and ids that stay the same wherever they are used."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from besiege.core.errors import InputError


@dataclass(frozen=True, eq=False)
class Data:
    """Samples of a data set, in ascending order of their ids.

    Parameters
    ----------
    name, split : str
        Which data set, and which part of it.
    images : Tensor
        float32 ``[rows, channels, height, width]`` in [0, 1], contiguous.
    labels, ids : Tensor
        int64 ``[rows]``; the id is the index in the public order.
    classes : int
        How many classes the data set has.
    class_names : tuple of str
        Their names, in the order of the labels.
    """

    name: str
    split: str
    images: Tensor
    labels: Tensor
    ids: Tensor
    classes: int
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.images.shape[1:]))
        return f"Data({self.name!r}, {self.split!r}, {len(self)} images {shape})"

    @cached_property
    def digest(self) -> str:
        """SHA-256 of images, labels and ids, as hexadecimal text."""
        digest = hashlib.sha256()
        for tensor in (self.images, self.labels, self.ids):
            content = tensor.cpu().contiguous()
            digest.update(f"{content.dtype}{tuple(content.shape)}".encode())
            digest.update(content.numpy().tobytes())
        return digest.hexdigest()

    def take(self, rows: Sequence[int] | Tensor) -> Data:
        """The samples in these rows."""
        index = torch.as_tensor(rows, dtype=torch.int64)
        return replace(
            self, images=self.images[index], labels=self.labels[index], ids=self.ids[index]
        )

    def subset(self, count: int, seed: int = 0) -> Data:
        """A seeded choice of samples; a larger count contains every smaller one."""
        if not 1 <= count <= len(self):
            raise InputError(
                f"{count} samples were asked of {self.name} ({self.split}), which has {len(self)}: "
                f"ask for 1 to {len(self)}"
            )
        ranked = sorted(range(len(self)), key=lambda row: rank(seed, int(self.ids[row])))
        return self.take(sorted(ranked[:count], key=lambda row: int(self.ids[row])))


def rank(*parts: int) -> bytes:
    """A key to sort by that looks random and never changes with a library's version."""
    return hashlib.sha256(":".join(map(str, parts)).encode()).digest()

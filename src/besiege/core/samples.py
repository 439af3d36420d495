"""Samples to attack: images, labels and stable ids, checked before any work starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from besiege.core.errors import InputError

_SLACK = 1e-6
"""How far rounding may put a pixel outside the box; it is clamped silently."""


def in_box(images: Tensor, box: tuple[float, float]) -> Tensor:
    """Images with pixels in [0, 1], as data have them, with pixels in the box of a model.

    Examples
    --------
    >>> in_box(torch.tensor([0.0, 0.5, 1.0]), (-1.0, 1.0))
    tensor([-1.,  0.,  1.])
    """
    low, high = box
    return images if box == (0.0, 1.0) else images * (high - low) + low


@runtime_checkable
class Labelled(Protocol):
    """Images with their labels and ids, as `besiege.data.load` returns them: pixels in [0, 1]."""

    @property
    def images(self) -> Tensor:
        """float32 ``[rows, channels, height, width]``."""

    @property
    def labels(self) -> Tensor:
        """int64 ``[rows]``."""

    @property
    def ids(self) -> Tensor:
        """int64 ``[rows]``."""


@dataclass(frozen=True)
class Withheld:
    """Images that must not be evaluated, because the victim was calibrated on them.

    Attributes
    ----------
    data, split : str
        Name and part of the data set.
    ids : tuple of int
        Ids of the images, ascending.
    digest : str
        SHA-256 of images, labels and ids.
    """

    data: str
    split: str
    ids: tuple[int, ...]
    digest: str


@dataclass(frozen=True)
class WithheldImages(Withheld):
    """The same, with a digest of the pixels of each image, in no order that matters.

    Apart from `Withheld`, whose code is part of the digests of victims that were made before.

    Attributes
    ----------
    contents : tuple of str
        Digests of single images, as `besiege.data.contents` makes them.
    """

    contents: tuple[str, ...] = ()


@dataclass(frozen=True)
class Samples:
    """Images with labels, ids and, for given targets, the classes to reach.

    Parameters
    ----------
    images : Tensor
        float32 ``[rows, channels, height, width]`` inside the victim's box.
    labels, ids : Tensor
        int64 ``[rows]``.
    targets : Tensor, optional
        int64 ``[rows]``.
    """

    images: Tensor
    labels: Tensor
    ids: Tensor
    targets: Tensor | None = None

    def __len__(self) -> int:
        return len(self.images)

    def at(self, rows: Tensor) -> Samples:
        """Some of the samples."""
        targets = None if self.targets is None else self.targets[rows]
        return Samples(self.images[rows], self.labels[rows], self.ids[rows], targets)

    @classmethod
    def joined(cls, parts: Sequence[Samples]) -> Samples:
        """The samples of several parts, one after the other; their ids must differ."""
        images, labels, ids = (
            torch.cat([getattr(part, name) for part in parts])
            for name in ("images", "labels", "ids")
        )
        aims = [part.targets for part in parts if part.targets is not None]
        return cls(images, labels, ids, torch.cat(aims) if aims else None)

    def to(self, device: torch.device) -> Samples:
        """The same samples on a device."""
        targets = None if self.targets is None else self.targets.to(device)
        return Samples(self.images.to(device), self.labels.to(device), self.ids.to(device), targets)

    def toward(self, target: int | None) -> Samples:
        """The same samples with one target class for all; None leaves them as they are.

        Examples
        --------
        >>> import torch
        >>> Samples.of(torch.zeros(2, 1, 1, 1), torch.tensor([0, 1])).toward(3).targets
        tensor([3, 3])
        """
        if target is None:
            return self
        if self.targets is not None and bool((self.targets != target).any()):
            raise InputError(f"targets were given, and the threat has the class {target}: give one")
        aimed = replace(self, targets=torch.full_like(self.labels, target))
        aimed.check_classes(None)
        return aimed

    @classmethod
    def of(
        cls,
        images: Any,
        labels: Any,
        *,
        box: tuple[float, float] = (0.0, 1.0),
        classes: int | None = None,
        ids: Any = None,
        targets: Any = None,
    ) -> Samples:
        """Samples from a caller's tensors or arrays; an error says what to change in them.

        The caller's tensors are copied, never changed.
        """
        with torch.inference_mode(False), torch.no_grad():
            pixels = _images(images, box)
            n = len(pixels)
            classified = _whole(labels, "labels", n, pixels.device)
            aims = None if targets is None else _whole(targets, "targets", n, pixels.device)
            numbers = _whole(torch.arange(n) if ids is None else ids, "ids", n, pixels.device)
            if len(torch.unique(numbers)) != n:
                raise InputError("the ids are not unique: every sample needs an id of its own")
            samples = cls(pixels, classified, numbers, aims)
            samples.check_classes(classes)
            return samples

    def check_classes(self, classes: int | None) -> None:
        """Refuse labels and targets outside the victim's classes, as far as these are known."""
        for name, values in (("labels", self.labels), ("targets", self.targets)):
            if values is None:
                continue
            wrong = values < 0 if classes is None else (values < 0) | (values >= classes)
            if bool(wrong.any()):
                row = int(wrong.nonzero()[0, 0])
                known = "" if classes is None else f" to {classes - 1}: the model has {classes}"
                raise InputError(
                    f"{name}[{row}] is {int(values[row])}, but classes are whole numbers from "
                    f"0{known}"
                )
        if self.targets is not None and bool((self.targets == self.labels).any()):
            row = int((self.targets == self.labels).nonzero()[0, 0])
            raise InputError(
                f"targets[{row}] is the label itself ({int(self.labels[row])}): "
                "a target must be another class"
            )


def _tensor(values: Any, name: str) -> Tensor:
    try:
        tensor = torch.as_tensor(values).detach()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"{name} must be a tensor or an array, not {type(values).__name__}"
        ) from None
    if tensor.is_meta:
        raise InputError(f"{name} are a meta tensor, which has no values")
    if tensor.is_nested:
        raise InputError(
            f"{name} are a nested tensor: bring all rows to one size, torch.stack(...)"
        )
    if tensor.layout is not torch.strided:
        kind = str(tensor.layout).removeprefix("torch.")
        raise InputError(f"{name} are a tensor of layout {kind}: pass {name}.to_dense()")
    return tensor


def is_near(low: float, high: float, box: tuple[float, float]) -> bool:
    """Whether pixels exceed the box so little that they are neither bytes nor normalised."""
    width = box[1] - box[0]
    return low >= box[0] - 0.1 * width and high <= box[1] + width


def _images(images: Any, box: tuple[float, float]) -> Tensor:
    pixels = _tensor(images, "images")
    if not pixels.is_floating_point():
        raise InputError(
            f"images are {str(pixels.dtype).removeprefix('torch.')}, but pixels must be floating "
            f"point numbers in the model's box {box}: for bytes, pass images.float() / 255"
        )
    if pixels.dim() != 4:
        raise InputError(
            f"images have the shape {tuple(pixels.shape)}, but [rows, channels, height, width] is "
            "expected: for one image, pass image[None]"
        )
    if len(pixels) == 0:
        raise InputError("there are no images: the batch is empty")
    if 0 in pixels.shape:
        raise InputError(f"images have the shape {tuple(pixels.shape)}: they have no pixels")
    pixels = pixels.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    flat = pixels.flatten(1)
    invalid = ~torch.isfinite(flat).all(1)
    if bool(invalid.any()):
        row = int(invalid.nonzero()[0, 0])
        raise InputError(
            f"images[{row}] has pixels that are NaN or infinite ({int(invalid.sum())} of "
            f"{len(pixels)} images do): clean the data first"
        )
    low, high = float(flat.min()), float(flat.max())
    if low < box[0] - _SLACK or high > box[1] + _SLACK:
        if is_near(low, high, box):
            advice = "Clip them to that range, or scale them"
        elif low >= 0 and 2 * box[1] < high <= 100 * box[1]:
            advice = f"Divide them by the value that stands for white, such as {high:g}"
        elif low >= 0 and high > 2 * box[1]:
            advice = "These look like bytes: pass images / 255"
        else:
            advice = (
                "If they are normalised already, undo that (x * std + mean) and put it into the "
                "model: Classifier(net, mean=..., std=...). A model made for another range says "
                "so: Classifier(net, box=(-1, 1)); budgets are then in the units of that box"
            )
        raise InputError(
            f"images reach from {low:.4g} to {high:.4g}, but the model's box is {box}. {advice}"
        )
    return pixels.clamp_(*box)


def _whole(values: Any, name: str, rows: int, device: torch.device) -> Tensor:
    numbers = _tensor(values, name)
    if numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool:
        raise InputError(
            f"{name} are {str(numbers.dtype).removeprefix('torch.')}, but whole numbers are "
            f"expected: pass {name}.long()"
        )
    if numbers.dim() != 1 or len(numbers) != rows:
        raise InputError(
            f"{name} have the shape {tuple(numbers.shape)}, but one per image is expected: [{rows}]"
            + (f"; for one-hot {name}, pass {name}.argmax(1)" if numbers.dim() == 2 else "")
        )
    return numbers.to(device=device, dtype=torch.int64, copy=True)

"""Reads the preprocessing that torchvision, timm, transformers or robustbench declare for a model.

What is read is compared with the package's own transform of probe images: a step that besiege does
not know, or reads wrongly, is an error and never a silent change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from besiege.core.errors import InputError
from besiege.models.sizing import Sizing

Numbers = tuple[float, ...]
_TO_TENSOR = ("ToTensor", "MaybeToTensor", "PILToTensor", "MaybePILToTensor", "ConvertImageDtype")
"""Steps that turn pictures into tensors in [0, 1], which images are already."""
_PILLOW = {0: "nearest", 2: "bilinear", 3: "bicubic"}
CLOSE = 1e-4
"""Largest difference between our pixels and the package's, after the normalisation."""
ROUNDED = 2 / 255
"""The same before the normalisation, where the package rounds to bytes; errors are larger."""


@dataclass(frozen=True)
class Preprocessing:
    """What happens to images before a network sees them: sizing, then normalisation."""

    sizing: Sizing | None = None
    mean: Numbers | None = None
    std: Numbers | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Images in [0, 1] as the network gets them."""
        if self.sizing is not None:
            x = self.sizing(x)
        if self.mean is None or self.std is None:
            return x
        mean, std = (torch.tensor(v).reshape(-1, 1, 1) for v in (self.mean, self.std))
        return (x - mean) / std

    def sized(self, when: str) -> Preprocessing:
        """With images resized 'auto' (unless they have the final size), 'always' or 'never'."""
        if when == "never" or self.sizing is None:
            return replace(self, sizing=None)
        return replace(self, sizing=replace(self.sizing, always=when == "always"))


def of_preset(own: Any, where: str) -> Preprocessing:
    """From the transform of torchvision's weights."""
    if type(own).__name__ != "ImageClassification":
        raise InputError(
            f"{where} is no classifier of images: its preprocessing is {type(own).__name__}"
        )
    sizing = Sizing(_length(own.resize_size), _both(own.crop_size), _mode(own.interpolation, where))
    read = Preprocessing(sizing, _numbers(own.mean), _numbers(own.std))
    return _compared(read, own, where)


def of_steps(own: Any, where: str) -> Preprocessing:
    """From a composition of torchvision's transforms, as timm and robustbench make them."""
    sizing, read = Sizing(), Preprocessing()
    expected = ["Resize", "CenterCrop", "Normalize"]
    for step in own.transforms:
        kind = type(step).__name__
        if kind in _TO_TENSOR:
            continue
        if kind not in expected:
            raise _unknown(where, kind)
        del expected[: expected.index(kind) + 1]  # each once, and in this order
        if kind == "Resize":
            mode = _mode(step.interpolation, where)
            sizing = replace(sizing, resize=_length(step.size), interpolation=mode)
        elif kind == "CenterCrop":
            sizing = replace(sizing, crop=_both(step.size))
        else:
            read = Preprocessing(None, _numbers(step.mean), _numbers(step.std))
    if sizing != Sizing():
        read = replace(read, sizing=sizing)

    def theirs(x: Tensor) -> Tensor:
        for step in own.transforms:
            if type(step).__name__ not in _TO_TENSOR:
                x = step(x)
        return x

    return _compared(read, theirs, where)


def of_processor(own: Any, where: str) -> Preprocessing:
    """From an image processor of transformers."""
    if hasattr(own, "val_transforms"):  # a timm model on the Hugging Face hub
        return of_steps(own.val_transforms, where)
    sizing = None
    if getattr(own, "do_resize", None) or getattr(own, "do_center_crop", None):
        mode = _PILLOW.get(int(own.resample))
        if mode is None:
            raise _unknown(where, f"resampling {own.resample}")
        sizing = _sizing_of(own, where, mode)
    read = Preprocessing(sizing, *_scales_of(own))

    def theirs(x: Tensor) -> Tensor:  # of bytes, which every processor takes
        bytes_ = (255 * x).round().to(torch.uint8)
        made: Tensor = torch.as_tensor(own(list(bytes_), return_tensors="pt")["pixel_values"])
        return made

    return _compared(read, theirs, where, ROUNDED / min(read.std or (1.0,)))


def _scales_of(own: Any) -> tuple[Numbers, Numbers]:
    """Mean and std, for pixels in [0, 1], of an image processor."""
    factor = 255 * own.rescale_factor if getattr(own, "do_rescale", None) else 255.0
    mean: Numbers = (0.0,) * 3
    std: Numbers = (1.0,) * 3
    if getattr(own, "do_normalize", False):
        mean, std = _numbers(own.image_mean), _numbers(own.image_std)
    # EfficientNet's processor may subtract 1 first, and divides by std twice.
    lower = 1.0 if getattr(own, "rescale_offset", False) else 0.0
    again = std if getattr(own, "include_top", False) else (1.0,) * len(std)
    return (
        tuple((value + lower) / factor for value in mean),
        tuple(value * more / factor for value, more in zip(std, again, strict=True)),
    )


def _sizing_of(own: Any, where: str, mode: str) -> Sizing:
    """The sizing of an image processor; ConvNeXT's has a rule of its own, with `crop_pct`."""
    short, both = None, None
    if getattr(own, "do_resize", None):
        size = _entries(own.size)
        short = size.get("shortest_edge")
        if short is None:
            both = (size.get("height"), size.get("width"))
        if (short is None) == (both is None or None in both) or size.get("longest_edge"):
            raise _unknown(where, f"size {size}")
    resize, crop = short or both, None
    if getattr(own, "do_center_crop", None):
        cut = _entries(own.crop_size)
        crop = (cut["height"], cut["width"])
    percent = getattr(own, "crop_pct", None)
    if short is not None and percent is not None:
        resize, crop = (
            (int(short / percent), (short, short)) if short < 384 else ((short,) * 2, None)
        )
    return Sizing(resize, crop, mode, round_down=True)  # type: ignore[arg-type]  # checked above


def _entries(size: Any) -> dict[str, int]:
    """The entries of a size that are set; transformers has had several types for it."""
    held = dict(size) if isinstance(size, Mapping) else dict(vars(size))
    return {str(name): int(value) for name, value in held.items() if value is not None}


def _compared(
    read: Preprocessing, own: Callable[[Tensor], Tensor], where: str, close: float = CLOSE
) -> Preprocessing:
    """What was read, if the package makes the same of probe images."""
    for x in _probes(read.sizing):
        with torch.no_grad():
            theirs = own(x)
            try:
                ours = read.sized("always")(x)
            except InputError:  # a crop larger than the image, which packages pad
                raise _unknown(where, "a border around small images") from None
        if theirs.shape != ours.shape or not bool(((theirs - ours).abs() <= close).all()):
            raise _unknown(where, "a step that besiege reads wrongly")
    return read


def _probes(sizing: Sizing | None) -> Iterator[Tensor]:
    """Noise in bytes, of other sizes than the network takes: large and wide, small and high."""
    noise = torch.Generator().manual_seed(0)
    sizes = [(32, 32)] if sizing is None else list(_probed(sizing))
    for size in sizes:  # of half the contrast: of bytes, cubic interpolation would be clipped
        yield torch.randint(64, 192, (1, 3, *size), generator=noise) / 255


def _probed(sizing: Sizing) -> Iterator[tuple[int, int]]:
    """Height and width of the probes of a sizing."""
    crop = sizing.crop or (32, 32)
    most = sizing.resize if isinstance(sizing.resize, int) else max(sizing.resize or crop)
    for short, high in ((most + most // 4, False), (most if sizing.resize is None else 37, True)):
        # Where the middle is between two pixels, packages round in different ways.
        long = next(
            (
                side
                for side in range(short + 1, 2 * short)
                if (sizing.resized(short, side)[1] - crop[1]) % 4 == 3
            ),
            short + 1,
        )
        yield (long, short) if high else (short, long)


def _unknown(where: str, what: str) -> InputError:
    return InputError(
        f"the preprocessing of {where} has {what}, which besiege cannot put inside the model: load "
        "the model yourself, prepare the images with its own transform, and pass "
        "besiege.Classifier(model, mean=..., std=...)"
    )


def _mode(value: Any, where: str) -> Any:
    """An interpolation by its name; it may be an enumeration."""
    name = str(getattr(value, "value", value))
    if name not in _PILLOW.values():
        raise _unknown(where, f"the interpolation '{name}'")
    return name


def _length(size: Any) -> int | tuple[int, int]:
    """The shorter side, or height and width."""
    sides = (int(size),) if isinstance(size, int) else tuple(int(side) for side in size)
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])


def _both(size: Any) -> tuple[int, int]:
    length = _length(size)
    return length if isinstance(length, tuple) else (length, length)


def _numbers(values: Any) -> Numbers:
    return tuple(float(value) for value in values)

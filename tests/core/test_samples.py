from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from tests.victims import uniform
from torch import Tensor

from besiege.core.errors import InputError
from besiege.core.samples import Samples

IMAGES = uniform(4, 3, 5, 6)
LABELS = torch.tensor([0, 1, 2, 9])


def of(images: Any = IMAGES, labels: Any = LABELS, **more: Any) -> Samples:
    return Samples.of(images, labels, **{"classes": 10, **more})


def nan(row: int, value: float) -> Tensor:
    images = IMAGES.clone()
    images[row, 1, 2, 3] = value
    return images


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "bytes": ({"images": (IMAGES * 255).byte()}, r"uint8.*images\.float\(\) / 255"),
    "whole numbers": ({"images": IMAGES.long()}, "int64"),
    "no tensor": ({"images": "cat.png"}, "tensor or an array, not str"),
    "one image": ({"images": IMAGES[0]}, r"\(3, 5, 6\).*pass image\[None\]"),
    "flat images": ({"images": IMAGES.flatten(1)}, "channels, height, width"),
    "no images": ({"images": IMAGES[:0], "labels": LABELS[:0]}, "empty"),
    "no pixels": ({"images": IMAGES[:, :, :0]}, "no pixels"),
    "NaN": ({"images": nan(2, torch.nan)}, r"images\[2\].*NaN.*1 of 4"),
    "infinite": ({"images": nan(3, torch.inf)}, r"images\[3\].*infinite"),
    "bytes as numbers": ({"images": IMAGES * 255}, r"box is \(0\.0, 1\.0\).*images / 255"),
    "normalised": ({"images": (IMAGES - 0.5) / 0.25}, r"mean=\.\.\., std="),
    "below the box": ({"images": IMAGES - 0.5}, "reach from -0.4"),
    "one-hot labels": ({"labels": torch.eye(4).long()}, r"labels\.argmax\(1\)"),
    "just outside": ({"images": nan(0, 1.0001)}, "reach from"),
    "a little above": ({"images": nan(0, 1.01)}, r"to 1\.01, .*\(0\.0, 1\.0\)\. Clip .*or scale"),
    "a little below": ({"images": nan(0, -0.05)}, r"from -0\.05 .* Clip them"),
    "too few labels": ({"labels": LABELS[:3]}, r"labels.*\(3,\).*\[4\]"),
    "too many labels": ({"labels": torch.arange(5)}, r"labels.*\(5,\).*\[4\]"),
    "column of labels": ({"labels": LABELS[:, None]}, r"\(4, 1\)"),
    "float labels": ({"labels": LABELS.float()}, r"float32.*pass labels\.long\(\)"),
    "boolean labels": ({"labels": LABELS > 1}, "bool"),
    "label too large": ({"labels": torch.tensor([0, 1, 10, 3])}, r"labels\[2\] is 10.* 0 to 9"),
    "label negative": ({"labels": torch.tensor([0, -1, 1, 3])}, r"labels\[1\] is -1"),
    "label negative, classes unknown": (
        {"labels": torch.tensor([0, -1, 1, 3]), "classes": None},
        r"labels\[1\] is -1",
    ),
    "target too large": ({"targets": torch.tensor([1, 2, 3, 10])}, r"targets\[3\] is 10"),
    "target is label": ({"targets": torch.tensor([1, 2, 2, 0])}, r"targets\[2\].*label itself"),
    "target is label, classes unknown": (
        {"targets": torch.tensor([1, 2, 2, 0]), "classes": None},
        "another class",
    ),
    "too few targets": ({"targets": torch.tensor([1])}, "targets have the shape"),
    "float targets": ({"targets": torch.ones(4)}, "targets are float32"),
    "same id twice": ({"ids": torch.tensor([3, 4, 3, 5])}, "not unique"),
    "too few ids": ({"ids": torch.tensor([3, 4])}, "ids have the shape"),
    "float ids": ({"ids": torch.rand(4)}, "ids are float32"),
    "ragged labels": ({"labels": [[1], [1, 2]]}, "labels must be a tensor"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_what_to_do(name: str) -> None:
    given, said = BAD[name]
    with pytest.raises(InputError, match=said):
        of(**given)


def test_good_input_becomes_float32_and_int64() -> None:
    samples = of(IMAGES.double().numpy(), [0, 1, 2, 9], ids=np.array([7, 5, 3, 1], dtype=np.uint8))
    assert samples.images.dtype == torch.float32
    assert samples.labels.dtype == samples.ids.dtype == torch.int64
    assert torch.equal(samples.images, IMAGES)
    assert samples.ids.tolist() == [7, 5, 3, 1]
    assert len(samples) == 4 and samples.targets is None
    assert of().ids.tolist() == [0, 1, 2, 3]
    assert of(IMAGES.half()).images.dtype == torch.float32


def test_the_callers_tensors_are_copied() -> None:
    images, labels, ids, targets = (
        IMAGES.clone().requires_grad_(True),
        LABELS.clone(),
        torch.arange(4),
        (LABELS + 1) % 10,
    )
    samples = of(images, labels, ids=ids, targets=targets)
    assert not samples.images.requires_grad
    assert samples.targets is not None
    for mine in (samples.images, samples.labels, samples.ids, samples.targets):
        mine.zero_()
    assert torch.equal(images, IMAGES) and torch.equal(labels, LABELS)
    assert torch.equal(ids, torch.arange(4)) and torch.equal(targets, (LABELS + 1) % 10)


def test_other_memory_layouts_become_contiguous() -> None:
    odd = IMAGES.contiguous(memory_format=torch.channels_last)
    assert of(odd).images.is_contiguous() and torch.equal(of(odd).images, IMAGES)
    every_second = uniform(8, 3, 5, 6)[::2]
    assert of(every_second).images.is_contiguous()


def test_inference_tensors_become_ordinary_ones() -> None:
    with torch.inference_mode():
        images = IMAGES * 1.0
        samples = of(images)
    assert images.is_inference() and not samples.images.is_inference()
    assert not samples.labels.is_inference() and not samples.ids.is_inference()


def test_rounding_outside_the_box_is_cut_and_other_boxes_work() -> None:
    images = IMAGES.clone()
    images[0, 0, 0, 0], images[1, 0, 0, 0] = 1 + 5e-7, -5e-7
    samples = of(images)
    assert samples.images.max() == 1 and samples.images.min() == 0
    wide = of(IMAGES * 255, box=(0.0, 255.0))
    assert torch.equal(wide.images, IMAGES * 255)


def test_parts_keep_what_belongs_together() -> None:
    samples = of(ids=torch.tensor([5, 6, 7, 8]), targets=(LABELS + 1) % 10)
    some = samples.at(torch.tensor([2, 0]))
    assert torch.equal(some.images, IMAGES[[2, 0]])
    assert some.labels.tolist() == [2, 0] and some.ids.tolist() == [7, 5]
    assert some.targets is not None and some.targets.tolist() == [3, 1]
    moved = samples.to(torch.device("cpu"))
    assert torch.equal(moved.images, samples.images) and moved.targets is not None
    assert of().at(torch.tensor([1])).targets is None


def test_nested_tensors_are_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        nested = torch.nested.nested_tensor([torch.zeros(1, 2, 2), torch.zeros(1, 3, 3)])
    with pytest.raises(InputError, match="nested tensor"):
        Samples.of(nested, torch.zeros(2, dtype=torch.int64))

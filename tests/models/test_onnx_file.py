"""ONNX files as victims: what the file says of its input is kept, and scores are those it gives."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.onnx_bytes import linear

import besiege
from besiege.core.errors import AccessError, DataError, InputError, VictimError
from besiege.core.threat import Access
from besiege.defenses import load
from besiege.models import OnnxModel

pytest.importorskip("onnxruntime")

SHAPE = (1, 4, 4)
WEIGHT = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(7, *SHAPE, generator=torch.Generator().manual_seed(1))


def written(tmp_path: Path, name: str = "net.onnx", **about: Any) -> Path:
    path = tmp_path / name
    path.write_bytes(linear(WEIGHT, about.pop("shape", ("n", *SHAPE)), **about))
    return path


def expected(images: torch.Tensor) -> torch.Tensor:
    return images.flatten(1) @ torch.from_numpy(WEIGHT)


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"shape": (1, *SHAPE)},
        {"shape": (4, *SHAPE)},
        {"shape": ("n", 16)},
        {"shape": ("n", 4, 4, 1), "last": True},
        {"dtype": "float64"},
    ],
    ids=["symbolic", "one", "four", "flat", "last", "double"],
)
def test_scores_are_those_of_the_file(
    tmp_path: Path, images: torch.Tensor, about: dict[str, Any]
) -> None:
    model = OnnxModel(written(tmp_path, **about))
    assert model.access is Access.SCORE and model.classes == 3 and model.metered
    torch.testing.assert_close(model(images), expected(images), rtol=1e-5, atol=1e-5)
    assert model.counts == {"asked": [7, 7]}


def test_bytes_have_256_levels_and_the_victim_says_so(tmp_path: Path) -> None:
    model = OnnxModel(written(tmp_path, dtype="uint8"))
    assert model.grid == 1 / 255
    levels = torch.randint(0, 256, (5, *SHAPE), generator=torch.Generator().manual_seed(0))
    images = levels / 255
    torch.testing.assert_close(model(images), expected(images), rtol=1e-5, atol=1e-5)
    labels = model(images).argmax(1)
    found = besiege.attack("square", model, images, labels, threat="linf:16/255", queries=50)
    assert bool((found.images * 255 - (found.images * 255).round()).abs().max() < 1e-4)


def test_whole_numbers_are_labels(tmp_path: Path, images: torch.Tensor) -> None:
    path = written(tmp_path, labels=True)
    with pytest.raises(InputError, match="classes=10"):
        OnnxModel(path)(images)
    model = OnnxModel(path, classes=3)
    assert model.access is Access.DECISION
    logits = model(images)
    assert torch.equal(logits.argmax(1), expected(images).argmax(1))
    assert torch.equal(torch.isinf(logits).sum(1), torch.full((7,), 2))


def test_normalisation_is_part_of_the_text(tmp_path: Path, images: torch.Tensor) -> None:
    path = written(tmp_path)
    model = load(f"{path}(mean=0.5, std=0.25)")
    torch.testing.assert_close(model(images), expected((images - 0.5) / 0.25), rtol=1e-4, atol=1e-4)
    assert load(f"{path}+bits(depth=1)").access is Access.SCORE
    with pytest.raises(InputError, match="did you mean 'mean'"):
        load(f"{path}(maen=0.5)")


def test_the_digest_is_of_the_content(tmp_path: Path) -> None:
    one, same = (OnnxModel(written(tmp_path, name)) for name in ("one.onnx", "same.onnx"))
    assert one.digest() == same.digest()
    assert OnnxModel(same.path, mean=0.5, std=1).digest() != one.digest()
    (tmp_path / "same.onnx.data").write_bytes(b"weights")
    assert OnnxModel(same.path).digest() != one.digest()


def test_gradients_are_refused_with_what_fits(tmp_path: Path, images: torch.Tensor) -> None:
    model = OnnxModel(written(tmp_path))
    labels = torch.zeros(7, dtype=torch.int64)
    with pytest.raises(AccessError, match=r"only score access is granted; .* fit: .*square"):
        besiege.attack("pgd", model, images, labels, threat="linf:0.1")


def test_what_cannot_be_is_said(
    tmp_path: Path, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="does not exist"):
        OnnxModel(tmp_path / "none.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"no graph")
    with pytest.raises(DataError, match="cannot be opened"):
        OnnxModel(tmp_path / "bad.onnx")
    model = OnnxModel(written(tmp_path))
    with pytest.raises(VictimError, match=r"takes tensor\(float\) \['n', 1, 4, 4\]"):
        model(torch.zeros(2, 1, 5, 5))
    with pytest.raises(InputError, match="no output 'logit': did you mean 'logits'"):
        OnnxModel(model.path, output="logit")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r'pip install "besiege\[onnx\]"'):
        load(str(model.path))


def test_an_evaluation_of_a_file_goes_on(tmp_path: Path, images: torch.Tensor) -> None:
    labels = expected(images).argmax(1)
    model = str(written(tmp_path))
    ask: dict[str, Any] = {"threat": "linf:0.1", "attacks": "square", "queries": 40}
    found = besiege.evaluate(model, (images, labels), out=tmp_path / "run", **ask)
    assert found.clean.value == 1.0 and found.paid is not None
    again = besiege.evaluate(model, (images, labels), out=tmp_path / "run", **ask)
    assert again.robust == found.robust
    assert again.paid is not None and set(again.paid) == {"probe"}  # the records are there

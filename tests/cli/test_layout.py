"""``--layout`` says where the channels are, wherever data are chosen."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import Besiege

MODEL = """import torch
from torch import nn

def make():
    net = nn.Sequential(nn.Flatten(), nn.Linear(72, 4, bias=False))
    net[1].weight.data = torch.randn(4, 72, generator=torch.Generator().manual_seed(0))
    return net
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    images = np.random.default_rng(0).random((12, 3, 8, 3), dtype=np.float32)
    np.savez(tmp_path / "open.npz", x=images, y=np.arange(12) % 4)
    np.savez(tmp_path / "images.npz", x=images)
    (tmp_path / "mine.py").write_text(MODEL)
    return tmp_path


@pytest.mark.parametrize(("layout", "shape"), [("nchw", [3, 8, 3]), ("nhwc", [3, 3, 8])])
def test_an_evaluation(besiege: Besiege, here: Path, layout: str, shape: list[int]) -> None:
    words = ["evaluate", "mine.py:make", "--data", "open.npz", "--threat", "linf:0.1"]
    words += ["--attacks", "fgsm", "--no-curve", "--no-page", "--layout", layout]
    said = besiege(*words, "--out", "out")
    assert said.code == 0, said.err
    plan = json.loads((here / "out" / "run.json").read_text())["plans"][0]
    assert plan["data"]["shape"] == shape
    assert f"--layout {layout}" in plan["asked"]["command"]


@pytest.mark.parametrize("images", ["open.npz", "images.npz"])
def test_attacked_images(besiege: Besiege, here: Path, images: str) -> None:
    words = ["attack", "mine.py:make", "--images", images, "--threat", "linf:0.1"]
    said = besiege(*words, "--attack", "fgsm", "--layout", "nhwc", "--out", "out")
    assert said.code == 0, said.err
    assert np.load(here / "out" / "adversarial.npz")["x"].shape == (12, 3, 3, 8)


def test_a_substitute_and_a_training(besiege: Besiege, here: Path) -> None:
    data = ["--data", "open.npz", "--arch", "mine.py:make", "--layout", "nchw"]
    words = ["substitute", "mine.py:make", *data, "--rounds", "0", "--count", "4", "--check", "2"]
    said = besiege(*words, "--epochs", "1", "--out", "substitute.safetensors")
    assert said.code == 0, said.err
    assert "--layout nchw" in json.loads((here / "substitute.json").read_text())["command"]
    words = ["train", "natural", *data, "--epochs", "1", "--batch", "4"]
    said = besiege(*words, "--out", "trained.safetensors")
    assert said.code == 0, said.err
    assert "--layout nchw" in json.loads((here / "trained.json").read_text())["command"]
    said = besiege(*words[: words.index("--layout")], "--out", "other.safetensors")
    assert said.code == 2 and "pass --layout nchw or --layout nhwc" in said.flat


def test_requests_without_a_layout_keep_their_folders() -> None:
    from besiege.bench.spec import Request
    from besiege.cli.evaluate import default_folder

    request = Request(model="zoo:digits-natural", data="digits", threat="linf:8/255")
    assert default_folder([request]).name.endswith("-ce5f63fb")
    more = {"attacks": "pgd, fgsm", "count": 20, "substitute": ("zoo:a",), "resize": "8"}
    assert default_folder([request.model_copy(update=more)]).name.endswith("-d9e500ff")

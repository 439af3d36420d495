"""Networks for ImageNet from the command line, on the sample in the data root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.cli.conftest import Besiege

ROOT = os.environ.get("BESIEGE_DATA", "")
MODEL = "public:imagenet_mobilenet_v2_1.0"
pytestmark = pytest.mark.skipif(
    not all((Path(ROOT) / part).is_dir() for part in ("weights", "imagenet-sample")),
    reason="needs public weights and imagenet-sample: set BESIEGE_DATA",
)


@pytest.mark.parametrize(
    ("layers", "attack"),
    [
        ("", "pgd(steps=2)"),
        pytest.param(
            "+bits(depth=2)+resize_pad", "averaged(pgd(steps=3), 2)", marks=pytest.mark.slow
        ),
    ],
)
def test_a_network_for_imagenet_is_evaluated_by_name(
    besiege: Besiege, monkeypatch: pytest.MonkeyPatch, layers: str, attack: str
) -> None:
    monkeypatch.setenv("BESIEGE_DATA", ROOT)
    on = ("--data", "imagenet-sample", "--count", "2", "--threat", "linf:4/255")
    short = ("--attacks", attack, "--examine", "none", "--curve", "none")
    said = besiege("evaluate", MODEL + layers, *on, *short)
    assert said.code == 0, said.err
    assert "on 2 of the 1,000 images of imagenet-sample (test)" in " ".join(said.out.split())
    assert "robust" in said.out and "100.0 %" in said.out


def test_without_a_data_root_the_file_is_named(besiege: Besiege) -> None:
    said = besiege("evaluate", MODEL, "--data", "imagenet-sample", "--threat", "linf:4/255")
    assert said.code == 2
    assert "weights/imagenet_mobilenet_v2_1.0_dequant_fp16.safetensors" in said.flat
    assert "set BESIEGE_DATA" in said.flat

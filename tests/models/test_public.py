"""Public weights: every file loads by its name and classifies as its source says."""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path

import pytest
import torch

from besiege.core.errors import DataError
from besiege.data import Data
from besiege.data import load as load_data
from besiege.models import PUBLIC, load

ROOT = Path(os.environ.get("BESIEGE_DATA", ""))
pytestmark = pytest.mark.skipif(
    not os.environ.get("BESIEGE_DATA") or not (ROOT / "weights").is_dir(),
    reason="needs public weights: set BESIEGE_DATA",
)

# Of the first 1,000 test images, of imagenet-sample of the first 20, measured on a CPU.
RIGHT = {
    "cifar10_resnet20": 915,
    "cifar10_resnet32": 928,
    "cifar10_resnet44": 933,
    "cifar10_resnet56": 926,
    "cifar10_cnn_a_adv": 664,
    "cifar10_cnn_a_adv4": 574,
    "cifar10_cnn_a_mix": 760,
    "cifar10_conv_small_pgd": 630,
    "cifar10_kw_small_8px": 312,
    "cifar10_kw_small_l2_36px": 553,
    "cifar10_oval_base_kw": 611,
    "cifar10_oval_deep_kw": 565,
    "cifar10_oval_wide_kw": 636,
    "cifar10_resnet2b_adv": 703,
    "cifar10_resnet4b_adv": 771,
    "fashion_kw_small_eps0.1": 793,
    "imagenet_efficientnet_lite0": 17,
    "imagenet_mobilenet_v1_0.75": 16,
    "imagenet_mobilenet_v2_1.0": 17,
    "imagenet_squeezenet1.1": 13,
    "mnist_cnn_a_adv": 956,
    "mnist_conv_small_nat": 980,
    "mnist_kw_small_eps0.1": 982,
    "mnist_kw_small_eps0.3": 821,
    "mnist_lenet_adv": 982,
    "mnist_lenet_clean": 984,
}


FOLDERS = {
    "cifar10": "cifar-10-batches-py",
    "fashion-mnist": "FashionMNIST",
    "imagenet-sample": "imagenet-sample",
    "mnist": "MNIST",
}
"""Where a data root holds the images; a root may have the weights without them."""


@cache
def images_of(name: str) -> Data:
    if not (ROOT / FOLDERS[name]).is_dir():
        pytest.skip(f"needs {name}: BESIEGE_DATA has no {FOLDERS[name]}")
    return load_data(name)


def count_right(name: str, count: int) -> int:
    victim, data = load(f"public:{name}"), images_of(PUBLIC[name].data)
    assert victim.classes == data.classes == PUBLIC[name].classes
    assert data.shape == PUBLIC[name].shape
    right = 0
    with torch.no_grad():
        for part in data.take(range(count)).shards(50 if data.classes == 1000 else 250):
            right += int((victim(part.images).argmax(1) == part.labels).sum())
    return right


def test_every_public_model_is_counted() -> None:
    assert set(RIGHT) == set(PUBLIC)


DEEP = ("cifar10_resnet32", "cifar10_resnet44", "cifar10_resnet56")
"""These take seconds."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n in DEEP else ()) for n in sorted(PUBLIC)],
)
def test_public_weights_classify_some_images_as_measured(name: str) -> None:
    assert count_right(name, 20 if PUBLIC[name].classes == 1000 else 1000) == RIGHT[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_the_whole_test_set_gives_the_published_accuracy(name: str) -> None:
    """About five minutes in all, with one thread."""
    count = 1000 if PUBLIC[name].classes == 1000 else 10_000
    # A few images lie so near a boundary that rounding decides.
    assert abs(count_right(name, count) - count / 100 * PUBLIC[name].clean) <= 2 + 1e-6


LARGE = sorted(name for name, entry in PUBLIC.items() if entry.classes == 1000)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_networks_for_imagenet_have_the_stated_top_1_and_top_5(name: str) -> None:
    """On all 1,000 images, within 0.1 points; a minute each."""
    victim, data = load(f"public:{name}"), images_of("imagenet-sample")
    right = torch.zeros(2)
    with torch.no_grad():
        for part in data.shards(50):
            five = victim(part.images).topk(5).indices == part.labels[:, None]
            right += torch.tensor([five[:, 0].sum(), five.any(1).sum()])
    first, among = (right / len(data) * 100).tolist()
    entry = PUBLIC[name]
    assert entry.top5 is not None
    assert abs(first - entry.clean) <= 0.1 + 1e-4 and abs(among - entry.top5) <= 0.1 + 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_gradients_of_networks_for_imagenet_are_those_of_finite_differences(name: str) -> None:
    """In float64, along a random direction: differences over several lengths agree."""
    victim, data = load(f"public:{name}"), images_of("imagenet-sample")
    module, side = victim.module.double(), PUBLIC[name].crop or 0
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1, 3, side, side, generator=generator, dtype=torch.float64)
    x = 0.5 * x + 0.25 * data.images[:1, :, :side, :side].double()
    move = torch.randn(x.shape, generator=generator, dtype=torch.float64)

    def height(at: torch.Tensor) -> torch.Tensor:
        mean, std = (
            torch.tensor(one, dtype=torch.float64).view(1, -1, 1, 1)
            for one in (PUBLIC[name].mean, PUBLIC[name].std)
        )
        logits: torch.Tensor = module((at - mean) / std)
        return logits[0, 7] - logits[0, 100]

    x.requires_grad_(True)
    (slope,) = torch.autograd.grad(height(x), x)
    along = float((slope * move).sum())
    with torch.no_grad():
        # Short moves: among millions of units, longer ones cross kinks of ReLU and pooling.
        for length in (1e-9, 1e-10):
            difference = float(height(x + length * move) - height(x - length * move)) / 2 / length
            assert difference == pytest.approx(along, rel=1e-3)


def test_networks_for_imagenet_have_a_family_and_a_published_accuracy() -> None:
    assert {PUBLIC[name].family for name in LARGE} == {"SqueezeNet", "MobileNet", "EfficientNet"}
    for entry in (PUBLIC[name] for name in LARGE):
        assert entry.published is not None and entry.published[0] < entry.clean
    assert PUBLIC["cifar10_resnet20"].family == "ResNet" and not PUBLIC["mnist_lenet_adv"].family


def test_altered_public_weights_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "cifar10_cnn_a_adv"
    (tmp_path / "weights").mkdir()
    copy = tmp_path / "weights" / f"{name}.safetensors"
    shutil.copyfile(ROOT / "weights" / f"{name}.safetensors", copy)
    content = bytearray(copy.read_bytes())
    content[-1] ^= 1
    copy.write_bytes(content)
    monkeypatch.setenv("BESIEGE_DATA", str(tmp_path))
    with pytest.raises(DataError, match="not the published file"):
        load(f"public:{name}")

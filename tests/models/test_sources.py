from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from besiege.core.errors import DataError, InputError, UnknownNameError
from besiege.data import Data
from besiege.data import load as load_data
from besiege.models import ARCHITECTURES, PUBLIC, load, save_zoo, sources, zoo_names
from besiege.models.architectures import BasicBlock, digits_cnn, digits_mlp

X = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
CARD = {"name": "small", "arch": "digits_mlp", "mean": [0.5], "std": [0.25], "seed": 3}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "w.safetensors"
    save_file(digits_mlp().state_dict(), path)
    return path


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_architectures_answer_ten_logits_at_their_size(name: str) -> None:
    shape = (1, 8, 8) if name.startswith("digits") else (3, 32, 32)
    module = ARCHITECTURES[name]()
    assert module(torch.rand(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize("depth", [20, 32, 44, 56])
def test_residual_networks_have_as_many_layers_as_their_name_says(depth: int) -> None:
    keys = ARCHITECTURES[f"resnet{depth}"]().state_dict()
    assert sum(v.ndim in (2, 4) for v in keys.values()) == depth
    assert {"conv1.weight", "bn1.weight", "layer3.2.bn2.running_var", "linear.bias"} <= set(keys)


def test_the_shortcut_keeps_every_other_pixel_and_pads_channels_on_both_sides() -> None:
    block = BasicBlock(16, 32, 2).eval()
    with torch.no_grad():
        block.bn2.weight.zero_()
        block.bn2.bias.zero_()
    x = torch.rand(1, 16, 4, 4)
    out = block(x)
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2])
    assert (out[:, :8] == 0).all() and (out[:, 24:] == 0).all()


def test_a_zoo_model_comes_back_as_it_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = digits_mlp()
    path = save_zoo(module, CARD, tmp_path)
    monkeypatch.setattr(sources, "ZOO", tmp_path)
    assert zoo_names() == ["small"]
    victim = load("zoo:small")
    assert torch.equal(victim(X), module((X - 0.5) / 0.25))
    assert victim.name == "zoo:small" and not victim.module.training
    assert json.loads(path.read_text())["seed"] == 3
    with pytest.raises(UnknownNameError, match="did you mean 'small'"):
        load("zoo:smal")


def test_a_zoo_models_weights_never_change_but_its_card_may(tmp_path: Path) -> None:
    module = digits_mlp()
    save_zoo(module, CARD, tmp_path)
    path = save_zoo(module, {**CARD, "clean": 0.9}, tmp_path)
    assert json.loads(path.read_text())["clean"] == 0.9
    with pytest.raises(DataError, match="never change"):
        save_zoo(digits_mlp(), CARD, tmp_path)


@pytest.mark.parametrize(
    ("card", "error"),
    [
        ({"name": "a"}, InputError),
        ({"name": "../a", "arch": "digits_mlp"}, InputError),
        ({"name": "a", "arch": "digits_cnn"}, DataError),
        ({"name": "a", "arch": "digits_mpl"}, UnknownNameError),
    ],
)
def test_a_card_that_does_not_describe_the_weights_is_refused(
    tmp_path: Path, card: dict[str, str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        save_zoo(digits_mlp(), card, tmp_path)
    assert not list(tmp_path.iterdir())


def test_damaged_zoo_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_zoo(digits_mlp(), CARD, tmp_path)
    path = tmp_path / "small.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    monkeypatch.setattr(sources, "ZOO", tmp_path)
    with pytest.raises(DataError, match="SHA-256"):
        load("zoo:small")


def test_own_weights_take_arithmetic_in_their_arguments(weights: Path) -> None:
    victim = load(f"digits_mlp(mean=128/255, std=(-1 + 1.5,), box=(0, 2), grid=1/255):{weights}")
    assert victim.mean == (128 / 255,)
    assert victim.std == (0.5,)
    assert victim.box == (0.0, 2.0) and victim.grid == 1 / 255
    assert torch.equal(load(f"digits_mlp:{weights}")(X), load(f"digits_mlp():{weights}")(X))


def test_loading_leaves_the_random_state_alone(weights: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    load(f"digits_mlp:{weights}")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("digits_cnn:{w}", DataError, "does not fit digits_cnn"),
        ("digits_mpl:{w}", UnknownNameError, "did you mean 'digits_mlp'"),
        ("digits_mlp(hidden=3):{w}", InputError, "hidden"),
        ("digits_mlp(mean=__import__('os')):{w}", InputError, "name=value pairs"),
        ("digits_mlp(mean=1/0, std=1):{w}", InputError, "cannot be read"),
        ("digits_mlp(3):{w}", InputError, "name=value"),
        ("digits_mlp(mean=):{w}", InputError, "cannot be read"),
        ("digits_mlp(mean='a'*2):{w}", InputError, "not a number"),
        ("digits_mlp(mean=0.5):{w}", InputError, "both or neither"),
        ("digits_mlp:{w}.pt", InputError, "safetensors"),
        ("digits_mlp:missing.safetensors", DataError, "does not exist"),
        ("resnet20", UnknownNameError, "names no model"),
        ("", UnknownNameError, "names no model"),
        ("public:cifar10_resnet21", UnknownNameError, "cifar10_resnet20"),
        ("missing.py:make", InputError, "does not exist"),
    ],
)
def test_mistakes_are_answered_with_what_to_do(
    weights: Path, text: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        load(text.format(w=weights))


def test_a_file_that_is_no_safetensors_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"nonsense")
    with pytest.raises(DataError, match="not a safetensors file"):
        load(f"digits_mlp:{path}")


FACTORY = """
from neighbour import WIDTH
from torch import nn
from besiege.models import Classifier

class Net(nn.Sequential):
    pass

def plain():
    return Net(nn.Flatten(), nn.Linear(64, WIDTH))

def described():
    return Classifier(plain(), mean=0.5, std=0.5, name="mine")

def wrong():
    return 3

def broken():
    raise ValueError("no such layer")
"""


def test_a_factory_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "nets.py"
    path.write_text(FACTORY)
    (tmp_path / "neighbour.py").write_text("WIDTH = 7\n")
    victim = load(f"{path}:plain")
    assert victim(X).shape == (3, 7)
    assert victim.name == f"{path}:plain"
    # Its source can be read, so another process gives the same digest.
    twice = load(f"{path}:plain")
    twice.module.load_state_dict(victim.module.state_dict())
    assert twice.digest() == victim.digest()
    assert load(f"{path}:described").name == "mine"
    with pytest.raises(UnknownNameError, match="did you mean 'plain'"):
        load(f"{path}:plane")
    with pytest.raises(InputError, match="gave a int"):
        load(f"{path}:wrong")
    with pytest.raises(InputError, match="ValueError: no such layer"):
        load(f"{path}:broken")


def test_public_weights_say_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BESIEGE_DATA", raising=False)
    with pytest.raises(DataError, match="set BESIEGE_DATA"):
        load("public:cifar10_resnet20")
    monkeypatch.setenv("BESIEGE_DATA", str(tmp_path))
    with pytest.raises(DataError, match="does not exist"):
        load("public:cifar10_resnet20")
    (tmp_path / "weights").mkdir()
    save_file(digits_cnn().state_dict(), tmp_path / "weights" / "cifar10_resnet20.safetensors")
    with pytest.raises(DataError, match="not the published file"):
        load("public:cifar10_resnet20")


root = Path(os.environ.get("BESIEGE_DATA", ""))
needs_weights = pytest.mark.skipif(
    not os.environ.get("BESIEGE_DATA") or not (root / "weights").is_dir(),
    reason="needs public weights: set BESIEGE_DATA",
)


@needs_weights
@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_public_weights_load(name: str) -> None:
    victim = load(f"public:{name}")
    assert victim(torch.rand(2, *PUBLIC[name].shape)).shape == (2, 10)
    assert victim.classes == 10


@needs_weights
def test_altered_public_weights_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "cifar10_cnn_a_adv"
    (tmp_path / "weights").mkdir()
    copy = tmp_path / "weights" / f"{name}.safetensors"
    shutil.copyfile(root / "weights" / f"{name}.safetensors", copy)
    content = bytearray(copy.read_bytes())
    content[-1] ^= 1
    copy.write_bytes(content)
    monkeypatch.setenv("BESIEGE_DATA", str(tmp_path))
    with pytest.raises(DataError, match="not the published file"):
        load(f"public:{name}")


def count_right(name: str, data: Data) -> int:
    victim = load(f"public:{name}")
    with torch.no_grad():
        labels = torch.cat([victim(x).argmax(1) for x in torch.split(data.images, 250)])
    return int((labels == data.labels).sum())


@needs_weights
@pytest.mark.parametrize(
    ("name", "accuracy"),
    [("cifar10_resnet20", 91.73), ("cifar10_cnn_a_adv", 65.65), ("cifar10_cnn_a_mix", 74.18)],
)
def test_public_weights_classify_as_published(name: str, accuracy: float) -> None:
    right = count_right(name, load_data("cifar10", count=1000))
    # Three standard deviations of a sample of 1,000; the full test set is a slow test's work.
    assert abs(right / 10 - accuracy) < 3 * (accuracy * (100 - accuracy) / 1000) ** 0.5


@needs_weights
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("cifar10_resnet20", 9173),
        ("cifar10_resnet32", 9263),
        ("cifar10_resnet44", 9310),
        ("cifar10_resnet56", 9339),
        ("cifar10_cnn_a_adv", 6565),
        ("cifar10_cnn_a_adv4", 5652),
        ("cifar10_cnn_a_mix", 7418),
        ("cifar10_kw_small_8px", 2760),
        ("cifar10_kw_small_l2_36px", 5439),
    ],
)
def test_the_whole_test_set_gives_the_published_accuracy(name: str, right: int) -> None:
    """About two minutes in all."""
    # A few images lie so near a boundary that rounding decides.
    assert abs(count_right(name, load_data("cifar10")) - right) <= 2

"""From recipe, data and architecture to files: weights, card, and going on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import besiege
from besiege.core.errors import BesiegeError, DataError, InputError, UnknownNameError
from besiege.data import Data
from besiege.defenses import load
from besiege.models import ARCHITECTURES
from besiege.training import Epoch, fit, fresh, natural, pgd_at_cifar, recipe, train
from besiege.training.fitting import build, source_of


@pytest.fixture(scope="module")
def data() -> Data:
    return besiege.data.load("digits", "train", count=200)


def colour(count: int = 16) -> Data:
    images = torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(count) % 10
    return Data("cifar10", "train", images, labels, torch.arange(count), 10, tuple("0123456789"))


def test_the_files_hold_what_train_gives_and_the_card_says_how(data: Data, tmp_path: Path) -> None:
    out = tmp_path / "runs" / "mine.safetensors"
    few: dict[str, Any] = {"epochs": 2, "threat": "linf:0.1"}
    told = {"command": "me"}
    made = fit("pgd-at(ramp=0)", data, "digits_mlp", out, seed=3, device="cpu", about=told, **few)
    assert made == out and sorted(p.name for p in out.parent.iterdir()) == [
        "mine.json",
        "mine.safetensors",
    ]
    net = fresh(ARCHITECTURES["digits_mlp"], 3)
    plan = recipe("pgd-at(ramp=0)", "digits", **few)
    history = train(net, data, plan, seed=3)
    assert all(torch.equal(v, load_file(out)[k]) for k, v in net.state_dict().items())
    card = json.loads(out.with_suffix(".json").read_text())
    assert card["name"] == "mine" and card["arch"] == "digits_mlp" and card["command"] == "me"
    assert recipe(card["recipe"]) == plan and card["seed"] == 3 and data.digest in card["data"]
    assert card["settings"]["attack"] == str(plan.attack)
    assert card["epoch"]["number"] == 2 and card["epoch"]["loss"] == history[-1].loss
    victim = besiege.models.load(card["source"])
    assert torch.equal(victim(data.images[:8]), net.eval()(data.images[:8]))


def test_run_again_it_goes_on_and_then_has_nothing_to_do(data: Data, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(epoch: object) -> None:
        raise Stop

    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    fit("natural", data, "digits_mlp", one, device="cpu", epochs=3)
    with pytest.raises(Stop):
        fit("natural", data, "digits_mlp", two, device="cpu", epochs=3, watch=stop)
    assert not two.exists() and two.with_suffix(".checkpoint").exists()
    told: list[Epoch] = []
    fit("natural", data, "digits_mlp", two, device="cpu", epochs=3, watch=told.append)
    assert [epoch.number for epoch in told] == [2, 3] and one.read_bytes() == two.read_bytes()
    assert not two.with_suffix(".checkpoint").exists()
    fit("natural", data, "digits_mlp", two, device="cpu", epochs=3, watch=stop)
    with pytest.raises(DataError, match="not of this training"):
        fit("natural", data, "digits_mlp", two, device="cpu", epochs=2)
    assert one.read_bytes() == two.read_bytes()
    fit("natural", data, "digits_mlp", two, device="cpu", epochs=2, resume=False)
    assert one.read_bytes() != two.read_bytes()


def test_half_precision_is_half_as_large_and_loads_as_float32(data: Data, tmp_path: Path) -> None:
    whole, half = tmp_path / "whole.safetensors", tmp_path / "half.safetensors"
    fit("natural", data, "digits_cnn", whole, device="cpu", epochs=1)
    fit("natural", data, "digits_cnn", half, device="cpu", epochs=1, half=True)
    assert half.stat().st_size < 0.55 * whole.stat().st_size
    victim = besiege.models.load(json.loads(half.with_suffix(".json").read_text())["source"])
    stored, full = victim.module.state_dict(), load_file(whole)
    assert all(torch.equal(v, full[k].half().float()) for k, v in stored.items())


def test_a_model_is_built_for_its_data() -> None:
    victim, about = build("preact_resnet18(width=4)", colour(), 1)
    assert about["arguments"] == {"width": 4} and victim.mean == (0.4914, 0.4822, 0.4465)
    assert victim(colour().images[:2]).shape == (2, 10)
    images, ids = torch.rand(4, 1, 12, 12), torch.arange(4)
    grey = Data("grey", "all", images, ids % 3, ids, 3, tuple("abc"))
    victim, about = build("cnn_a(mean=0.5, std=0.25)", grey)
    assert about["arguments"] == {"classes": 3, "in_channels": 1, "size": 12}
    assert victim.mean == (0.5,) and victim(grey.images).shape == (4, 3)
    again = build("cnn_a", grey, 1)[0].module.state_dict()
    other = build("cnn_a", grey, 2)[0].module.state_dict()
    assert not torch.equal(again["0.weight"], other["0.weight"])


def test_a_data_set_brings_its_preset_and_a_file_its_own_network(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "from torch import nn\n"
        "def make():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))\n"
    )
    out = tmp_path / "own.safetensors"
    few: dict[str, Any] = {"epochs": 1, "batch": 4, "held_out": 4}
    fit("pgd-at", colour(), f"{file}:make", out, device="cpu", **few)
    card = json.loads(out.with_suffix(".json").read_text())
    assert recipe(card["recipe"]) == recipe(pgd_at_cifar, **few) and card["source"] is None
    assert set(load_file(out)) == {"1.weight", "1.bias"}
    # Its initial weights are of the seed too.
    one, two, other = (build(f"{file}:make", colour(), seed)[0].digest() for seed in (5, 5, 6))
    assert one == two != other


def test_a_started_model_keeps_its_box_and_grid(data: Data, tmp_path: Path) -> None:
    first, second = (tmp_path / f"{name}.safetensors" for name in ("first", "second"))
    fit("natural", data, "digits_mlp", first, epochs=1, device="cpu")
    arch = f"digits_mlp(mean=-1.0, std=2.0, box=(-1.0, 1.0), grid=0.125):{first}"
    fit("natural", data, arch, second, epochs=12, rate=5e-3, device="cpu")
    tuned = load(json.loads(second.with_suffix(".json").read_text())["source"])
    assert (tuned.box, tuned.grid) == ((-1.0, 1.0), 0.125)
    right = tuned(2 * data.images - 1).argmax(1) == data.labels
    assert float(right.double().mean()) > 0.9
    # Only the identity of a training in another box says so.
    cards = [json.loads(one.with_suffix(".json").read_text()) for one in (first, second)]
    assert ["pixels" in card["identity"] for card in cards] == [False, True]
    # A card is JSON: what its entries give is read back, too.
    assert load(str(source_of(cards[1], second))).box == (-1.0, 1.0)


@pytest.mark.parametrize(
    ("how", "arch", "out", "kind", "said"),
    [
        ("natural", "digits_mpl", "x.safetensors", UnknownNameError, "did you mean 'digits_mlp'"),
        ("natural", "digits_mlp", "x.pt", InputError, "safetensors"),
        ("natral", "digits_mlp", "x.safetensors", UnknownNameError, "did you mean 'natural'"),
        ("natural", "digits_mlp(width=3)", "x.safetensors", InputError, "cannot be built"),
        ("natural", "zoo:none", "x.safetensors", BesiegeError, "none"),
    ],
)
def test_what_is_wrong_is_refused_and_nothing_is_written(
    how: str, arch: str, out: str, kind: type[BesiegeError], said: str, data: Data, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=said):
        fit(how, data, arch, tmp_path / out, device="cpu")
    assert list(tmp_path.iterdir()) == [] and natural.epochs == 40

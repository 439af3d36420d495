"""What there is, said without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from besiege.defenses import Defended, load
from besiege.models import (
    CATALOGUE,
    FORMS,
    PUBLIC,
    Classifier,
    Listed,
    catalogue,
    listing,
    zoo_names,
)
from besiege.models.sources import load_network


def test_everything_with_a_name_is_listed_without_torch() -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'numpy', 'safetensors'): sys.modules[name] = None\n"
        "from besiege.models import CATALOGUE, FORMS, listing\n"
        "print(len(listing()), len(CATALOGUE), len(FORMS))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        str(n) for n in (len(zoo_names()) + len(PUBLIC), len(CATALOGUE), len(FORMS))
    ]


def test_the_zoo_comes_first_with_what_its_cards_say() -> None:
    rows = {row.name: row for row in listing()}
    assert list(rows)[: len(zoo_names())] == [f"zoo:{name}" for name in zoo_names()]
    row = rows["zoo:digits-natural"]
    assert (row.architecture, row.data, row.present) == ("digits_cnn", "digits", True)
    assert row.clean.startswith("96.5 %") and row.pgd20.startswith("12.8 %")
    assert row.autoattack.startswith("10.1 %") and row.threat == "linf:0.15"
    assert row.recipe == "natural@digits(epochs=80)"
    assert rows["zoo:cifar10-pgd-at"].built == "preact_resnet18(width=32)"
    assert row.weights is not None and row.weights.name == "digits-natural.safetensors"
    for name in zoo_names():
        assert rows[f"zoo:{name}"].architecture in CATALOGUE


def test_public_models_say_whether_their_weights_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def row() -> Listed:
        return next(row for row in listing() if row.name == "public:mnist_lenet_adv")

    monkeypatch.delenv("BESIEGE_DATA", raising=False)
    assert row() == Listed(
        "public:mnist_lenet_adv", "lenet", "mnist", "98.64 %", weights=None, present=False
    )
    monkeypatch.setenv("BESIEGE_DATA", str(tmp_path))
    path = tmp_path / "weights" / "mnist_lenet_adv.safetensors"
    assert row().weights == path and not row().present
    path.parent.mkdir()
    path.write_bytes(b"")
    assert row().present


@pytest.mark.parametrize("name", [row.name for row in listing()])
def test_parameters_are_counted_without_loading_them(name: str) -> None:
    row = next(row for row in listing() if row.name == name)
    if not row.present:
        pytest.skip("its weights are not in the data root")
    victim = load(name) if catalogue.layer_of(name) is None else load_network(name)
    assert isinstance(victim, Defended | Classifier)
    module = (victim.bare if isinstance(victim, Defended) else victim).module  # type: ignore[attr-defined]
    assert row.parameters == sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    "damage", [b"", b"\xff" * 8, b"\x02" + bytes(7) + b"[]", b"\x09" + bytes(7)]
)
def test_a_file_without_a_sound_header_has_no_count(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(damage)
    assert catalogue.count_parameters(path) is None
    assert catalogue.count_parameters(tmp_path / "missing") is None


def test_a_card_that_says_little_is_listed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bare.json").write_text(json.dumps({"name": "bare", "arch": "digits_mlp"}))
    monkeypatch.setattr(catalogue, "ZOO", tmp_path)
    row = listing()[0]
    assert (row.name, row.data, row.clean, row.present) == ("zoo:bare", "", "", False)
    assert (row.recipe, row.autoattack, row.parameters, row.built) == ("", "", None, "digits_mlp")


def test_every_form_is_explained() -> None:
    assert [form.partition(":")[0] for form in FORMS] == [
        "zoo",
        "public",
        "ARCH(mean=..., std=...)",
        *catalogue.SCHEMES,
        "path/to/file.py",
        "path/file.onnx",
        "http",
    ]
    assert all(FORMS.values())

"""What there is, said without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from besiege.models import CATALOGUE, FORMS, PUBLIC, Listed, catalogue, listing, zoo_names


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
    assert row.clean.startswith("96.5 %")
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


def test_a_card_that_says_little_is_listed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bare.json").write_text(json.dumps({"name": "bare", "arch": "digits_mlp"}))
    monkeypatch.setattr(catalogue, "ZOO", tmp_path)
    row = listing()[0]
    assert (row.name, row.data, row.clean, row.present) == ("zoo:bare", "", "", False)


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

"""``besiege train``: weights with a card, resumable, ready to be evaluated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Besiege

TRAIN = (
    "train",
    "natural",
    "--data",
    "digits",
    "--arch",
    "digits_mlp",
    "--out",
    "mine.safetensors",
)


def test_it_writes_weights_that_evaluate_takes(besiege: Besiege, tmp_path: Path) -> None:
    said = besiege(*TRAIN, "--epochs", "2", "--seed", "1")
    assert said.code == 0, said.err
    assert "epoch 2: loss" in said.flat and "mine.safetensors" in said.out
    card = json.loads((tmp_path / "mine.json").read_text())
    assert card["command"] == (
        "besiege train natural --data digits --arch digits_mlp --epochs 2 --seed 1 "
        "--out mine.safetensors"
    )
    weights = (tmp_path / "mine.safetensors").read_bytes()
    said = besiege(*TRAIN, "--epochs", "2", "--seed", "1", "--json")
    assert said.code == 0 and json.loads(said.out) == card
    assert (tmp_path / "mine.safetensors").read_bytes() == weights
    assert "Nothing is left to do" in besiege(*TRAIN, "--epochs", "2", "--seed", "1").flat
    fixed = ("--data", "digits", "--threat", "linf:0.05", "--count", "20", "--attacks", "fgsm")
    assert besiege("evaluate", "digits_mlp:mine.safetensors", *fixed, "--no-curve").code == 0


def test_what_is_there_is_not_replaced_by_another_training(besiege: Besiege) -> None:
    besiege(*TRAIN, "--epochs", "1")
    said = besiege(*TRAIN, "--epochs", "1", "--seed", "5")
    assert said.code == 2 and "another" in said.flat
    assert besiege(*TRAIN, "--epochs", "1", "--seed", "5", "--no-resume").code == 0


def test_the_recipe_is_changed_by_options(
    besiege: Besiege, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def listen(how: str, data: str, arch: str, out: Path, **given: Any) -> None:
        seen.update(given, how=how)
        raise KeyboardInterrupt

    monkeypatch.setattr("besiege.training.fitting.fit", listen)
    more = "--epochs 3 --batch 32 --rate 0.01 --attack fgsm --threat linf:0.1 --half --every 2"
    said = besiege(*TRAIN, *more.split(), "--device", "cpu", "--no-resume")
    assert said.code == 130
    changed = {key: seen[key] for key in ("epochs", "batch", "rate", "attack", "threat")}
    assert changed == {
        "epochs": 3,
        "batch": 32,
        "rate": 0.01,
        "attack": "fgsm",
        "threat": "linf:0.1",
    }
    assert (seen["half"], seen["every"], seen["device"], seen["resume"]) == (True, 2, "cpu", False)


def test_interrupted_it_goes_on_and_ends_with_the_same_weights(
    besiege: Besiege, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    besiege(*TRAIN[:-1], "whole.safetensors", "--epochs", "3")
    from besiege.cli import train

    shown = train._line
    monkeypatch.setattr(train, "_line", _stop_after(2, shown))
    said = besiege(*TRAIN, "--epochs", "3")
    assert said.code == 130 and "resume from mine.checkpoint" in said.flat
    assert not (tmp_path / "mine.safetensors").exists()
    monkeypatch.setattr(train, "_line", shown)
    said = besiege(*TRAIN, "--epochs", "3")
    assert said.code == 0 and "resumed after epoch 2" in said.flat
    whole = (tmp_path / "whole.safetensors").read_bytes()
    assert (tmp_path / "mine.safetensors").read_bytes() == whole
    assert not (tmp_path / "mine.checkpoint").exists()


def _stop_after(epochs: int, shown: Any) -> Any:
    def line(epoch: Any) -> str:
        if epoch.number == epochs:
            raise KeyboardInterrupt
        return str(shown(epoch))

    return line

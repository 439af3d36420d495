"""``besiege train``: weights with a card, resumable, ready to be evaluated."""

from __future__ import annotations

import json
import shlex
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


def test_it_says_whose_weights_it_starts_from_and_what_was_correct(
    besiege: Besiege, tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\n\ndef make():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    words = [*TRAIN, "--epochs", "1"]
    said = besiege(*words)
    assert "starts from the weights" not in said.flat
    assert "% correct of the training images as it saw them" in said.flat
    words[words.index("digits_mlp")] = "net.py:make"
    words[words.index("mine.safetensors")] = "other.safetensors"
    assert "The training starts from the weights that net.py:make returns" in besiege(*words).flat
    assert "starts from the weights" not in besiege(*words).flat, "nothing was left to do"


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


def command(out: str) -> list[str]:
    """The words of the command that the output ends with."""
    return shlex.split(out.partition("evaluate it with\n")[2].replace("\\\n", " "))


def small(recipe: str, *more: str) -> tuple[str, ...]:
    return ("train", recipe, *TRAIN[2:], "--epochs", "1", *more)


def test_the_last_line_evaluates_the_weights_behind_their_layers(besiege: Besiege) -> None:
    said = besiege(*small("thermometer"))
    assert said.code == 0, said.err
    words = command(said.out)
    assert words == [
        *("besiege", "evaluate", "digits_mlp(in_channels=16):mine.safetensors+thermometer"),
        *("--data", "digits", "--threat", "linf:0.15"),
    ]
    fixed = ("--count", "10", "--attacks", "fgsm", "--no-curve")
    assert besiege(*words[1:], *fixed).code == 0


def test_a_stochastic_model_is_evaluated_with_the_suite_for_it(besiege: Besiege) -> None:
    words = command(besiege(*small("gaussian")).out)
    assert words[2] == "digits_mlp:mine.safetensors+gaussian_noise"
    assert words[-2:] == ["--suite", "adaptive"]


def test_the_threat_of_that_line_is_that_of_the_training(besiege: Besiege) -> None:
    assert command(besiege(*small("pgd-at", "--threat", "linf:0.05")).out)[-1] == "linf:0.05"
    natural = besiege(*small("natural", "--no-resume")).out
    assert command(natural)[-1] == "linf:0.15", "the usual one of the data"


def test_a_network_that_besiege_cannot_build_is_not_evaluated(
    besiege: Besiege, tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef make(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    arch = ("--arch", "net.py:make")
    said = besiege("train", "natural", *TRAIN[2:4], *arch, "--epochs", "1", *TRAIN[-2:])
    assert said.code == 0 and "weights  mine.safetensors" in said.out
    assert "evaluate it with" not in said.out
    assert "net.load_state_dict(safetensors.torch.load_file('mine.safetensors'))" in said.out


def test_a_teacher_is_announced(besiege: Besiege) -> None:
    said = besiege(*small("distilled"))
    assert said.code == 0, said.err
    first, then = "A teacher is trained first", "The student learns from its answers"
    assert said.flat.index(first) < said.flat.index("epoch 1") < said.flat.index(then)
    assert "mine.teacher.safetensors" in said.flat
    assert "A teacher" not in besiege(*small("natural", "--no-resume")).flat


@pytest.mark.parametrize(
    ("number", "left"), [(2, "from mine.teacher.checkpoint"), (4, "from mine.checkpoint")]
)
def test_an_interrupted_distillation_says_where_it_resumes(
    number: int, left: str, besiege: Besiege, monkeypatch: pytest.MonkeyPatch
) -> None:
    from besiege.cli import train

    shown, seen = train._line, list[int]()

    def line(epoch: Any) -> str:
        seen.append(epoch.number)
        if len(seen) == number:
            raise KeyboardInterrupt
        return shown(epoch)

    monkeypatch.setattr(train, "_line", line)
    said = besiege("train", "distilled", *TRAIN[2:], "--epochs", "2")
    assert said.code == 130 and f"resume {left}" in said.flat


def test_the_guard_that_ended_a_training_is_reported(
    besiege: Besiege, monkeypatch: pytest.MonkeyPatch
) -> None:
    from besiege.training.epochs import Training

    def scored(self, victim, held, attack):  # type: ignore[no-untyped-def]
        return 0.9, 0.1 if len(self.history) == 1 else 0.6

    monkeypatch.setattr(Training, "_accuracy", scored)
    said = besiege("train", "fast-at", *TRAIN[2:], "--epochs", "4")
    assert said.code == 0 and "guard 60.0 %" in said.flat and "epoch 3" not in said.flat
    assert "The guard ended the training after epoch 2 of 4" in said.flat
    assert "fell by 50.0 points" in said.flat and "those of epoch 1." in said.flat
    assert "The guard ended" not in besiege(*small("natural", "--no-resume")).flat


def test_a_budget_that_never_reached_its_full_size_is_reported(besiege: Besiege) -> None:
    said = besiege(*small("pgd-at"))
    assert "it reached 10 % of linf:0.15" in said.flat and "write ramp=1 in the recipe" in said.flat
    assert "it reached" not in besiege(*small("pgd-at(ramp=1)", "--no-resume")).flat
    assert "it reached" not in besiege(*small("natural", "--no-resume")).flat


def _stop_after(epochs: int, shown: Any) -> Any:
    def line(epoch: Any) -> str:
        if epoch.number == epochs:
            raise KeyboardInterrupt
        return str(shown(epoch))

    return line

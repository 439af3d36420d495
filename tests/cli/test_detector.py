"""``besiege detector``: a file with a card, what to type next, and what is refused."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from tests.cli.conftest import Besiege

from besiege.defenses import load

FIT = ("detector", "squeezing", "--model", "zoo:digits-natural", "--data", "digits")
OUT = ("--out", "d.safetensors")


def test_it_writes_a_file_that_loads_and_says_what_to_type_next(
    besiege: Besiege, tmp_path: Path
) -> None:
    said = besiege(*FIT, "--fpr", "0.1", "--count", "100", *OUT)
    assert said.code == 0, said.err
    told = " ".join(said.out.split())
    assert "10 % of 100 clean images of digits (test), which evaluations leave out" in told
    assert "detector  d.safetensors\ncard      d.json" in said.out
    card = json.loads((tmp_path / "d.json").read_text())
    assert card["command"] == (
        "besiege detector squeezing --model zoo:digits-natural --data digits --fpr 0.1 "
        "--count 100 --out d.safetensors"
    )
    assert card["fpr"] == 0.1 and card["calibration"]["count"] == 100
    told = said.out[said.out.index("besiege evaluate") :].replace("\\\n", " ")
    words = shlex.split(told)
    assert words[2] == "zoo:digits-natural+detector('d.safetensors')"
    assert load(words[2]).rejects
    first = (tmp_path / "d.safetensors").read_bytes()
    (tmp_path / "d.json").unlink()
    (tmp_path / "d.safetensors").unlink()
    assert besiege(*shlex.split(card["command"])[1:]).code == 0
    assert (tmp_path / "d.safetensors").read_bytes() == first


def test_the_next_command_runs_and_leaves_the_calibration_out(besiege: Besiege) -> None:
    assert besiege(*FIT, *OUT).code == 0
    model = "zoo:digits-natural+detector('d.safetensors')"
    said = besiege(
        *("evaluate", model, "--data", "digits", "--threat", "linf:0.1", "--no-curve"),
        *("--attacks", "oblivious(fgsm), opgd(steps=3)", "--count", "24", "--examine", "none"),
        *("--no-page", "--out", "run"),
    )
    assert said.code in (0, 4), said.err
    assert "W51" in said.out and "198 images of digits (test)" in " ".join(said.out.split())


def test_as_json_prints_the_card(besiege: Besiege, tmp_path: Path) -> None:
    said = besiege(*FIT, *OUT, "--json")
    assert said.code == 0
    assert json.loads(said.out) == json.loads((tmp_path / "d.json").read_text())


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--fpr", "0"), "between 0 and 1"),
        (("--fpr", "1"), "between 0 and 1"),
        (("--fpr", "0.001", "--count", "100"), "give 1000 images or more"),
        (("--split", "train"), "force it with --force"),
        (("--count", "500"), "has 397"),
    ],
)
def test_wrong_input_is_told_in_words_of_the_command_line(
    besiege: Besiege, tmp_path: Path, words: tuple[str, ...], problem: str
) -> None:
    said = besiege(*FIT, *OUT, *words)
    assert said.code == 2
    assert problem in " ".join(said.err.split())
    assert not list(tmp_path.iterdir())


def test_after_retraining_the_command_of_the_message_runs(besiege: Besiege, tmp_path: Path) -> None:
    model = tmp_path / "my_model.py"
    written = """
import torch
from torch import nn
from besiege import Classifier

class MyNet(nn.Sequential):
    pass

def make():
    torch.manual_seed(SEED)
    return Classifier(MyNet(nn.Flatten(), nn.Linear(64, 10)), name="mine")
"""
    model.write_text(written.replace("SEED", "0"))
    fit = ("detector", "squeezing", "--model", "my_model.py:make", "--data", "digits", *OUT)
    assert besiege(*fit).code == 0
    model.write_text(written.replace("SEED", "1"))
    words = ("--data", "digits", "--threat", "linf:0.1", "--attacks", "fgsm", "--count", "9")
    said = besiege("evaluate", "my_model.py:make+detector('d.safetensors')", *words)
    assert said.code == 2 and "'my_model.py:make' has other weights" in said.flat
    command = said.flat[said.flat.index("besiege detector") :].split("`")[0]
    assert besiege(*shlex.split(command)[1:]).code == 0
    said = besiege("examine", "my_model.py:make+detector('d-2.safetensors')", *words[:4])
    assert said.code != 2, said.err


def test_an_unknown_kind_has_a_near_match(besiege: Besiege) -> None:
    said = besiege("detector", "lidd", *FIT[2:], *OUT)
    assert said.code == 2 and "lid" in said.err

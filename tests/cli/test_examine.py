"""``besiege examine``: a model is checked before it is attacked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Besiege

ASK = ("--data", "digits", "--threat", "linf:0.1")
MODEL = """
import torch
from besiege.models import load

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = load("zoo:digits-natural").module

    def forward(self, x):
        return self.net((x * 3).round() / 3 + 0 * x)

def make():
    return Net()
"""
pytestmark = pytest.mark.usefixtures("examined")


def test_an_honest_model(besiege: Besiege) -> None:
    said = besiege("examine", "zoo:digits-natural", *ASK)
    assert said.code == 0 and "Nothing speaks against attacking this model." in said.out
    assert said.out.count("passed") == 4


def test_a_model_in_disguise_exits_with_4(besiege: Besiege, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    said = besiege("examine", str(tmp_path / "net.py") + ":make", *ASK)
    assert said.code == 4 and "failed" in said.out and "W45" in said.out
    found = besiege("examine", str(tmp_path / "net.py") + ":make", *ASK, "--json")
    content = json.loads(found.out)
    assert content["enough"] == "no" and found.code == 4
    assert {"name", "outcome", "number", "seen", "advice", "rule"} <= content["checks"][0].keys()


def test_without_a_threat_the_usual_budget_is_the_scale(besiege: Besiege) -> None:
    """The checks measure at that scale, so another one has other numbers."""
    usual = besiege("examine", "zoo:digits-natural", "--data", "digits")
    given = besiege("examine", "zoo:digits-natural", "--data", "digits", "--threat", "linf:0.15")
    other = besiege("examine", "zoo:digits-natural", *ASK)
    assert usual.code == 0 and usual.out == given.out != other.out


def test_in_l0_too(besiege: Besiege) -> None:
    said = besiege("examine", "zoo:digits-natural", "--data", "digits", "--threat", "l0:5")
    assert said.code == 0 and "failed" not in said.out


def test_without_a_budget_it_has_a_scale_of_its_own(besiege: Besiege) -> None:
    said = besiege("examine", "zoo:digits-natural", "--data", "digits", "--threat", "linf")
    assert said.code == 0 and said.out.count("passed") == 4

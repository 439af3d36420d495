"""Code of the user's cannot decide our exit code, spoil our output, or pass for another's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.cli.conftest import Besiege

FILE = """
import os, sys
import torch
from torch import nn
from besiege.models import load


class Net(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.net, self.how = load("zoo:digits-natural").module, how

    def forward(self, x):
        if self.how == "exits":
            sys.exit(0)
        if self.how == "raises":
            return {}["nothing"]
        if self.how == "prints":
            print("asked")
            os.write(1, b"in C\\n")
        if self.how == "writes over":
            y = self.net(x)
            x.mul_(2)
            return y
        return self.net(x)


def prints():
    print("made")
    return Net("prints")


def exits():
    return Net("exits")


def leaves():
    sys.exit(0)


def raises():
    return Net("raises")


def over():
    return Net("writes over")
"""
ASKED = ("--data", "digits", "--count", "8", "--threat", "linf:0.1", "--attacks", "fgsm")
QUICK = (*ASKED, "--no-curve", "--no-page", "--out", "run")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("exits", "the model raised SystemExit: 0 (net.py, line "),
        ("leaves", "'net.py:leaves' failed: SystemExit: 0"),
        ("raises", "the model raised KeyError: 'nothing' (net.py, line "),
        ("over", "in place"),
    ],
)
def test_what_a_model_does_is_said_in_one_sentence(
    besiege: Besiege, tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / "net.py").write_text(FILE)
    found = besiege("evaluate", f"net.py:{name}", *QUICK)
    assert found.code == 2 and found.out == ""
    assert said in found.flat and found.err.count("error: ") == 1
    assert not (tmp_path / "run").exists()


def test_a_file_that_exits_is_refused(besiege: Besiege, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("import sys\nsys.exit(0)\n")
    found = besiege("evaluate", "net.py:make", *QUICK)
    assert found.code == 2 and "SystemExit: 0" in found.flat


def test_an_attack_that_exits_is_one_that_failed(besiege: Besiege, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import sys\nfrom dataclasses import dataclass\nfrom besiege.attacks import Attack\n"
        "@dataclass(frozen=True)\nclass Mine(Attack):\n    def run(self, siege):\n"
        "        sys.exit(0)\n"
    )
    rest = [word if word != "fgsm" else "mine.py:Mine" for word in QUICK]
    found = besiege("evaluate", "zoo:digits-natural", *rest)
    assert found.code == 3 and "SystemExit" in found.out


def test_what_a_model_prints_is_no_result(besiege: Besiege, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(FILE)
    found = besiege("evaluate", "net.py:prints", *QUICK, "--json")
    assert found.code == 0 and json.loads(found.out)["evaluations"]
    assert "made" in found.err and "asked" in found.err
    table = besiege("evaluate", "net.py:prints", *QUICK)
    assert "asked" not in table.out and "fgsm" in table.out


def test_neither_is_what_it_writes_without_python(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(FILE)
    command = [sys.executable, "-m", "besiege", "evaluate", "net.py:prints", *QUICK, "--json"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["evaluations"]
    assert "in C" in done.stderr

"""Every documented exit code, by a command that ends with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Besiege

from besiege.cli import exits
from besiege.cli.exits import code_of
from besiege.metrics.gates import Outcome, Verdict

ASK = ("--data", "digits", "--threat", "linf:0.1", "--count", "20", "--no-curve", "--no-page")
RUN = (*ASK, "--attacks", "fgsm", "--out", "run")
NATURAL = ("evaluate", "zoo:digits-natural", *RUN)
FILES = {
    "noisy.py": "import torch\n"
    "from besiege.models import load\n"
    "class Noisy(torch.nn.Module):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.inner = load('zoo:digits-natural').module\n"
    "    def forward(self, x):\n"
    "        return self.inner(x) + 0.01 * torch.randn(len(x), 10)\n"
    "make = Noisy\n",
    "failing.py": "from dataclasses import dataclass\n"
    "from besiege import Attack\n"
    "@dataclass(frozen=True)\n"
    "class Failing(Attack):\n"
    "    def run(self, siege):\n"
    "        raise RuntimeError('broken on purpose')\n",
    "leaving.py": "import os, signal, besiege\n"
    "from besiege.models import load\n"
    "def make():\n"
    "    os.kill(os.getpid(), signal.SIGINT)\n"
    "    return load('zoo:digits-natural')\n",
}


@pytest.fixture
def files(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)


def test_fine(besiege: Besiege) -> None:
    assert besiege(*NATURAL, "--fail-under", "5").code == exits.FINE == 0


def test_a_gate_failed(besiege: Besiege) -> None:
    assert besiege(*NATURAL, "--fail-under", "95").code == exits.GATE == 1


def test_wrong_input(besiege: Besiege, tmp_path: Path) -> None:
    assert besiege(*NATURAL, "--fail-under", "0.45").code == exits.USAGE == 2
    assert besiege(*NATURAL, "--fail-undr", "45").code == 2
    assert not list(tmp_path.iterdir())


def test_incomplete(besiege: Besiege, files: None) -> None:
    attacks = ("--attacks", "fgsm, failing.py:Failing", "--out", "run")
    said = besiege("evaluate", "zoo:digits-natural", *ASK, *attacks)
    assert said.code == exits.INCOMPLETE == 3
    assert "incomplete: zoo:digits-natural against linf:0.1: '" in said.err
    assert "failed on part of the samples: RuntimeError: broken on purpose. These" in said.err
    assert besiege("report", "run").code == 3


def test_figures_that_must_not_be_quoted(besiege: Besiege, files: None) -> None:
    noisy = ("evaluate", "noisy.py:make", *RUN)
    said = besiege(*noisy)
    assert said.code == exits.STOP == 4
    assert "stop: noisy.py:make against linf:0.1: the figures must not be quoted (W14)" in said.err
    assert "Exit code 4: docs/gates.md says how to accept single findings." in said.flat
    assert said.flat.count("gave different answers") == 1, "before the attacks; then in the table"
    assert besiege("report", "run").code == 4
    assert besiege("report", "run", "--json").code == 4
    assert besiege(*noisy, "--allow", "W14").code == 0
    assert besiege("report", "run", "--allow", "W14").code == 0
    assert besiege(*noisy, "--allow", "W22").code == 4
    assert besiege(*noisy, "--allow", "W14", "--fail-under", "100").code == 1
    assert besiege(*noisy, "--fail-under", "100").code == 4, "before a failed gate"


def test_unexpected(besiege: Besiege, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("somewhere inside")

    monkeypatch.setattr("besiege.cli.gates.judged", broken)
    said = besiege(*NATURAL)
    assert said.code == exits.UNEXPECTED == 70
    assert "ZeroDivisionError: somewhere inside" in said.flat


def test_a_missing_package_is_no_failed_gate(tmp_path: Path) -> None:
    (tmp_path / "cyclopts.py").write_text("raise ImportError('not installed')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "besiege", "models"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 70 and "not installed" in done.stderr


def test_interrupted(besiege: Besiege, files: None) -> None:
    said = besiege("evaluate", "leaving.py:make", *RUN, "--fail-under", "95")
    assert said.code == exits.INTERRUPTED == 130 and said.flat.endswith("nothing was written.")


def test_the_first_help_page_lists_them(besiege: Besiege) -> None:
    said = " ".join(besiege("--help").out.split())
    for code in (exits.FINE, exits.GATE, exits.USAGE, exits.INCOMPLETE, exits.STOP):
        assert f"{code} " in said.partition("Exit codes:")[2]
    assert "70 an unexpected error, 130 interrupted" in said


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([], 0),
        (["passed"], 0),
        (["passed", "failed"], 1),
        (["failed", "stop", "passed"], 4),
        (["failed", "stop", "incomplete"], 3),
        (["incomplete", "failed"], 3),
    ],
)
def test_of_several_reasons_the_most_basic_counts(outcomes: list[Outcome], code: int) -> None:
    assert code_of([Verdict("", "", outcome, "") for outcome in outcomes]) == code

"""Examples run: those of docstrings, and the files of examples/."""

from __future__ import annotations

import doctest
import importlib
import json
import os
import re
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import besiege
from besiege.cli import main

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
    for path in (ROOT / "src").rglob("*.py")
    if ">>>" in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str) -> None:
    done = doctest.testmod(importlib.import_module(name))
    assert done.attempted > 0 and done.failed == 0


def test_the_demo_runs_on_a_few_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brief: dict[str, Any] = {"count": 8, "attacks": "fgsm, bim(steps=2)"}
    monkeypatch.setattr(besiege, "evaluate", partial(besiege.evaluate, **brief))
    runpy.run_path(str(ROOT / "examples" / "demo.py"))["main"](tmp_path)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert len(figures["evaluations"]) == 4 and figures["complete"]
    assert (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_the_demo_ends_in_a_table_and_a_page(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "examples/demo.py", str(tmp_path / "demo")],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if str(tmp_path) not in line]
    assert max(map(len, lines)) <= 80
    figures = json.loads((tmp_path / "demo" / "figures.json").read_text())
    robust = {
        (e["model"]["name"], e["threat"]["text"]): e["robust"]["value"]
        for e in figures["evaluations"]
    }
    assert len(robust) == 4 and figures["complete"]
    assert robust["zoo:digits-natural", "linf:0.15"] < 0.25
    assert robust["zoo:digits-pgd-at", "linf:0.15"] > 0.65
    page = (tmp_path / "demo" / "report.html").read_text()
    for (model, threat), value in robust.items():
        assert model in page and threat in page and f"{100 * value:.1f}" in page
        assert f"{100 * value:.1f}" in done.stdout


def test_a_model_of_ones_own_is_measured_in_python_and_in_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    runpy.run_path("examples/own_model.py", run_name="__main__")
    robust = re.search(r"robust +(\d+\.\d %)", capsys.readouterr().out)
    assert robust is not None
    assert (tmp_path / "besiege-runs" / "own" / "run" / "report.html").exists()
    source = (ROOT / "examples" / "own_model.py").read_text()
    told = re.search(r"^    besiege (evaluate .*)$", source, re.MULTILINE)
    assert told is not None
    assert main([*told[1].split(), "--no-curve"]) == 0
    assert f"robust   {robust[1]}" in capsys.readouterr().out

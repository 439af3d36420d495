"""The card of a notebook: its style holds in a foreign page, and progress needs no widgets."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from tests.report.sample import evaluation

import besiege
from besiege.bench.work_estimate import Event, Stage
from besiege.core import notebook
from besiege.core.errors import Finding
from besiege.metrics import RunFigures
from besiege.report import bar, fragment
from besiege.report.card import card_style
from besiege.report.console import Harmless

NOTEBOOK = '[data-jp-theme-light="false"]'


def style() -> str:
    text = fragment(RunFigures.of(evaluation()))
    (found,) = re.findall(r"<style>(.*?)</style>", text, re.S)
    return str(found)


def selectors() -> Iterator[str]:
    """Every selector of the card, one by one."""
    for listed in re.findall(r"([^{}]+)\{", re.sub(r"@media[^{]+\{", "", style())):
        # Commas inside parentheses do not separate selectors.
        yield from (one.strip() for one in re.split(r",(?![^()]*\))", listed))


def test_every_rule_is_below_its_class_and_wins_over_the_notebooks_own() -> None:
    found = [*selectors()]
    assert len(found) > 60
    for selector in found:
        assert re.match(
            r"(\[data-jp|body\.vscode|html\[theme)?[^ ]* ?\.besiege:not\(#none\)", selector
        )
        # An id in the selector: no rule of a notebook for tables, lists or code is stronger.
        assert selector.count(":not(#none)") == 1, selector


def test_lengths_do_not_depend_on_the_notebooks_root() -> None:
    assert not re.search(r"\drem\b", style()) and "var(--unit)" in style()


def test_colours_follow_the_notebooks_theme_before_the_systems() -> None:
    text = style()
    system, light, dark = (
        text.index(part)
        for part in ("prefers-color-scheme: dark", '[data-jp-theme-light="true"]', NOTEBOOK)
    )
    assert system < light < dark, "what comes later wins"
    for place in ("body.vscode-dark", "body.vscode-light"):
        assert place in text
    dark_ink = re.search(r"prefers-color-scheme.*?--ink: (#\w+)", text, re.S)
    in_notebook = re.search(r"jp-theme-light=\"false\".*?--ink: (#\w+)", text, re.S)
    assert dark_ink is not None and in_notebook is not None and dark_ink[1] == in_notebook[1]


def test_nothing_of_the_notebook_is_inherited() -> None:
    first, second = style().split("}")[:2]
    assert "all: initial" in first and "all: revert" in second
    assert "svg" in second, "drawings have attributes that a reset would take away"


def test_a_style_without_colours_is_refused() -> None:
    with pytest.raises(ValueError, match="colours"):
        card_style(".besiege p { margin: 0; }")


# Progress.


class Shown:
    """IPython's display, which remembers what was shown and what replaced it."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.markup: list[str] = []
        self.begun = 0

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Shown:
        assert raw and display_id
        self.begun += 1
        self.update(data, raw=raw)
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw and set(data) == {"text/plain", "text/html"}
        self.texts.append(data["text/plain"])
        self.markup.append(data["text/html"])


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """A kernel as IPython describes it; the tests run without one."""
    shown = Shown()
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    display.display = shown.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(notebook, "_PAUSE", 0.0)
    return shown


def test_an_evaluation_has_one_line_that_is_replaced(
    cell: Shown, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = Finding("W14", "it <wavers>.", "Fix it.", "stop")
    with bar("zoo:x") as tell:
        tell(Event(0, 200, "clean images", findings=(finding,)))
        tell(Event(50, 200, "pgd", Stage("pgd", 100, 40, 0.5, 1.0)))
    assert cell.begun == 1
    assert cell.texts[1] == "W14 stop: It <wavers>. Fix it.\nzoo:x: pgd, 40 of 100 images left"
    assert '<progress value="0.250">' in cell.markup[1] and "&lt;wavers&gt;" in cell.markup[1]
    assert re.fullmatch(r"(?s).*zoo:x: done in [\d.]+ s", cell.texts[-1])
    assert "<progress" not in cell.markup[-1]
    assert capsys.readouterr() == ("", "")


def test_an_attack_has_one_too_and_no_message_about_widgets(
    cell: Shown, recwarn: pytest.WarningsRecorder
) -> None:
    data = besiege.data.load("digits", count=8)
    result = besiege.attack(
        "pgd(steps=5)", "zoo:digits-natural", data.images, data.labels, threat="linf:0.2",
        progress=True,
    )  # fmt: skip
    assert cell.begun == 1
    passes = int(result.forwards.sum() + result.backwards.sum())
    broken = int(result.success.sum())
    assert cell.texts[-1] == f"pgd(steps=5): {broken} of 8 broken, {passes:,} passes"
    assert not [one for one in recwarn if "ipywidgets" in str(one.message)]


def test_updates_are_not_more_often_than_the_eye_follows(
    cell: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook, "_PAUSE", 60.0)
    with bar("zoo:x") as tell:
        for number in range(50):
            tell(Event(number, 200, f"attack {number}"))
    first, last = cell.texts
    assert first == "zoo:x: attack 0" and "done in" in last, "the last one always shows"


def test_a_console_writes_text_in_a_notebook_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    file = io.StringIO()
    assert Console(file=file).is_jupyter
    Harmless(file=file, width=40).print("a line")
    assert file.getvalue() == "a line\n"


def test_elsewhere_there_is_no_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert notebook.line() is None
    shell = ModuleType("IPython")
    shell.get_ipython = lambda: SimpleNamespace()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", shell)
    assert notebook.line() is None, "a shell of IPython on a terminal has no kernel"
    file = io.StringIO()
    with bar("zoo:x", Console(file=file)) as tell:
        tell(Event(0, 200, "pgd"))
    assert file.getvalue().startswith("zoo:x: pgd, 0 % done")


CELLS = """
import besiege
found = besiege.evaluate('zoo:digits-natural', 'digits', threat='linf:0.15', attacks='fgsm',
                         count=12, curve=False, progress=True)
found
"""


@pytest.mark.slow
def test_a_real_notebook(tmp_path: Path) -> None:
    pytest.importorskip("nbconvert")
    pytest.importorskip("ipykernel")
    code = {"cell_type": "code", "source": CELLS, "metadata": {}, "outputs": []}
    content: dict[str, Any] = {
        "cells": [{**code, "execution_count": None}],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 4,
    }
    (tmp_path / "one.ipynb").write_text(json.dumps(content))
    run = [sys.executable, "-m", "nbconvert", "--execute", "--to", "notebook", "one.ipynb"]
    subprocess.run([*run, "--output", "two"], cwd=tmp_path, check=True, capture_output=True)
    (cell,) = json.loads((tmp_path / "two.ipynb").read_text())["cells"]
    shown, result = cell["outputs"]
    assert "done in" in "".join(shown["data"]["text/plain"])
    assert ".besiege:not(#none)" in "".join(result["data"]["text/html"])
    assert "ipywidgets" not in json.dumps(cell)

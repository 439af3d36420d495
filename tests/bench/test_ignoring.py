"""Attacks that ignore a defense, where one of several models has none."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import besiege
from besiege.attacks.attack import parse
from besiege.cli.app import main
from besiege.core.errors import UndefendedError
from besiege.metrics.values import EvaluationFigures, RunFigures
from besiege.report import table

BARE, DEFENDED = "zoo:digits-natural", "zoo:digits-natural+bits(depth=1)"
LISTED = "oblivious(pgd(steps=3)), pgd(steps=3, loss=margin)"
WORDS: dict[str, Any] = {"threat": "linf:0.15", "curve": False, "count": 20, "examine": "none"}


def printed(figures: list[EvaluationFigures]) -> str:
    file = io.StringIO()
    shown = replace(RunFigures.of(figures[0]), evaluations=tuple(figures))
    Console(file=file, width=200).print(table(shown))
    return file.getvalue()


@pytest.mark.parametrize("kind", ["attacks", "suite"])
@pytest.mark.parametrize("live", [False, True])
def test_a_model_without_a_defense_runs_the_other_attacks(kind: str, live: bool) -> None:
    listed = [parse("oblivious(pgd(steps=3))"), "pgd(steps=3, loss=margin)"] if live else LISTED
    found = besiege.evaluate([BARE, DEFENDED], "digits", **{**WORDS, kind: listed})
    assert list(found[0].by_attack) == ["pgd(steps=3, loss=margin)"]
    assert list(found[1].by_attack) == ["oblivious(pgd(steps=3))", "pgd(steps=3, loss=margin)"]
    text = printed([one.figures for one in found])
    ignored, known = found[1].by_attack["oblivious(pgd(steps=3))"], found[1].robust
    assert known is not None and ignored.value > known.value, "the line has two figures"
    assert (
        f"{DEFENDED} against linf:0.15: {100 * ignored.value:.1f} % if the defense is ignored, "
        f"{100 * known.value:.1f} % if it is known"
    ) in text
    assert (
        f"{BARE} against linf:0.15 has no defense to ignore, so it ran without "
        "oblivious(pgd(steps=3))"
    ) in text


def test_the_list_is_a_mistake_where_it_fits_no_model_or_nothing_is_left() -> None:
    with pytest.raises(UndefendedError, match="has no defense in front of it"):
        besiege.evaluate(BARE, "digits", attacks=LISTED, **WORDS)
    with pytest.raises(UndefendedError, match="digits-natural"):
        besiege.evaluate([BARE, "zoo:digits-pgd-at"], "digits", attacks=LISTED, **WORDS)
    with pytest.raises(UndefendedError, match="digits-natural"):
        besiege.evaluate([BARE, DEFENDED], "digits", attacks="oblivious(pgd)", **WORDS)


def test_each_command_reproduces_its_own_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", BARE, DEFENDED, "--data", "digits", "--threat", "linf:0.15"]
    words += ["--attacks", LISTED, "--count", "9", "--no-curve", "--examine", "none", "--no-page"]
    out = ["--out", str(tmp_path / "run")]
    assert main([*words, *out]) == 0
    commands = {
        one["model"]["name"]: one["command"]
        for one in json.loads((tmp_path / "run" / "figures.json").read_text())["evaluations"]
    }
    assert "oblivious" not in commands[BARE] and "pgd(steps=3, loss=margin)" in commands[BARE]
    assert "oblivious" in commands[DEFENDED]
    # The folder does not answer for a list that this model alone could not run.
    assert main([words[0], BARE, *words[3:], *out]) == 2
    capsys.readouterr()
    assert main([*words, *out, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["evaluations"]) == 2


def test_workers_read_the_shorter_list(tmp_path: Path) -> None:
    found = besiege.evaluate(
        [BARE, DEFENDED], "digits", attacks=LISTED, workers=1, out=tmp_path / "run", **WORDS
    )
    assert found.complete and list(found[0].by_attack) == ["pgd(steps=3, loss=margin)"]

"""`besiege study`: lists, explains, answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.cli.conftest import Besiege
from tests.studies.boards import MadeBoard, made


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> Callable[[MadeBoard], None]:
    """Every run folder has the results of a board."""

    def give(board: MadeBoard) -> None:
        reading = SimpleNamespace(board_of=lambda folder: board)
        monkeypatch.setitem(sys.modules, "besiege.bench.board", reading)

    return give


def test_without_a_name_all_are_listed(besiege: Besiege) -> None:
    assert "digits" in besiege("study").out
    listed = json.loads(besiege("study", "--json").out)["studies"]
    assert {k: listed[0][k] for k in ("name", "claims")} == {"name": "digits", "claims": 3}


def test_a_study_shows_its_claims_and_its_commands(besiege: Besiege) -> None:
    told = besiege("study", "digits")
    assert told.code == 0 and "D1  Adversarial training withstands more" in told.out
    assert "besiege study digits --run study-digits" in told.out
    assert Path(json.loads(besiege("study", "digits", "--json").out)["spec"]).exists()


def test_a_run_answers_the_claims(
    besiege: Besiege, results: Callable[[MadeBoard], None], tmp_path: Path
) -> None:
    results(made(1000, 2.0))
    told = besiege("study", "digits", "--run", str(tmp_path))
    assert told.code == 0 and "0.1. yes" in told.out
    assert "corrected p < 0.001, on the same 1,000 images." in " ".join(told.out.split())
    content = json.loads(besiege("study", "digits", "--run", str(tmp_path), "--json").out)
    assert [one["verdict"] for one in content["answers"]] == ["yes"] * 3
    results(made(30, 1.02))
    assert (
        "These images cannot tell; about" in besiege("study", "digits", "--run", str(tmp_path)).out
    )


def test_a_claim_that_was_not_run_is_incomplete(
    besiege: Besiege, results: Callable[[MadeBoard], None], tmp_path: Path
) -> None:
    results(made(100, 2.0, ("white l2",)))
    told = besiege("study", "digits", "--run", str(tmp_path))
    assert told.code == 3 and "not run" in told.out


@pytest.mark.parametrize(
    ("words", "said"), [(("digit",), "digits"), (("--run", "my-run"), "Name it before --run")]
)
def test_wrong_input_is_told(besiege: Besiege, words: tuple[str, ...], said: str) -> None:
    told = besiege("study", *words)
    assert told.code == 2 and said in told.err

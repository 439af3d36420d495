"""`besiege study`: lists, explains, answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Besiege

from besiege.bench.board import board_of
from besiege.cli import main
from besiege.metrics.paired import Difference, paired_interval
from besiege.studies.study import STUDIES

DIGITS = STUDIES.get("digits")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The benchmark of the shipped study on a few images."""
    folder = tmp_path_factory.mktemp("study") / "run"
    assert main(["run", str(DIGITS.spec), "--count", "30", "--out", str(folder)]) == 0
    return folder


def test_without_a_name_all_are_listed(besiege: Besiege) -> None:
    assert "digits" in besiege("study").out
    listed = json.loads(besiege("study", "--json").out)["studies"]
    assert {k: listed[0][k] for k in ("name", "claims")} == {"name": "digits", "claims": 3}


def test_a_study_shows_its_claims_and_its_commands(besiege: Besiege) -> None:
    told = besiege("study", "digits")
    assert told.code == 0 and "D1  Adversarial training withstands more" in told.out
    assert "besiege study digits --run study-digits" in told.out
    assert Path(json.loads(besiege("study", "digits", "--json").out)["spec"]).exists()


def test_a_run_answers_the_claims(besiege: Besiege, run: Path) -> None:
    told = besiege("study", "digits", "--run", str(run))
    assert told.code == 0 and max(map(len, told.out.splitlines())) <= 80
    flat = " ".join(told.out.split())
    assert "D1 yes Adversarial training withstands more than natural" in flat
    assert "on the same 30 images." in flat
    assert "Each interval is that of 98.33 %" in flat and "any of the 3 is false" in flat
    assert "D3 cannot tell The order" in flat and "These images cannot tell; about" in flat
    assert flat.count("other models and data may differ") == 1, "what all share is printed once"
    cell = board_of(run).cell("white linf")
    share = (cell.smallest[1] > 0.05).mean()
    assert f"pgd-at {100 * share:.1f} %" in flat and "accuracy at linf budgets" in flat


def test_answers_are_those_of_the_distances(besiege: Besiege, run: Path) -> None:
    content = json.loads(besiege("study", "digits", "--run", str(run), "--json").out)
    first, _, order = content["answers"]
    natural, trained = board_of(run).cell("white linf").smallest > 0.1
    change = Difference.of(trained, natural)
    assert (first["effect"]["value"], first["effect"]["count"]) == (change.value, 30)
    assert (first["verdict"], order["verdict"]) == ("yes", "cannot tell")
    interval = paired_interval(change.only_first, change.only_second, 30, content["level"])
    assert (first["effect"]["low"], first["effect"]["high"]) == pytest.approx(interval)
    assert content["level"] == pytest.approx(1 - 0.05 / 3)
    assert content["tables"][0]["columns"] == ["model", "0.05", "0.1", "0.2"]


def test_the_run_of_another_benchmark_is_refused(besiege: Besiege, tmp_path: Path) -> None:
    """Its cells may have the same names, and mean something else."""
    text = DIGITS.spec.read_text().replace("linf:0.1", "linf:0.15")
    (tmp_path / "spec.toml").write_text(text)
    folder = str(tmp_path / "run")
    assert besiege("run", str(tmp_path / "spec.toml"), "--count", "10", "--out", folder).code == 0
    said = besiege("study", "digits", "--run", folder)
    assert said.code == 2 and "is not a run of the study" in said.flat
    assert "the cell 'white linf'" in said.flat and "'white l2'" not in said.flat


def test_a_claim_that_was_not_run_is_incomplete(besiege: Besiege, tmp_path: Path) -> None:
    text = DIGITS.spec.read_text()
    place = tmp_path / "part.toml"
    place.write_text(text.replace("white linf", "other linf"))
    assert besiege("run", str(place), "--count", "5", "--out", "part").code == 0
    told = besiege("study", "digits", "--run", "part")
    assert told.code == 3 and "D1  not run" in told.out
    assert "no cell of this run is 'white linf'" in " ".join(told.out.split())
    shutil.rmtree("part")
    assert besiege("study", "digits", "--run", "part").code == 2


@pytest.mark.parametrize(
    ("words", "said"), [(("digit",), "digits"), (("--run", "my-run"), "Name it before --run")]
)
def test_wrong_input_is_told(besiege: Besiege, words: tuple[str, ...], said: str) -> None:
    told = besiege("study", *words)
    assert told.code == 2 and said in told.err

"""The options of gates: what they refuse before any work, what they print, what they write."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Besiege
from tests.report.schema import Schema

SCHEMA = Schema(Path(__file__).parents[1] / "report" / "junit.xsd")
ASK = ("--data", "digits", "--no-curve", "--no-page", "--attacks", "fgsm")
BRIEF = (*ASK, "--count", "40")
AGAINST = ("--threat", "linf:0.1")
NATURAL = ("evaluate", "zoo:digits-natural", *AGAINST, *BRIEF)
TRAINED = ("evaluate", "zoo:digits-pgd-at", *AGAINST, *BRIEF)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs `natural` and `trained`, of two models on the same 40 images."""
    from besiege.cli import main

    folder = tmp_path_factory.mktemp("runs")
    for name, words in (("natural", NATURAL), ("trained", TRAINED)):
        assert main([*words, "--out", str(folder / name)]) == 0
    return folder


@pytest.fixture
def runs(besiege: Besiege, once: Path, tmp_path: Path) -> Besiege:
    for name in ("natural", "trained"):
        shutil.copytree(once / name, tmp_path / name)
    return besiege


def gates(err: str) -> list[str]:
    """The lines of standard error that are verdicts."""
    return [line for line in err.splitlines() if " against " in line and ": " in line]


def test_the_reason_is_one_line(runs: Besiege) -> None:
    said = runs("report", "natural", "--fail-under", "60", "--fail-under-value", "40%")
    assert said.code == 1
    failed, passed = gates(said.err)
    assert failed.startswith("fail-under 60 failed: zoo:digits-natural against linf:0.1: robust")
    assert failed.endswith(" is below 60 %") and "the lower limit " in failed
    assert passed.startswith("fail-under-value 40 passed: ") and "the value " in passed


def test_json_stays_alone_on_standard_output(runs: Besiege) -> None:
    files = ("--junit", "junit.xml", "--summary", "summary.md")
    plain = runs("report", "natural", "--json")
    said = runs("report", "natural", "--json", "--fail-under", "99", *files)
    assert said.code == 1 and json.loads(said.out) == json.loads(plain.out)
    assert len(gates(said.err)) == 1


def test_files_are_written_with_and_without_work(besiege: Besiege, tmp_path: Path) -> None:
    junit, summary = tmp_path / "ci" / "junit.xml", tmp_path / "ci" / "summary.md"
    files = ("--junit", "ci/junit.xml", "--summary", "ci/summary.md", "--out", "run")
    for times, more in enumerate(((), ("--json",), ("--fail-under", "99")), 1):
        said = besiege(*NATURAL, *files, *more)
        assert said.code == (1 if "99" in more else 0)
        assert ("nothing is left to do" in said.err) == (times > 1)
        assert SCHEMA.problems(junit.read_bytes()) == []
        assert junit.read_text().count("<testcase") == (2 if "99" in more else 1)
        assert summary.read_text().count("## Robustness: ") == times
    assert "- **fail-under 99 failed**: zoo:digits-natural" in summary.read_text()
    assert '<failure type="failed" message="robust accuracy ' in junit.read_text()


def test_a_model_is_compared_sample_by_sample(runs: Besiege) -> None:
    said = runs(*NATURAL, "--out", "new", "--not-worse-than", "trained")
    assert said.code == 1
    (line,) = gates(said.err)[-1:]
    assert line.startswith("not-worse-than trained failed: zoo:digits-natural against linf:0.1: ")
    assert "worse: -" in line and "on the same 40 images, p < 0.001" in line
    again = runs(*NATURAL, "--out", "new", "--not-worse-than", "trained")
    assert again.code == 1 and "nothing is left to do" in again.err, "answered without work"
    assert runs("report", "new", "--not-worse-than", "trained").code == 1
    better = runs(*TRAINED, "--out", "new2", "--not-worse-than", "natural")
    assert better.code == 0 and ": not worse: +" in better.err
    same = runs("report", "new", "--not-worse-than", "natural")
    assert same.code == 0 and "+0.0 points" in same.err and "p = 1" in same.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--count", "30"), "images 40 there and 30 here"),
        (("--count", "40", "--seed", "3"), "seed of the choice 0 there and 3 here"),
        (("--count", "40", "--split", "train"), "split test there and train here"),
    ],
)
def test_other_samples_are_refused_before_any_work(
    runs: Besiege, tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    ask = ("evaluate", "zoo:digits-natural", *AGAINST, *ASK, *words, "--out", "new")
    said = runs(*ask, "--not-worse-than", "natural")
    assert said.code == 2 and said.flat.startswith("error: natural has other samples")
    assert told in said.flat and not (tmp_path / "new").exists()
    assert runs(*ask).code == 0
    said = runs("report", "new", "--not-worse-than", "natural")
    assert said.code == 2 and told in said.flat and said.out == ""
    said = runs(*ask, "--not-worse-than", "natural")
    assert said.code == 2 and told in said.flat and said.out == "", "answered without work"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--threat", "linf:0.2"), "no evaluation with the threat 'linf:0.2': did you mean"),
        (("--threat", "linf:0.1", "--attacks", "pgd"), "by fgsm(), and not by pgd()"),
        (("--threat", "linf:0.1", "--access", "score"), "the threat 'linf:0.1 score'"),
        (("--threat", "linf:0.1", "--out", "natural"), "also the run folder of this command"),
    ],
)
def test_other_terms_are_refused_before_any_work(
    runs: Besiege, words: tuple[str, ...], told: str
) -> None:
    attacks = () if "--attacks" in words or "--access" in words else ("--attacks", "fgsm")
    ask = ("--data", "digits", "--no-curve", "--no-page", "--count", "40", *attacks)
    said = runs("evaluate", "zoo:digits-natural", *ask, *words, "--not-worse-than", "natural")
    flat = said.flat.replace("fgsm,", "fgsm(),").replace("pgd:", "pgd():")
    assert said.code == 2 and told in flat, said.err


def test_of_several_models_that_of_the_same_name_is_compared(runs: Besiege) -> None:
    assert runs(*TRAINED, "--out", "natural").code == 0  # now two models in one folder
    said = runs("report", "trained", "--not-worse-than", "natural")
    assert said.code == 0 and "+0.0 points" in said.err
    other = ("evaluate", "zoo:digits-natural+bits(depth=5)", *AGAINST, *BRIEF)
    said = runs(*other, "--not-worse-than", "natural")
    assert said.code == 2 and "several models on these samples, and none is called" in said.flat
    both = runs("report", "natural", "--not-worse-than", "trained")
    assert both.code == 1, "one other model is compared with all"
    outcomes = [line.split(":")[0] for line in gates(both.err)]
    assert outcomes == ["not-worse-than trained failed", "not-worse-than trained passed"]
    assert both.err.count("(Holm, 2 evaluations)") == 2


def test_a_run_without_a_complete_evaluation_is_refused(runs: Besiege, tmp_path: Path) -> None:
    for record in (tmp_path / "natural" / "records").iterdir():
        shutil.rmtree(record)
    said = runs(*NATURAL, "--out", "new", "--not-worse-than", "natural")
    assert said.code == 2
    assert "no evaluation of natural is complete: run its command again (besiege eval" in said.flat


def test_a_gate_with_a_threat_that_failed_is_not_decided(runs: Besiege, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(
        "from dataclasses import dataclass\n"
        "from besiege import Attack\n"
        "@dataclass(frozen=True)\n"
        "class Failing(Attack):\n"
        "    def run(self, siege):\n"
        "        raise RuntimeError('broken on purpose')\n"
    )
    ask = ("--data", "digits", "--count", "40", "--no-curve", "--no-page", "--out", "natural")
    lost = ("evaluate", "zoo:digits-natural", "--threat", "l2:1", *ask)
    said = runs(*lost, "--attacks", "failing.py:Failing", "--fail-under", "1", "--junit", "j.xml")
    assert said.code == 3
    figures, gate = gates(said.err)[-2:]
    assert "RuntimeError: broken on purpose" in figures and "Run the same command again" in figures
    assert gate.startswith("fail-under 1 incomplete: ") and "cannot be decided" in gate
    assert SCHEMA.problems((tmp_path / "j.xml").read_bytes()) == []
    assert (tmp_path / "j.xml").read_text().count('<error type="incomplete"') == 2
    said = runs("report", "natural", "--fail-under", "1")  # the other threat passes
    assert said.code == 3
    outcomes = [line.split(": ")[0] for line in gates(said.err)]
    assert outcomes == ["incomplete", "fail-under 1 passed", "fail-under 1 incomplete"]


@pytest.mark.parametrize("gate", [("--fail-under", "5"), ("--not-worse-than", "natural")])
def test_without_a_budget_there_is_no_gate(runs: Besiege, gate: tuple[str, str]) -> None:
    said = runs("evaluate", "zoo:digits-natural", "--threat", "l2", "--data", "digits", *gate)
    assert said.code == 2
    assert "the threat 'l2' has no budget" in said.flat and "such as l2:0.5" in said.flat


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--fail-under 0.45", "--fail-under is '0.45', but it is in percent: write 45 for 45 %"),
        ("--fail-under-value 101", "--fail-under-value is '101': write percent, such as 45"),
        ("--fail-under x", "--fail-under is 'x': write percent"),
        ("--fail-under -1", "write percent"),
        ("--allow W99", "'W99' is no rule that stops figures"),
        ("--not-worse-than nowhere", "nowhere does not exist"),
        ("--not-worse-than .", "is no run folder"),
        ("--junit .", ". is a folder: name a file"),
        ("--summary plain/summary.md", "plain/summary.md cannot be written"),
    ],
)
def test_wrong_gates_are_refused_before_any_work(
    besiege: Besiege, tmp_path: Path, words: str, told: str
) -> None:
    (tmp_path / "plain").write_text("")
    said = besiege(*NATURAL, *words.split())
    assert said.code == 2 and told in said.flat
    assert [one.name for one in tmp_path.iterdir()] == ["plain"]

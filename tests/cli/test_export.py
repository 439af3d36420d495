"""``besiege export``: by suffix, of one evaluation or all, with errors in one line."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import Besiege

from besiege.bench.opening import read_evaluations
from besiege.bench.single import evaluate
from besiege.models.catalogue import ZOO

WORDS = ("--data", "digits", "--attacks", "fgsm", "--count", "20", "--no-curve", "--no-page")


@pytest.fixture(scope="module")
def evaluated_here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models, threats = ["zoo:digits-natural", "zoo:digits-pgd-at"], ["linf:0.15", "l2:1"]
    folder = tmp_path_factory.mktemp("several") / "run"
    evaluate(models, "digits", threat=threats, attacks="fgsm", count=20, curve=False, out=folder)
    return folder


@pytest.fixture
def several(besiege: Besiege, evaluated_here: Path) -> Path:
    """A run of two models and two threats in the folder where commands are called."""
    return Path(shutil.copytree(evaluated_here, "run"))


def test_rows_tables_and_images(besiege: Besiege, several: Path) -> None:
    said = besiege("export", "run", "out.csv")
    assert (said.code, said.out.split(), said.err) == (0, ["file", "out.csv"], "")
    with Path("out.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 80
    said = besiege("export", "run", "one.csv", "--model", "zoo:digits-pgd-at", "--threat", "l2:1")
    assert said.code == 0
    with Path("one.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 20 and {row["threat"] for row in rows} == {"l2:1"}
    assert besiege("export", "run", "out.tex").code == 0
    assert Path("out.tex").read_text().count("zoo:digits-natural &") == 2
    chosen = ("--model", "zoo:digits-natural", "--threat", "linf:0.15", "--attack", "fgsm")
    assert besiege("export", "run", "out.npz", *chosen).code == 0
    with np.load("out.npz") as file:
        assert set(file["attacks"].tolist()) == {"fgsm"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "out.xlsx"), "ends in '.xlsx', but the suffix decides what is written"),
        (("run", "out.npz"), "choose one with --model NAME and --threat TEXT"),
        (("run", "out.npz", "--model", "zoo:digits-natral"), "did you mean 'zoo:digits-natural'"),
        (("run", "out.csv", "--threat", "linf:0.1"), "did you mean 'linf:0.15'"),
        (("run", "out.csv", "--attack", "fgsm"), "--attack fgsm chooses images"),
        (("run", "there.csv"), "there.csv exists: choose another name, or replace it with --force"),
        (("ran", "out.csv"), "ran does not exist: did you mean 'run'?"),
        (("run/run.json", "out.csv"), "is a file of a run: name its folder, run"),
        (("run", "out.csv", "--earlier", "1"), "has no earlier result"),
        (("run", "out.csv", "--earlier", "0"), "--earlier"),
        (("run", "absent/out.csv"), "absent does not exist: create this folder first"),
        (("run",), "FILE"),
    ],
)
def test_bad_input(besiege: Besiege, several: Path, words: tuple[str, ...], said: str) -> None:
    Path("there.csv").write_text("mine")
    found = besiege("export", *words)
    assert found.code == 2 and said in found.flat and "Traceback" not in found.err
    assert Path("there.csv").read_text() == "mine" and not list(Path().glob("out.*"))


def test_force_replaces_a_file(besiege: Besiege, several: Path) -> None:
    Path("there.md").write_text("mine")
    assert besiege("export", "run", "there.md", "--force").code == 0
    assert "Model" in Path("there.md").read_text()


def test_an_earlier_result(besiege: Besiege) -> None:
    for name in ("natural", "pgd-at"):
        shutil.copy(ZOO / f"digits-{name}.safetensors", "mine.safetensors")
        words = ("digits_cnn:mine.safetensors", "--threat", "linf:0.15", *WORDS, "--out", "run")
        assert besiege("evaluate", *words).code == 0
    assert besiege("export", "run", "old.csv", "--earlier", "1").code == 0
    assert besiege("export", "run", "new.csv").code == 0
    (found,) = read_evaluations("run")
    for name, one in (("old.csv", found.history[0]), ("new.csv", found)):
        with Path(name).open(newline="") as file:
            success = [row["success"] == "true" for row in csv.DictReader(file)]
        assert success == one.rows["success"].tolist()
    assert found.rows["success"].sum() < found.history[0].rows["success"].sum()


def test_an_incomplete_run_is_exported_and_said(besiege: Besiege, several: Path) -> None:
    (first, *_) = read_evaluations("run")
    lost = first._plan.stages()[1].parts[0][-1].key
    shutil.rmtree(several / "records" / lost)
    said = besiege("export", "run", "out.csv")
    assert said.code == 3 and "not complete" in said.flat and Path("out.csv").exists()

"""`besiege study`: lists, explains, answers."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.children import forked
from tests.cli.conftest import Besiege

from besiege.bench.board_reading import board_of
from besiege.bench.store import Store
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
    claims = {one["name"]: one["claims"] for one in listed}
    assert claims["digits"] == 3 and claims["realsafe"] == len(STUDIES.get("realsafe").claims)


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
    assert besiege("run", str(tmp_path / "spec.toml"), "--count", "2", "--out", folder).code == 0
    said = besiege("study", "digits", "--run", folder)
    assert said.code == 2 and "is not a run of the study" in said.flat
    assert "the cell 'white linf'" in said.flat and "'white l2'" not in said.flat


def test_a_claim_that_was_not_run_is_incomplete(besiege: Besiege, tmp_path: Path) -> None:
    text = DIGITS.spec.read_text()
    place = tmp_path / "part.toml"
    shorter = text.replace('"bim(steps=20)", "mim(steps=20)"', '"bim(steps=2)"')
    place.write_text(shorter.replace("white linf", "other linf"))
    assert besiege("run", str(place), "--count", "2", "--out", "part").code == 0
    told = besiege("study", "digits", "--run", "part")
    assert told.code == 3 and "D1  not run" in told.out
    assert "No cell of this run is 'white linf'" in " ".join(told.out.split())
    shutil.rmtree("part")
    assert besiege("study", "digits", "--run", "part").code == 2


@pytest.mark.parametrize(
    ("words", "said"), [(("digit",), "digits"), (("--run", "my-run"), "Name it before --run")]
)
def test_wrong_input_is_told(besiege: Besiege, words: tuple[str, ...], said: str) -> None:
    told = besiege("study", *words)
    assert told.code == 2 and said in told.err


# A study with several data sets.

NETS = """
from torch import nn
many, two = (nn.Sequential(nn.Flatten(), nn.Linear(64, n)) for n in (20, 2))
"""

FEW = ("--data", "digits", "--size", "smoke", "--models", "natural,pgd-at", "--count", "6")
WHITE = (*FEW, "--only", "white linf untargeted")


def test_data_sets_of_a_study_and_of_its_claims_are_listed(besiege: Besiege) -> None:
    said = " ".join(besiege("study", "realsafe").out.split())
    assert "no model by more than a point. (on cifar10, digits)" in said
    assert "help transfer on every model. (on imagenet-sample)" in said
    listed = said[said.index("--data ") :].split(" --size")[0]
    assert all(name in listed for name in ("digits", "cifar10", "imagenet"))


@pytest.fixture(scope="module")
def realsafe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cell of RealSafe on a few images."""
    folder = tmp_path_factory.mktemp("realsafe") / "run"
    assert main(["study", "realsafe", *WHITE, "--out", str(folder)]) == 3  # claims are not run
    return folder


def test_a_study_is_run_by_one_command_and_not_again(
    besiege: Besiege, realsafe: Path, tmp_path: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in (realsafe / "records").rglob("*.parquet")}
    told = besiege("study", "realsafe", *WHITE, "--out", str(realsafe))
    assert told.code == 3 and "nothing is left to do" in told.flat
    flat = " ".join(told.out.split())
    assert "Table 3: median distance and accuracy" in flat and "F1 not run" in flat
    after = {path: path.stat().st_mtime_ns for path in (realsafe / "records").rglob("*.parquet")}
    assert before == after and before


@pytest.mark.slow
def test_a_part_is_added_to_a_run(besiege: Besiege, realsafe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "grown"
    shutil.copytree(realsafe, folder)
    words = [*WHITE[:-1], "white linf untargeted, strength", "--out", str(folder)]
    assert besiege("study", "realsafe", *words).code == 3
    names = [cell.name for cell in board_of(folder).cells]
    assert names == ["white linf untargeted", "white linf untargeted, strength"]


def test_table_3_as_a_file_is_recomputed_from_exported_rows(
    besiege: Besiege, realsafe: Path, tmp_path: Path
) -> None:
    assert besiege("export", str(realsafe), "t.csv", "--table", "table3").code == 0
    assert besiege("export", str(realsafe), "rows.csv").code == 0
    assert besiege("export", str(realsafe), "t.md", "--table", "table3").code == 0
    table = list(csv.DictReader((tmp_path / "t.csv").read_text().splitlines()))
    rows = list(csv.DictReader((tmp_path / "rows.csv").read_text().splitlines()))
    (one,) = (r for r in table if (r["attack"], r["model"]) == ("bim", "natural"))
    attack = "minimal(bim@realsafe, bisections=10, tolerance=0.01)"
    mine = [r for r in rows if r["attack"] == attack and r["model"] == "natural"]
    assert len(mine) == int(one["images"]) == 6
    sizes = sorted(
        0.0 if r["correct"] == "false" else float(r["linf"]) if r["success"] == "true" else np.inf
        for r in mine
    )
    assert float(one["median"]) == sizes[2]  # half of the images are broken within it
    assert float(one["accuracy"]) == sum(size > 0.15 * (1 + 1e-6) for size in sizes) / 6
    assert "| white bim |" in (tmp_path / "t.md").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("export", "RUN", "t.csv", "--table", "table4"), "did you mean 'table3'"),
        (("export", "RUN", "t.npz", "--table", "table3"), "cannot hold a table"),
        (("export", "RUN", "t.csv", "--table", "table3", "--board"), "two tables"),
        (("study", "realsafe", "--run", "RUN", "--size", "smoke"), "--run only reads"),
        (("study", "--size", "smoke"), "which study?"),
        (("study", "realsafe", "--size", "smoke"), "several data sets"),
        (("study", "realsafe", "--data", "digits", "--queries", "50"), "less than one step"),
        (
            ("study", "realsafe", "--data", "digits", "--models", "zoo:cifar10-natural", "--show"),
            "normalises 3 channels",
        ),
        (
            ("study", "realsafe", "--data", "digits", "--models", "FILE:many", "--show"),
            "the model has 20 classes, but digits has 10",
        ),
        (
            ("study", "realsafe", "--data", "digits", "--models", "FILE:two", "--show"),
            "the data have the label 9",
        ),
        (("study", "realsafe", "--data", "digits", "--count", "500", "--show"), "request 1 to 397"),
        pytest.param(
            *(("study", "realsafe", "--data", "cifar10", "--size", "paper"), "cifar10"),
            marks=pytest.mark.slow,
        ),
        (("study", "realsafe", "--data", "imagenet", "--show"), "imagenet_squeezenet1.1 needs"),
    ],
)
def test_wrong_input_of_a_study_is_told_before_any_work(
    besiege: Besiege, realsafe: Path, words: tuple[str, ...], said: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("BESIEGE_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("BESIEGE_OFFLINE", "1")
    (tmp_path / "nets.py").write_text(NETS)
    given = {"RUN": str(realsafe), "FILE:many": "nets.py:many", "FILE:two": "nets.py:two"}
    told = besiege(*(given.get(word, word) for word in words))
    assert told.code == 2 and said in told.flat
    assert not (tmp_path / "besiege-runs").exists()


def test_the_page_of_a_study_and_its_site(besiege: Besiege, realsafe: Path, tmp_path: Path) -> None:
    besiege("study", "realsafe", "--run", str(realsafe), "--page", "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "# RealSafe: 15 attacks" in page and "| **F1** The order" in page
    assert "## Table 3: median distance" in page and "Size, on digits: 6 images" in page
    assert str(tmp_path) not in page.replace(str(realsafe), "")
    assert besiege("report", str(realsafe)).code in (0, 4)
    site = realsafe / "site"
    assert "Figure 1: accuracy against budget" in (site / "study.html").read_text()
    assert (site / "study" / "figure-1.html").is_file()
    assert "study.html" in (site / "index.html").read_text()


PARTS = {
    # White box, transfer and scores.
    "realsafe": ("--count", "5", "--only", "*linf untargeted", "--workers", "2"),
    # Cells with a model that is trained, transfer, and a universal perturbation.
    "deepsec": ("--count", "6", "--only", "linf*", "--models", "undefended,pat,another family"),
    # Suites whose attacks see what others left, certificates, and a model that draws.
    "autoattack": ("--count", "4", "--only", "*linf*", "--models", "natural,pgd-at,noise"),
    # Trained models, images that are shown to the other models, and searches.
    "su": ("--count", "4", "--only", "*0.3*", "--models", "conv,plain3"),
}
KILLS = 10


@pytest.mark.slow
@pytest.mark.parametrize("study", PARTS)
def test_a_study_that_is_killed_again_and_again_gives_the_same_answers(
    besiege: Besiege, tmp_path: Path, study: str
) -> None:
    """Killed with all workers at any moment, and resumed."""

    def start(folder: Path) -> int:
        def work() -> None:
            os.setsid()  # a group of its own, which is killed as a whole
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1), os.dup2(nothing, 2)
            part = ("--data", "digits", "--size", "smoke", *PARTS[study])
            os._exit(main(["study", study, *part, "--out", str(folder)]))

        return forked(work)

    def ended(child: int, options: int = 0) -> int | None:
        number, status = os.waitpid(child, options)
        return os.waitstatus_to_exitcode(status) if number else None

    whole, run = tmp_path / "whole" / "run", tmp_path / "parts" / "run"
    whole.parent.mkdir()
    run.parent.mkdir()
    assert ended(start(whole)) == 3  # some claims need other cells
    chance = random.Random(0)
    every = len(Store(whole).present())
    for kills in range(KILLS):
        running = start(run)
        wanted = max(1, int(every * (kills + chance.uniform(0.3, 1.0)) / (KILLS + 1)))
        while _records(run) < wanted:
            assert ended(running, os.WNOHANG) is None, "it is killed before it ends"
            time.sleep(0.01)
        os.killpg(running, signal.SIGKILL)
        assert ended(running) == -signal.SIGKILL
    assert ended(start(run)) == 3
    assert _judged(run) == _judged(whole)
    told = [_told(besiege, study, folder) for folder in (whole, run)]
    assert told[0] == told[1] and any(one["effect"] for one in told[0]["answers"])


def _judged(folder: Path) -> dict[str, Any]:
    """All records without their images, most of which are let go."""
    store = Store(folder)
    records = {key: store.read(key) for key in store.present()}
    return {
        key: (one.identity, one.totals, one.failure, {n: repr(c.tolist()) for n, c in rows.items()})
        for key, one in records.items()
        if one is not None and (rows := store.rows([key]))
    }


def _records(folder: Path) -> int:
    return sum(1 for _ in (folder / "records").glob("[0-9a-f]*")) if folder.exists() else 0


def _told(besiege: Besiege, study: str, folder: Path) -> dict[str, Any]:
    """Answers and tables, without the column of times."""
    found: dict[str, Any] = json.loads(besiege("study", study, "--run", str(folder), "--json").out)
    for table in found["tables"]:
        kept = [at for at, name in enumerate(table["columns"]) if name.lower() != "seconds"]
        table["rows"] = [[row[at] for at in kept] for row in table["rows"]]
    return found


def test_deepsec_shows_replayed_images_beside_attacks_on_the_model_itself(
    besiege: Besiege, tmp_path: Path
) -> None:
    words = ("--data", "digits", "--size", "smoke", "--count", "12", "--only", "linf")
    told = besiege("study", "deepsec", *words, "--models", "undefended,pat", "--out", "run")
    assert told.code == 3 and "R1 not run" in " ".join(told.out.split())
    assert "Tables V and XV: defenses under replayed images" in told.out
    content = json.loads(besiege("study", "deepsec", "--run", "run", "--json").out)
    tables = {one["name"]: one for one in content["tables"]}
    rows = {row[0]: row[1] for row in tables["replayed"]["rows"]}
    left, own = (float(part) for part in rows["BIM"].split(" / "))
    found = board_of(tmp_path / "run").cell("linf")
    pat, source = (found.models.index(name) for name in ("pat", "undefended"))
    both = found.correct[pat] & found.correct[source]
    shown = found.success[pat, found.attacks.index("transfer(undefended, bim@deepsec-mnist)")]
    assert left == round(100 * (~shown[both]).mean(), 1)
    mine = found.success[pat, found.attacks.index("bim@deepsec-mnist")][found.correct[pat]]
    assert own == round(100 * (~mine).mean(), 1)
    assert [len(tables["critique"]["rows"]), tables["utility"]["rows"][0][0]] == [13, "FGSM"]
    assert {"utility", "clean", "replayed", "critique"} <= set(tables)


def test_autoattack_shows_the_parts_beside_what_cards_report(besiege: Besiege) -> None:
    words = ("--data", "digits", "--count", "4", "--only", "alone*", "--models", "natural,pgd-at")
    told = besiege("study", "autoattack", *words, "--out", "run")
    assert told.code == 3 and "Table 2: parts of AutoAttack" in told.out
    content = json.loads(besiege("study", "autoattack", "--run", "run", "--json").out)
    (table,) = (one for one in content["tables"] if one["name"] == "table2")
    assert [row[-1] for row in table["rows"]] == ["12.8", "75.6"]
    assert table["rows"][0][9] == "not run", "no suite was run"
    verdicts = {one["id"]: one["verdict"] for one in content["answers"]}
    assert verdicts["A1"] == "cannot tell" and verdicts["A16"] == "not run"


def test_what_a_study_would_run_is_shown_in_80_columns_with_whole_names(besiege: Besiege) -> None:
    shown = besiege("study", "realsafe", "--data", "digits", "--size", "smoke", "--show").out
    assert max(map(len, shown.splitlines())) <= 80
    for name in ("targeted:random", "nattack@realsafe", "spsa@realsafe-code-l2", "evolutionary@"):
        assert name in shown

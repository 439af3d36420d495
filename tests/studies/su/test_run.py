"""The study run by its command on a few images: again, after a loss, recomputed from records."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.bench.records import finished

from besiege.bench.benchmark_files import read_benchmark
from besiege.bench.expanding import declared
from besiege.bench.store import Store
from besiege.cli import main
from besiege.studies.choosing import Choice, chosen
from besiege.studies.study import STUDIES

MODELS = "conv,pgd-at=zoo:digits-pgd-at,blurred=zoo:digits-natural+median"
WORDS = ["study", "su", "--data", "digits", "--size", "smoke", "--models", MODELS, "--count", "8"]
WORDS += ["--only", "linf 0.1*"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("su") / "run"
    assert main([*WORDS, "--out", str(out)]) == 3  # claims that are not run
    return out


def told(folder: Path) -> dict[str, Any]:
    """The rows of all records; the images are let go once they were judged."""
    store = Store(folder)
    rows = {key: store.rows([key]) for key in store.present()}
    return {
        key: {name: [repr(one) for one in column.tolist()] for name, column in table.items()}
        for key, table in rows.items()
    }


def test_run_again_it_does_nothing_and_half_its_records_are_made_again(folder: Path) -> None:
    before, work = told(folder), finished(folder)
    assert main([*WORDS, "--out", str(folder)]) == 3
    assert finished(folder) == work
    for key in sorted(before)[::2]:
        shutil.rmtree(folder / "records" / key)
    assert main([*WORDS, "--out", str(folder)]) == 3
    assert told(folder) == before


def rows_of(folder: Path, kind: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Identities and rows of all records of a kind, as any program reads them."""
    found = []
    for path in sorted((folder / "records").iterdir()):
        identity = json.loads((path / "record.json").read_text())["identity"]
        if identity["kind"] == kind:
            relation = duckdb.sql(f"select * from read_parquet('{path}/rows.parquet')")
            assert relation is not None
            table = relation.fetchnumpy()
            found.append((identity, {name: column.tolist() for name, column in table.items()}))
    return found


@pytest.mark.parametrize(("goal", "word"), [("untargeted", ""), ("random", " targeted:random")])
def test_cells_of_the_matrix_are_those_of_the_records(
    folder: Path, tmp_path: Path, goal: str, word: str
) -> None:
    table = tmp_path / "matrices.csv"
    assert main(["export", str(folder), str(table), "--table", "matrices"]) == 0
    given = list(csv.DictReader(table.read_text().splitlines()))
    plans = {p["model"]["name"]: p for p in json.loads((folder / "run.json").read_text())["plans"]}
    texts = {"conv": "zoo:digits-natural", "pgd-at": "zoo:digits-pgd-at"}
    texts["blurred"] = "zoo:digits-natural+median"
    crafted = {identity["shard"]: identity for identity, _ in rows_of(folder, "craft")}
    assert crafted
    judged = rows_of(folder, "across")
    keys = {path.name: json.loads((path / "record.json").read_text())["identity"]
            for path in (folder / "records").iterdir()}  # fmt: skip
    for source, target in (("conv", "pgd-at"), ("pgd-at", "conv"), ("blurred", "conv")):
        mine = plans[texts[source]]
        place = [one["name"] for one in mine["across"]].index(texts[target])
        own: dict[int, bool] = {}
        for identity, rows in rows_of(folder, "clean"):
            if identity["victim"] == mine["model"]["digest"]:
                own |= dict(zip(rows["sample"], rows["correct"], strict=True))
        hits = []
        for identity, rows in judged:
            about = keys[identity["crafted"]]
            if (
                about["victim"] != mine["model"]["digest"]
                or about["threat"] != f"linf:0.1{word}"
                or not about["text"].startswith("bim")
            ):
                continue
            for row, model in enumerate(rows["model"]):
                if model == place and own[rows["sample"][row]]:
                    wrong = rows["prediction"][row] != rows["label"][row]
                    hits.append(wrong if goal == "untargeted" else rows["rank"][row] == 1)
        (cell,) = (
            one
            for one in given
            if (one["source"], one["target"], one["goal"]) == (source, target, goal)
            and one["form"] == "I-FGSM, eps 0.1, 10 steps"
        )
        assert len(hits) == int(cell["images"]) == sum(own.values())
        assert float(cell["rate"]) == pytest.approx(sum(hits) / len(hits))


def test_the_page_is_written(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "su.md"
    assert main(["study", "su", "--run", str(folder), "--page", str(page)]) == 3
    text = page.read_text()
    assert "## Success" in text and "**S9**" in text and "## Run it" in text
    assert "--data imagenet-sample --size SIZE --only 'C&W*'" in text


@pytest.mark.parametrize("data", ["digits", "cifar10", "imagenet-sample"])
@pytest.mark.parametrize("size", ["smoke", "bench", "paper"])
def test_specifications_are_sound(data: str, size: str) -> None:
    study = STUDIES.get("su")
    benchmark, path = chosen(study, Choice(data, size))
    found = declared(benchmark, path.parent)
    assert not found.problems and len(benchmark.cells) == 17
    names = [cell.name for cell in read_benchmark(path).cells]
    assert names == [cell.name for cell in study.benchmarks()[0].cells]
    steps = {"smoke": 30, "bench": 100, "paper": 1000}[size]
    assert f"cw(steps={steps}, rounds=9)" in (benchmark.cell("C&W, random").attacks or ())
    few = {"smoke": 5, "bench": {"digits": 20, "cifar10": 100}.get(data, 20), "paper": 100}[size]
    assert benchmark.cell("CLEVER, random").count == few
    every = set(benchmark.models) | set(benchmark.absent)
    assert set(benchmark.tags["family"]) == every
    if data == "cifar10":
        assert len(every) == 20 and len(set(benchmark.tags["family"].values())) == 6

"""Cells that differ in one field only are different evaluations, and none is dropped silently."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.bench.small import SMALL

import besiege
from besiege.bench import expanding
from besiege.bench.benchmark import Benchmark, Cell
from besiege.bench.benchmark_files import benchmark_of
from besiege.bench.board_reading import board_of
from besiege.bench.expanding import declared
from besiege.bench.preparing import Prepared, prepare_benchmark
from besiege.bench.run import read_run
from besiege.bench.single import measure
from besiege.bench.spec import EXAMINING, Machine
from besiege.bench.store import Store
from besiege.training.detectors import fit_detector

Change = dict[str, Any]
BASE: Change = {"threat": "linf:0.15", "attacks": ["square(steps=20)", "fgsm"], "examine": "none"}
WITHOUT_ATTACKS: Change = {"attacks": None, "suite": "quick"}
QUERIES: Change = {"attacks": ["square(steps=20)"]}
FIELDS: dict[str, tuple[Change, Change]] = {
    "threat": ({}, {"threat": "linf:0.2"}),
    "attacks": ({}, {"attacks": ["fgsm"]}),
    "suite": (WITHOUT_ATTACKS, {"suite": "adaptive"}),
    "budget": ({}, {"budget": "search"}),
    "budgets": ({}, {"threat": "linf", "budgets": ["0.1"]}),
    "substitute": ({}, {"substitute": "pgd-at"}),
    "seeds": ({}, {"seeds": [5]}),
    "count": ({}, {"count": 7}),
    "queries": (QUERIES, {"queries": 9}),
    "goal": ({}, {"goal": "targeted:random"}),
    "access": (QUERIES, {"access": "score"}),
    "examine": ({}, {"examine": "full"}),
    "clever": ({}, {"clever": "clever(batches=20, samples=4)"}),
    "certify": ({}, {"certify": "ibp"}),
    "across": ({}, {"across": "grey", "models": ["natural", "pgd-at"]}),
}
"""For every field what both cells have besides, and the change of the second."""
SHOWN_ELSEWHERE = {"name", "models", "beside", "crop"}
"""A name is no part of an evaluation, `models` chooses some; the others have tests of their own."""


def cell(name: str, *changes: Change) -> Change:
    made = {"name": name, "models": ["natural"], **BASE}
    for change in changes:
        made |= change
    return {key: value for key, value in made.items() if value is not None}


def spec(*cells: Change, **changes: Any) -> Benchmark:
    return benchmark_of({**tomllib.loads(SMALL), "cells": list(cells), **changes})


def planned(benchmark: Benchmark, folder: Path) -> Prepared:
    found = Store(folder)
    run = read_run(found)
    return prepare_benchmark(declared(benchmark, Path()), folder, run, Machine())


def scored(found: besiege.Evaluations) -> list[bool]:
    """Which evaluations have CLEVER scores."""
    return [one.figures.plain().get("clever") is not None for one in found]


def names(prepared: Prepared) -> dict[str, str]:
    """The name of the plan of every cell."""
    made = {plan.name for plan in prepared.plans}
    assert {entry.plan for entry in prepared.entries} == made, "a cell without a plan"
    return {one.cell: one.plan for one in prepared.entries if one.model == "natural"}


def test_every_field_of_a_cell_is_in_this_table() -> None:
    assert set(FIELDS) | SHOWN_ELSEWHERE == set(Cell.model_fields)


@pytest.mark.parametrize("field", FIELDS)
def test_cells_that_differ_in_one_field_have_plans_of_their_own(field: str, tmp_path: Path) -> None:
    both, change = FIELDS[field]
    alone = names(planned(spec(cell("one", both)), tmp_path))
    one, two = cell("one", both), cell("two", both, change)
    for cells in ([one, two], [two, one]):
        found = names(planned(spec(*cells), tmp_path))
        assert found["one"] != found["two"], field
    assert names(planned(spec(one, two), tmp_path))["one"] == alone["one"], "names stay"


@pytest.mark.parametrize(
    "clever", ["clever(batches=30, samples=4)", "clever(batches=20, radius=1)"]
)
def test_two_settings_of_one_field_have_plans_of_their_own(clever: str, tmp_path: Path) -> None:
    cells = [cell(str(n), {"clever": text}) for n, text in enumerate(["clever", clever, clever])]
    found = names(planned(spec(*cells), tmp_path))
    assert found["0"] != found["1"] == found["2"], "equal cells share one plan"


def test_cells_that_differ_in_the_images_left_out_have_plans_of_their_own(tmp_path: Path) -> None:
    out, model = tmp_path / "squeezing.safetensors", "zoo:digits-natural"
    models = {
        "natural": model,
        "guarded": f"{model}+detector('{fit_detector('squeezing', model, 'digits', out)}')",
    }
    cells = [cell("one"), cell("two", {"beside": ["guarded"]})]
    cells.append(cell("three", {"models": ["guarded"]}))
    found = names(planned(spec(*cells, models=models), tmp_path / "run"))
    assert found["one"] != found["two"]


NET = """
import torch
from besiege.models import Classifier


class Mean(torch.nn.Module):
    def forward(self, x):
        return torch.cat([x.mean((2, 3)), -x.mean((2, 3))], 1)


def make():
    return Classifier(Mean(), classes=2)
"""


def test_cells_that_differ_in_the_side_of_images_have_plans_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expanding, "side_of", lambda name: 6)
    pixels = np.random.default_rng(0).integers(0, 255, (2, 10, 10), np.uint8)
    for number, image in enumerate(pixels):
        place = tmp_path / "photos" / f"class{number}" / "a.png"
        place.parent.mkdir(parents=True)
        Image.fromarray(image).save(place)
    (tmp_path / "net.py").write_text(NET)
    about = {
        "data": str(tmp_path / "photos"),
        "models": {"natural": f"{tmp_path / 'net.py'}:make"},
        "count": 2,
    }
    cells = [
        cell("one", {"attacks": ["fgsm"]}),
        cell("two", {"attacks": ["fgsm"], "crop": "model"}),
    ]
    prepared = planned(spec(*cells, **about), tmp_path / "run")
    found = names(prepared)
    assert found["one"] != found["two"]
    assert [plan.data.shape for plan in prepared.plans] == [(1, 10, 10), (1, 6, 6)]


def test_names_stay_when_a_cell_is_inserted_before_others(tmp_path: Path) -> None:
    plain, proved = cell("plain"), cell("proved", {"certify": "ibp"})
    measure(declared(spec(plain), Path()), out=tmp_path)
    before = names(planned(spec(plain), tmp_path))
    measure(declared(spec(proved, plain), Path()), out=tmp_path)
    after = names(planned(spec(proved, plain), tmp_path))
    assert after["plain"] == before["plain"] != after["proved"]
    assert names(planned(spec(plain, proved), tmp_path)) == after


def test_each_cell_has_what_it_asked_for_and_shares_the_work(tmp_path: Path) -> None:
    clever = {"clever": "clever(batches=20, samples=4)"}
    cells = [cell("plain"), cell("scored", clever), cell("proved", {"certify": "ibp"})]
    found = measure(declared(spec(*cells), Path()), out=tmp_path)
    assert scored(found) == [False, True, False]
    assert [one.figures.certified is not None for one in found] == [False, False, True]
    assert len({str(one.figures.robust) for one in found}) == 1
    assert [group.name for group in board_of(tmp_path).cells] == ["plain", "scored", "proved"]
    read = besiege.open(tmp_path)
    assert isinstance(read, besiege.Evaluations) and scored(read) == [False, True, False]
    apart = measure(declared(spec(*cells), Path()), out=tmp_path.parent / "apart", workers=1)
    assert scored(apart) == [False, True, False] and all(one.complete for one in apart)


def test_a_run_of_an_earlier_release_gets_the_cells_that_it_dropped(tmp_path: Path) -> None:
    cells = [cell("plain"), cell("scored", {"clever": "clever(batches=20, samples=4)"})]
    measure(declared(spec(*cells), Path()), out=tmp_path)
    old = json.loads((tmp_path / "run.json").read_text())
    first, _ = old["plans"]
    del first["digest"]
    for entry in old["entries"]:
        entry["plan"] = old["entries"][0]["plan"]
    first["asked"].pop("apart")
    (tmp_path / "run.json").write_text(json.dumps({**old, "plans": [first]}))
    assert isinstance(besiege.open(tmp_path), besiege.Evaluation), "it stays readable"
    found = measure(declared(spec(*cells), Path()), out=tmp_path)
    assert scored(found) == [False, True]


def test_what_the_name_of_a_plan_leaves_out_is_listed() -> None:
    assert set(EXAMINING) & set(Cell.model_fields) == {"examine", "clever", "certify"}

"""A run as arrays: they equal what a few lines read from the rows of its results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import besiege
from besiege.bench import summaries
from besiege.bench.benchmark_files import benchmark_of
from besiege.bench.board import Board
from besiege.bench.board_reading import board_of
from besiege.bench.cell_groups import groups_of
from besiege.bench.evaluations import Evaluations
from besiege.bench.overview import open_run
from besiege.bench.run import RunEntry
from besiege.core.errors import UnknownNameError

MODELS = ["zoo:digits-natural", "zoo:digits-pgd-at"]
WORDS: dict[str, Any] = {"count": 40, "curve": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models under a budget, in a search, in a suite, and under transferred attacks."""
    out = tmp_path_factory.mktemp("board") / "run"
    fixed: dict[str, Any] = {"threat": "linf:0.15", "attacks": "fgsm, bim(steps=3)"}
    besiege.evaluate(MODELS, "digits", **fixed, out=out, **WORDS)
    besiege.evaluate(MODELS, "digits", threat="l2", attacks="deepfool", out=out, **WORDS)
    besiege.evaluate(MODELS, "digits", threat="l2:0.8", suite="fgsm,mim", out=out, **WORDS)
    crafted: dict[str, Any] = {"threat": "linf:0.15", "attacks": "bim", "out": out, **WORDS}
    for target, source in (MODELS, MODELS[::-1]):
        besiege.evaluate(target, "digits", substitute=source, **crafted)
    return out


@pytest.fixture(scope="module")
def board(folder: Path) -> Board:
    return board_of(folder)


@pytest.fixture(scope="module")
def found(folder: Path) -> Evaluations:
    read = besiege.open(folder)
    assert isinstance(read, Evaluations)
    return read


def test_cells_are_evaluations_that_differ_in_the_model_only(board: Board) -> None:
    assert [model.name for model in board.models] == MODELS
    names = [cell.name for cell in board.cells]
    assert names == ["linf:0.15", "l2", "l2:0.8", "linf:0.15, transfer"]
    assert [cell.models for cell in board.cells] == [tuple(MODELS)] * 4
    assert [cell.knowledge for cell in board.cells] == ["white box"] * 3 + ["transfer"]
    assert [cell.search for cell in board.cells] == [False, True, False, False]
    assert [cell.suite for cell in board.cells] == [False, False, True, False]
    assert board.cells[3].sources == (MODELS[1], MODELS[0])
    assert board.cell("l2").eps is None and board.cells[0].eps == pytest.approx(0.15)
    with pytest.raises(UnknownNameError, match="l2"):
        board.cell("l3")


@pytest.mark.parametrize("cell", range(4))
def test_every_array_is_that_of_the_rows(board: Board, found: Evaluations, cell: int) -> None:
    mine = board.cells[cell]
    for m, place in enumerate(mine.evaluations):
        result = found[place]
        assert result.figures.model.name == mine.models[m]
        fates = {row["sample"]: row["fate"] for row in result.by_sample.records()}
        assert sorted(fates) == mine.samples.tolist()
        assert mine.robust[m].tolist() == [fates[s] == "standing" for s in mine.samples]
        assert mine.correct[m].tolist() == [fates[s] != "wrong" for s in mine.samples]
        assert mine.known[m].all()
        rows = {(row["attack"], row["sample"]): row for row in result.rows.records()}
        for a, attack in enumerate(mine.attacks):
            for n, sample in enumerate(mine.samples.tolist()):
                row = rows.get((attack, sample))
                right = fates[sample] != "wrong"
                broken = row is not None and row["success"] and right
                assert mine.success[m, a, n] == broken
                counted = -1 if row is None else row["forwards"]
                assert mine.forwards[m, a, n] == counted
                assert mine.first_step[m, a, n] == (-1 if row is None else row["first_step"])
                if mine.search:
                    size = 0.0 if not right else row[mine.norm] if broken and row else np.inf
                    assert mine.distance[m, a, n] == size
                elif broken and row:
                    assert mine.distance[m, a, n] == row[mine.norm]
                else:
                    assert np.isnan(mine.distance[m, a, n])


def test_accuracies_are_those_of_the_figures(board: Board) -> None:
    for cell in board.cells:
        for m in range(len(cell.models)):
            figures = board.evaluation(cell, m)
            assert figures.robust is not None and figures.robust.hits == cell.robust[m].sum()
            for a, attack in enumerate(figures.attacks):
                assert cell.accuracy(m, a) == attack.accuracy
            success = cell.success_rate(m, 0)
            assert success is not None and success.count == cell.correct[m].sum()
            assert success.hits == cell.success[m, 0].sum()


def test_a_search_answers_for_every_budget(board: Board) -> None:
    cell = board.cell("l2")
    sizes = cell.distance[:, 0]
    assert np.array_equal(cell.smallest, sizes)
    for eps in (0.0, 0.3, 1.0):
        assert np.array_equal(cell.withstood(eps), sizes > eps * (1 + 1e-6))
        assert np.array_equal(cell.left_by(0, eps), sizes > eps * (1 + 1e-6))
    assert 0 < cell.withstood(0.3).sum() < cell.withstood(0.0).sum()


def test_the_best_so_far_is_that_of_the_figures(board: Board, found: Evaluations) -> None:
    """Medians within numbers of passes, and what the whole search found."""
    cell = board.cell("l2")
    assert cell.best.shape == (2, 1, 40, len(cell.passes)) and cell.passes[:3].tolist() == [1, 2, 5]
    for m in range(2):
        distances = board.evaluation(cell, m).distances
        assert distances is not None
        cost = distances.attacks[0].cost
        assert cost is not None
        medians = dict(zip(cost.passes, cost.median, strict=True))
        for place, mark in enumerate(cell.passes.tolist()):
            median = np.sort(cell.best[m, 0, :, place])[19]
            if mark in medians:
                assert (None if np.isinf(median) else median) == pytest.approx(medians[mark])
        assert np.array_equal(cell.best[m, 0, :, -1], cell.distance[m, 0].astype(np.float32))
        assert (cell.best[m, 0, :, 1:] <= cell.best[m, 0, :, :-1]).all()
        assert np.isinf(cell.best[m, 0, cell.correct[m], 0]).all(), "one pass finds nothing"
        assert (cell.best[m, 0, ~cell.correct[m]] == 0).all()
        assert np.array_equal(cell.searched[m], cell.smallest[m])
    assert board.cells[0].best.shape[-1] == 0 and np.isnan(board.cells[0].searched).all()


def test_arrays_are_cached_until_a_record_changes(
    folder: Path, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, run = open_run(folder)
    plan = run.current[0]

    def fails(*_: object) -> None:
        raise AssertionError("records were read again")

    with monkeypatch.context() as patch:
        patch.setattr(summaries, "gather", fails)
        again = summaries.outcomes_of(store, plan)
        assert np.array_equal(again.robust, board.cells[0].robust[0])
        (store.records / next(plan.tasks()).key / "rows.parquet").touch()
        with pytest.raises(AssertionError, match="read again"):
            summaries.outcomes_of(store, plan)
    assert np.array_equal(summaries.outcomes_of(store, plan).robust, again.robust)
    (folder / "figures" / f"{plan.name}.safetensors").write_bytes(b"damaged")
    assert np.array_equal(summaries.outcomes_of(store, plan).distance, again.distance, True)
    search = next(plan for plan in run.current if plan.threat == "l2")
    kept, cell = summaries.outcomes_of(store, search), board.cell("l2")
    assert np.array_equal(kept.best, cell.best[0]) and np.array_equal(kept.passes, cell.passes)


def test_the_cells_of_a_benchmark_are_those_it_declares(folder: Path) -> None:
    _, run = open_run(folder)
    benchmark = benchmark_of(
        {
            "name": "made-up",
            "data": "digits",
            "models": {"natural": "zoo:digits-natural", "trained": "zoo:digits-pgd-at"},
            "cells": [
                {"name": "white", "threat": "linf:0.15", "attacks": ["pgd"]},
                {"name": "search", "threat": "l2:0.5", "attacks": ["fmn"], "budget": "search"},
            ],
        }
    )
    listed = [
        ("white", "natural", "0.15", 0),
        ("white", "trained", "0.15", 0),
        ("search", "natural", None, 0),
        ("search", "trained", None, 1),
    ]
    entries = tuple(
        RunEntry(cell=cell, model=name, budget=budget, seed=seed, plan=run.current[place].name)
        for place, (cell, name, budget, seed) in enumerate(listed)
    )
    declared = run.model_copy(update={"benchmark": benchmark, "entries": entries})
    found = groups_of(declared)
    assert [one.name for one in found] == ["white", "search, seed 0", "search, seed 1"]
    assert found[0].models == ("natural", "trained") and found[0].plans == (0, 1)
    assert [(one.eps, one.eps_text) for one in found[1:]] == [(0.5, "0.5")] * 2

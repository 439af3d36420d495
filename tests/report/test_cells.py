"""The table of a benchmark in the terminal: it fits, and nothing of it is lost."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console
from tests.report.crowd import crowd, names

from besiege.bench.benchmark_files import benchmark_of
from besiege.bench.board import Board
from besiege.bench.run import Run, RunEntry
from besiege.report.cells import cells_table


def run_of(board: Board) -> Run:
    """The run of a board, as a benchmark."""
    entries = [
        RunEntry(cell=cell.name, model=model, budget=None, seed=0, plan=f"{cell.name} {m}")
        for cell in board.cells
        for m, model in enumerate(cell.models)
    ]
    cells = [{"name": c.name, "threat": "linf:8/255", "attacks": ["fgsm"]} for c in board.cells]
    content = {"name": "crowd", "data": "digits", "cells": cells}
    models = {model.name: model.text for model in board.models}
    benchmark = benchmark_of({**content, "models": models})
    return Run(created="", versions={}, benchmark=benchmark, entries=tuple(entries))


def printed(board: Board, run: Run, width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width).print(cells_table(run, board.figures))
    return [line.rstrip() for line in file.getvalue().splitlines()]


@pytest.mark.parametrize(("width", "tables"), [(80, 3), (200, 1)])
def test_sixteen_models_with_long_names_fit(width: int, tables: int) -> None:
    board = crowd(16, 4, 40)
    lines = printed(board, run_of(board), width)
    assert max(map(len, lines)) <= width
    assert sum(line.startswith("model") for line in lines) == tables
    text = "".join(line.split(" ")[0] for line in lines)
    assert all(text.count(name) == tables for name in names(16)), "names are folded, not cut"
    headings = ("clean", *(f"number {place}" for place in range(4)))
    assert all(_cells(lines).count(heading) == 1 for heading in headings)


def _cells(lines: Sequence[str]) -> str:
    return " ".join(" ".join(lines).split())


def test_evaluations_beside_the_benchmark_are_counted() -> None:
    board = crowd(2, 2, 20)
    run = run_of(board)
    assert "more in this folder" not in _cells(printed(board, run, 80))
    fewer = run.model_copy(update={"entries": run.entries[:-1]})
    assert "1 more in this folder, not of the benchmark" in _cells(printed(board, fewer, 80))

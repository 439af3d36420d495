"""Cells of RealSafe, recomputed in a few lines from the rows that `besiege export` writes."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq
from tests.studies.panels import sweeps

from besiege.bench.board import Board
from besiege.bench.board_reading import board_of
from besiege.cli import main
from besiege.studies.realsafe.findings import rankings_cross
from besiege.studies.study import STUDIES

STUDY = STUDIES.get("realsafe")
EPS = 0.15
WITHIN = EPS * (1 + 1e-6)
MODELS = ("natural", "pgd-at")
SEARCH = "minimal({}@realsafe, bisections=10, tolerance=0.01)"
Row = dict[str, str]
Rows = Callable[..., list[Row]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recomputed") / "run"
    words = ["--size", "smoke", "--models", ",".join(MODELS), "--count", "16", "--only"]
    out = ["--out", str(folder)]
    assert main(["study", "realsafe", "--data", "digits", *words, "white linf*", *out]) == 3
    return folder


@pytest.fixture(scope="module")
def board(run: Path) -> Board:
    return board_of(run)


@pytest.fixture(scope="module")
def rows(run: Path) -> Rows:
    """The exported rows of an attack on a model under a threat, by sample."""
    assert main(["export", str(run), str(run / "rows.csv")]) == 0
    with (run / "rows.csv").open() as file:
        every = list(csv.DictReader(file))

    def chosen(attack: str, model: str, threat: str = "linf") -> list[Row]:
        wanted = (attack, model, threat)
        mine = [r for r in every if (r["attack"], r["model"], r["threat"]) == wanted]
        return sorted(mine, key=lambda row: int(row["sample"]))

    return chosen


def sizes(some: list[Row]) -> NDArray[np.float64]:
    """The distances of images: 0 where misclassified when clean, infinite where never broken."""
    return np.array(
        [
            0.0 if r["correct"] == "false" else float(r["linf"]) if r["success"] == "true" else 9e9
            for r in some
        ]
    )


def entry(board: Board, table: str, **about: str) -> dict[str, float]:
    """The only row of a table with these values."""
    found = STUDY.table(table, board).numbers
    (at,) = (
        n for n in range(found.count) if all(found[key][n] == one for key, one in about.items())
    )
    return {key: found[key][at] for key in found}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("attack", ["fgsm", "bim", "mim"])
def test_entries_of_table_3(board: Board, rows: Rows, attack: str, model: str) -> None:
    mine = np.sort(sizes(rows(SEARCH.format(attack), model)))
    found = entry(board, "table3", knowledge="white", attack=attack, model=model)
    assert (found["median"], found["accuracy"]) == (mine[7], (mine > WITHIN).mean())
    assert 0 < found["accuracy"] < 1, "an entry that says something"


@pytest.mark.parametrize("model", MODELS)
def test_a_curve_over_budgets_at_three_points(board: Board, rows: Rows, model: str) -> None:
    mine = sizes(rows(SEARCH.format("bim"), model))
    (figure,) = (one for one in STUDY.figures(board) if one.name == "1")
    (panel,) = (one for one in sweeps(figure) if one.attack == "bim")
    (line,) = (one for one in panel.lines if one.model == model)
    values = []
    for x in (0.05, 0.12, 0.2):
        at = np.searchsorted(line.x, x, side="right") - 1
        values.append(line.value[at])
        assert line.value[at] == pytest.approx((mine > x).mean())
    assert values[0] > values[1] > values[2]


@pytest.mark.parametrize("model", MODELS)
def test_a_curve_over_steps_at_three_points(board: Board, rows: Rows, model: str) -> None:
    (figure,) = (one for one in STUDY.figures(board) if one.name == "2")
    (panel,) = (one for one in sweeps(figure) if one.attack == "bim")
    (line,) = (one for one in panel.lines if one.model == model)
    for steps in (1, 10, 100):
        mine = rows(f"bim@realsafe-strength(steps={steps})", model, f"linf:{EPS}")
        left = np.mean([r["correct"] == "true" and r["success"] == "false" for r in mine])
        assert line.value[line.x.tolist().index(steps)] == pytest.approx(left)
    assert line.value[line.x.tolist().index(1)] > line.value[-1]


def test_a_targeted_success_rate_under_both_denominators(board: Board, rows: Rows) -> None:
    mine = rows(SEARCH.format("bim"), "natural", "linf targeted:random")
    reached = [r["success"] == "true" and float(r["linf"]) <= WITHIN for r in mine]
    already = [float(r["linf"]) == 0 and r["prediction"] == r["target"] for r in mine]
    others = [one for one, was in zip(reached, already, strict=True) if not was]
    about = {"norm": "linf", "goal": "targeted:random", "attack": "bim", "model": "natural"}
    found = entry(board, "success", **about)
    assert found["of_all"] == np.mean(reached) and found["of_others"] == np.mean(others)
    assert (found["images"], found["others"]) == (len(mine), len(others))
    # An image that is misclassified when clean and reaches its target counts here, and only here.
    assert any(r["correct"] == "false" and r["success"] == "true" for r in mine)
    assert found["broken"] < found["reached"]


def test_the_band_of_f1(board: Board, rows: Rows) -> None:
    """Tango's interval at the level at which 2,000 resampled curves stay within their errors."""
    tags = {"natural": "certified", "pgd-at": "adversarial training"}
    models = tuple(replace(m, tags={"defense": tags[m.name]}) for m in board.models)
    found = rankings_cross(replace(board, models=models), level=STUDY.level)
    points = np.linspace(0, 5 * EPS, 31)[1:]
    attacks = [SEARCH.format(name) for name in ("fgsm", "bim", "mim")] + ["deepfool@realsafe"]
    signs = []
    for attack in attacks:
        one, other = (sizes(rows(attack, model))[:, None] > points * (1 + 1e-6) for model in MODELS)
        signs.append(one.astype(int) - other.astype(int))
    change = np.stack(signs, 1)  # images, attacks, points
    drawn = np.random.default_rng(0).integers(0, len(change), (2000, len(change)))
    error = change.std(0) / math.sqrt(len(change))
    moved = np.abs(change[drawn].mean(1) - change.mean(0))
    largest = np.divide(moved, error, out=np.zeros_like(moved), where=error > 0).max((1, 2))
    z = max(np.quantile(largest, STUDY.level, method="higher"),
            NormalDist().inv_cdf((1 + STUDY.level) / 2))  # fmt: skip
    ends = []
    for a in range(len(attacks)):
        b, c = ((change[:, a] == sign).sum(0) for sign in (1, -1))
        low, high = np.array([tango(*pair, len(change), z) for pair in zip(b, c, strict=True)]).T
        value = (b - c) / len(change)
        mine = [(value.max(), -value.min()), (low.max(), -high.min()), (high.max(), -low.min())]
        ends.append([min(pair) for pair in mine])
    assert (found.value, found.low, found.high) == pytest.approx(np.max(ends, 0), abs=1e-3)
    assert found.high > 0 and found.low < 0


def tango(b: int, c: int, n: int, z: float) -> tuple[float, float]:
    """The differences whose score statistic is within z (Tango 1998)."""

    def score(difference: float) -> float:
        half = -b - c + (2 * n - b + c) * difference
        root = math.sqrt(max(half**2 + 8 * n * c * difference * (1 - difference), 0))
        second = (root - half) / (4 * n)
        variance = max(n * (2 * second + difference * (1 - difference)), 1e-12)
        return float((b - c - n * difference) / math.sqrt(variance))

    def end(sign: int) -> float:
        return float(brentq(lambda d: score(d) - sign * z, -1 + 1e-9, 1 - 1e-9))

    return end(1), end(-1)

"""A board of made-up distances."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.report.sample import evaluation, figures

from besiege.bench.board import Board, BoardCell, BoardModel
from besiege.metrics.outcomes import COUNTED

MODELS = ("natural", "pgd-at")
BUDGETS = {"white linf": ("linf", 0.1), "white l2": ("l2", 0.5)}


def made(count: int, gain: float, names: tuple[str, ...] = ("white linf", "white l2")) -> Board:
    """Two models, of which the second needs perturbations `gain` times as large."""
    generator = np.random.default_rng(count)
    hard = generator.lognormal(-2.5, 0.5, count)
    own = generator.lognormal(0, 0.2, (2, count))
    smallest = hard * own * np.array([[1.0], [gain]])
    scale = {"white l2": 5.0}
    return board(*(searched(name, smallest * scale.get(name, 1.0)) for name in names))


def board(*cells: BoardCell) -> Board:
    """A board of cells of the same two models."""
    models = tuple(BoardModel(name, f"zoo:{name}", name, "Classifier", None) for name in MODELS)
    return Board("made", models, cells, figures(*[evaluation() for _ in MODELS]))


def searched(name: str, sizes: NDArray[np.float64]) -> BoardCell:
    """A cell of one search that found perturbations of these sizes, ``[models, images]``."""
    norm, eps = BUDGETS[name]
    count = sizes.shape[1]
    whole, each = np.ones(sizes.shape, bool), np.ones((len(sizes), 1, count), bool)
    spent: dict[str, Any] = {n: np.ones(each.shape, np.int32) for n in COUNTED}
    return BoardCell(
        name=name,
        threat=norm,
        norm=norm,
        goal="untargeted",
        access="gradient",
        eps=eps,
        eps_text=str(eps),
        search=True,
        queries=None,
        suite=False,
        seed=0,
        data="digits",
        samples=np.arange(count),
        labels=np.zeros(count, np.int64),
        models=MODELS,
        attacks=("bim",),
        sources=("", ""),
        evaluations=(0, 1),
        correct=whole,
        known=whole,
        robust=~whole,
        covered=each,
        left=~each,
        success=each,
        distance=sizes[:, None],
        aimed=np.full_like(sizes[:, None], np.nan),
        searched=sizes,
        passes=np.zeros(0, np.int64),
        best=np.zeros((*each.shape, 0), np.float32),
        queries_used=spent.pop("queries"),
        **spent,
    )


def with_sizes(cell: BoardCell, sizes: NDArray[np.float64]) -> BoardCell:
    """The cell with other sizes."""
    return replace(cell, distance=sizes[:, None])

"""Boards and matrices with known answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.report.sample import evaluation, figures

from besiege.bench.board import Board, BoardCell, BoardModel
from besiege.metrics.outcomes import COUNTED
from besiege.studies.su.transfer import Crossed

FAMILY = {"v1": "VGG", "v2": "VGG", "d1": "DenseNet", "d2": "DenseNet", "m1": "mobile"}
MODELS = tuple(FAMILY)


def cell(
    name: str,
    sizes: NDArray[np.float64],
    correct: NDArray[np.bool_] | None = None,
    success: NDArray[np.bool_] | None = None,
    models: tuple[str, ...] = MODELS,
    sources: tuple[str, ...] | None = None,
) -> BoardCell:
    """A cell of one attack: a search of these sizes, or the successes within a budget."""
    right = np.ones(sizes.shape, bool) if correct is None else correct
    won = (np.isfinite(sizes) if success is None else success) & right
    whole = np.ones(sizes.shape, bool)
    spent: dict[str, Any] = {n: np.ones((len(sizes), 1, sizes.shape[1]), np.int32) for n in COUNTED}
    return BoardCell(
        name=name,
        threat="linf",
        norm="linf",
        goal="untargeted",
        access="gradient",
        eps=0.3,
        eps_text="0.3",
        search=success is None,
        queries=None,
        suite=False,
        seed=0,
        data="made",
        samples=np.arange(sizes.shape[1]),
        labels=np.zeros(sizes.shape[1], np.int64),
        models=models,
        attacks=("bim",),
        sources=("",) * len(models) if sources is None else sources,
        evaluations=tuple(range(len(models))),
        correct=right,
        known=whole,
        robust=right & ~won,
        covered=whole[:, None],
        left=(right & ~won)[:, None],
        success=won[:, None],
        distance=np.where(right, sizes, 0.0)[:, None],
        aimed=np.full_like(sizes[:, None], np.nan),
        searched=sizes,
        passes=np.zeros(0, np.int64),
        best=np.zeros((len(sizes), 1, sizes.shape[1], 0), np.float32),
        queries_used=spent.pop("queries"),
        **spent,
    )


def board(*cells: BoardCell, family: Mapping[str, str] = FAMILY) -> Board:
    names = cells[0].models
    models = tuple(
        BoardModel(name, name, name, "Classifier", None, {"family": family[name]}) for name in names
    )
    return Board("made", models, cells, figures(*[evaluation() for _ in names]))


def spread(
    middles: list[float], images: int = 300, noise: float = 0.2, seed: int = 0
) -> NDArray[np.float64]:
    """Distortions around a median for each model, hard or easy images for all of them."""
    generator = np.random.default_rng(seed)
    shared, own = generator.normal(size=images), generator.normal(size=(len(middles), images))
    return np.asarray(np.array(middles)[:, None] * np.exp(noise * (0.7 * shared + 0.7 * own)))


def answered(errors: list[float], images: int = 300, seed: int = 1) -> NDArray[np.bool_]:
    """Which images are classified correctly."""
    generator = np.random.default_rng(seed)
    return generator.random((len(errors), images)) >= np.array(errors)[:, None]


def matrix(rates: NDArray[np.float64], images: int = 300, seed: int = 2) -> Crossed:
    """A matrix with these rates; every image of a source is a matter of chance."""
    n = len(rates)
    generator = np.random.default_rng(seed)
    hit = generator.random((n, n, images)) < rates[:, :, None]
    hit[np.arange(n), np.arange(n)] = True
    right = np.ones((n, n, images), bool)
    return Crossed(MODELS[:n], right[0], hit, right)


def even(rate: float, n: int = 5) -> NDArray[np.float64]:
    return np.full((n, n), rate)

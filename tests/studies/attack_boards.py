"""Boards of made-up verdicts of several attacks at a fixed budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.report.sample import evaluation, figures
from tests.studies.boards import MODELS, searched

from besiege.bench.board import Board, BoardModel
from besiege.metrics.outcomes import COUNTED


def attacked(name: str, left: Mapping[str, Mapping[str, NDArray[np.bool_]]]) -> Board:
    """A board of one cell: by model and attack, which images are classified correctly under it."""
    attacks = tuple(next(iter(left.values())))
    held = np.stack([np.stack([by[attack] for attack in attacks]) for by in left.values()])
    count = held.shape[2]
    cell = searched("white linf", np.ones((len(MODELS), count)))
    spent: dict[str, Any] = {one: np.ones(held.shape, np.int32) for one in COUNTED}
    spent["queries_used"] = spent.pop("queries")
    whole = np.ones((len(left), count), bool)
    cell = replace(
        cell,
        name=name,
        search=False,
        models=tuple(left),
        attacks=attacks,
        sources=("",) * len(left),
        evaluations=tuple(range(len(left))),
        correct=whole,
        known=whole,
        robust=np.asarray(held.all(1)),
        covered=np.ones(held.shape, bool),
        left=held,
        success=~held,
        distance=np.zeros(held.shape),
        searched=np.zeros(whole.shape),
        best=np.zeros((*held.shape, 0), np.float32),
        **spent,
    )
    models = tuple(BoardModel(one, f"zoo:{one}", one, "Classifier", None) for one in left)
    return Board("made", models, (cell,), figures(*[evaluation() for _ in left]))


def first(count: int, of: int = 100) -> NDArray[np.bool_]:
    """The first so many of all images."""
    return np.arange(of) < count

"""Boards of RealSafe with made-up distances: every attack on every model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.report.sample import evaluation, figures

from besiege.bench.board import Board, BoardCell, BoardModel
from besiege.metrics.outcomes import COUNTED

Sizes = NDArray[np.float64]
NAMES = ("natural", "pgd-at", "trades", "jpeg", "pads")
TEXTS = {"natural": "zoo:n", "pgd-at": "zoo:p", "trades": "zoo:t", "jpeg": "zoo:n+jpeg",
         "pads": "zoo:n+resize_pad"}  # fmt: skip
TAGS = {"natural": "none", "pgd-at": "adversarial training", "trades": "adversarial training",
        "jpeg": "transformation", "pads": "randomised"}  # fmt: skip
EPS = {"linf": 0.1, "l2": 0.5}
Given = Mapping[tuple[str, str, str], Mapping[str, Sizes]]
"""Distances of models by knowledge, attack and norm."""


def board(cells: list[BoardCell], data: str = "digits") -> Board:
    models = tuple(
        BoardModel(n, TEXTS[n], n, "Classifier", None, {"defense": TAGS[n]}) for n in NAMES
    )
    some = tuple(replace(cell, data=data) for cell in cells)
    return Board("realsafe", models, some, figures(*[evaluation() for _ in NAMES]))


def cell(
    name: str,
    found: Mapping[str, Mapping[str, Sizes]],
    *,
    norm: str = "linf",
    goal: str = "untargeted",
    access: str = "gradient",
    source: str = "",
    eps: float | None = None,
    first: Mapping[str, Mapping[str, Sizes]] | None = None,
    search: bool = True,
) -> BoardCell:
    """A cell with the distances of each attack and model; with a budget those within it count."""
    models = tuple(n for n in NAMES if any(n in one for one in found.values()))
    count = len(next(iter(next(iter(found.values())).values())))
    sizes = np.stack(
        [[one.get(m, np.full(count, np.nan)) for one in found.values()] for m in models]
    )
    covered = ~np.isnan(sizes)
    correct = ~(np.where(covered, sizes, 1.0) == 0).any(1)
    budget = EPS[norm] if eps is None else eps
    within = np.isfinite(sizes) if search else sizes <= budget
    success = within & covered & correct[:, None]
    left = covered & ~within & correct[:, None]
    distance = sizes if search else np.where(success, sizes, np.nan)
    spent: dict[str, Any] = {n: np.full(sizes.shape, -1, np.int32) for n in COUNTED}
    if first is not None:
        steps = np.stack([[one[m] for one in first.values()] for m in models])
        for column in ("first_step", "first_query"):
            spent[column] = np.where(success, steps, -1).astype(np.int32)
    return BoardCell(
        name=name,
        threat=f"{norm}:{budget}",
        norm=norm,
        goal=goal,
        access=access,
        eps=budget,
        eps_text=str(budget),
        search=search,
        queries=None,
        suite=False,
        seed=0,
        data="digits",
        samples=np.arange(count),
        labels=np.zeros(count, np.int64),
        models=models,
        attacks=tuple(found),
        sources=(source,) * len(models),
        evaluations=tuple(NAMES.index(m) for m in models),
        correct=correct,
        known=covered.all(1),
        robust=left.all(1),
        covered=covered,
        left=left,
        success=success,
        distance=distance,
        aimed=np.where(success, sizes, np.inf) if goal != "untargeted" else sizes * np.nan,
        searched=np.full((len(models), count), np.nan),
        passes=np.zeros(0, np.int64),
        best=np.zeros((*sizes.shape, 0), np.float32),
        queries_used=spent.pop("queries"),
        **spent,
    )


def sizes(count: int, median: float, seed: int = 0, spread: float = 0.5) -> Sizes:
    """Distances of images; the same seed gives the same order of images."""
    return np.asarray(median * np.random.default_rng(seed).lognormal(0, spread, count))

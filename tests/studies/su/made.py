"""Boards and matrices with known answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.report.sample import evaluation, figures

from besiege.bench.board import Across, Board, BoardCell, BoardModel
from besiege.metrics.outcomes import COUNTED
from besiege.studies.su.reading import Sizes
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


def board(
    *cells: BoardCell,
    family: Mapping[str, str] = FAMILY,
    tags: Mapping[str, Mapping[str, str]] | None = None,
) -> Board:
    names = cells[0].models
    told = {"family": family, **(tags or {})}
    models = tuple(
        BoardModel(
            name, name, name, "Classifier", 10 ** (3 + place),
            {tag: words[name] for tag, words in told.items() if name in words},
        )
        for place, name in enumerate(names)
    )  # fmt: skip
    return Board("made", models, cells, figures(*[evaluation() for _ in names]))


def sizes(
    found: NDArray[np.float64],
    correct: NDArray[np.bool_] | None = None,
    models: tuple[str, ...] | None = None,
) -> Sizes:
    """Distances of some models; all images are judged, and classified correctly by default."""
    right = np.ones(found.shape, bool) if correct is None else correct
    names = MODELS[: len(found)] if models is None else models
    whole = np.ones(found.shape, bool)
    return Sizes("linf", "random", names, found, right, whole, np.arange(found.shape[1]))


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


FORMS: dict[str, tuple[str, str, float | None, tuple[str, ...]]] = {
    "linf 0.3, untargeted": (
        "linf", "untargeted", 0.3,
        ("fgsm@su", "bim@su(steps=10)", "bim@su(steps=30)", "bim@su(steps=50)"),
    ),
    "linf 0.2, untargeted": ("linf", "untargeted", 0.2, ("fgsm@su", "bim@su(steps=10)")),
    "linf 0.1, untargeted": ("linf", "untargeted", 0.1, ("fgsm@su", "bim@su(steps=10)")),
    "linf 0.3, random": ("linf", "targeted:random", 0.3, ("fgsm@su", "bim@su(steps=10)")),
    "linf 0.1, random": ("linf", "targeted:random", 0.1, ("fgsm@su",)),
    **{
        f"{name}, {word}": (
            norm, goal, None,
            tuple(
                f"{kind}(steps=100, rounds=9{more})" for more in ("", ", kappa=20", ", kappa=40")
            ),
        )
        for name, norm, kind in (("C&W", "l2", "cw"), ("EAD-L1", "l1", "ead"))
        for word, goal in (("untargeted", "untargeted"), ("random", "targeted:random"))
    },
}  # fmt: skip
"""Cells of the study: norm, goal, eps and attacks."""


def crossed_cell(
    name: str,
    rate: NDArray[np.float64],
    correct: NDArray[np.bool_],
    sizes: NDArray[np.float64],
    seed: int = 0,
) -> BoardCell:
    """A cell whose images all models judged: ``rate`` is ``[sources, targets, attacks]``."""
    norm, goal, eps, attacks = FORMS[name]
    n, images = correct.shape
    generator = np.random.default_rng(seed)
    shape = (n, n, len(attacks), images)
    fooled = generator.random(shape) < rate[..., None]
    rank = np.where(fooled, 1, 7).astype(np.int32) * (goal != "untargeted")
    own = np.arange(n)
    won = fooled[own, own] & correct[:, None]
    distance = np.where(won, np.repeat(sizes[:, None], len(attacks), 1), np.inf)
    made = cell(name, sizes, correct, models=MODELS[:n])
    whole = np.ones((n, len(attacks), images), bool)
    seen = np.broadcast_to(correct, (n, n, images))
    spent: dict[str, Any] = {
        one: np.ones(whole.shape, np.int32) for one in COUNTED if one != "queries"
    }
    return replace(
        made, norm=norm, goal=goal, eps=eps, search=eps is None, attacks=attacks, covered=whole,
        success=won, left=~won & correct[:, None], values=(64,) * n,
        distance=distance if eps is None else np.where(won, distance, np.nan),
        robust=correct & ~won.any(1), queries_used=np.ones(whole.shape, np.int32), **spent,
        best=np.zeros((*whole.shape, 0), np.float32),
        across=Across(np.ones(shape, bool), fooled, rank, seen),
    )  # fmt: skip


def measured_cell(
    name: str, norm: str, found: NDArray[np.float64], correct: NDArray[np.bool_],
    estimate: NDArray[np.float64] | None = None, goal: str = "targeted:random",
) -> BoardCell:  # fmt: skip
    """A cell of distances, with CLEVER scores or without."""
    made = cell(name, found, correct, models=MODELS[: len(found)])
    scores = np.full(found.shape, np.nan) if estimate is None else estimate
    values = (64,) * len(found)
    fewer = np.repeat(scores[..., None] * 1.1, 5, 2)
    return replace(
        made, norm=norm, goal=goal, eps=None, values=values, estimate=scores, estimates=fewer
    )

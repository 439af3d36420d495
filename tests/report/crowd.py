"""A synthetic board of many models with long names, for the site: no records are needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tests.report.sample import MODEL, attack, curve, evaluation, figures, item, rate, threat

from besiege.bench.board import Board, BoardCell, BoardModel
from besiege.core.errors import Finding
from besiege.metrics.attack_values import AttackSizes, Descent, Distances, Sizes
from besiege.metrics.values import EvaluationFigures

ATTACKS = (
    "fgsm",
    "bim(steps=100, alpha=0.25)",
    "mim",
    "each_target(pgd(loss=margin, restarts=5), count=9)",
    "apgd(loss=dlr)",
)
KINDS = (
    ("linf:8/255", "linf", "untargeted", "gradient", 8 / 255, "8/255", False),
    ("l2", "l2", "untargeted", "gradient", 0.5, "0.5", True),
    ("linf:8/255 targeted:random", "linf", "targeted:random", "gradient", 8 / 255, "8/255", False),
    ("linf:8/255 score", "linf", "untargeted", "score", 8 / 255, "8/255", False),
)


def names(count: int) -> list[str]:
    """Names of forty letters that differ at their ends."""
    return [f"defense_{n:02d}_of_a_paper_with_a_long_title_{n:02d}"[:40] for n in range(count)]


def crowd(
    models: int = 16, cells: int = 4, samples: int = 200, transfer: bool = True, seed: int = 0
) -> Board:
    """A board of `models` models and `cells` cells, every fourth of which is a search."""
    random = np.random.default_rng(seed)
    called = names(models)
    strength = np.sort(random.uniform(0.2, 3.0, models))
    about = tuple(
        BoardModel(name, f"zoo:{name}", f"{n:064d}", "Classifier", 38_282, {"defense": "training"})
        for n, name in enumerate(called)
    )
    made: list[BoardCell] = []
    found: list[EvaluationFigures] = []
    for place in range(cells):
        kind = KINDS[place % len(KINDS)]
        cell = _cell(place, kind, called, strength, samples, random, transfer and place == 3)
        made.append(replace(cell, evaluations=tuple(range(len(found), len(found) + models))))
        found += [_figures(made[-1], m) for m in range(models)]
    return Board("crowd", about, tuple(made), figures(*found))


def _cell(
    place: int,
    kind: tuple[Any, ...],
    called: list[str],
    strength: np.ndarray[Any, Any],
    samples: int,
    random: np.random.Generator,
    transfer: bool,
) -> BoardCell:
    text, norm, goal, access, eps, eps_text, search = kind
    shape = (len(called), len(ATTACKS), samples)
    correct = random.random((len(called), samples)) < 0.93
    sizes = eps * strength[:, None, None] * random.gamma(2.0, 0.6, shape)
    broken = correct[:, None] & ((sizes < eps) | search)
    distance = np.where(correct[:, None], sizes, 0.0) if search else np.where(broken, sizes, np.nan)
    covered = np.ones(shape, bool)
    left = correct[:, None] & ~broken
    steps = np.where(broken, random.integers(0, 40, shape), -1).astype(np.int32)
    spent = np.full(shape, 40, np.int32)
    passes = np.array([1, 2, 5, 10, 20, 50] if search else [], np.int64)
    return BoardCell(
        f"{text}, number {place}",
        text,
        norm,
        goal,
        access,
        eps,
        eps_text,
        search,
        None,
        False,
        0,
        "digits",
        np.arange(samples),
        random.integers(0, 10, samples),
        tuple(called),
        ATTACKS,
        tuple(f"zoo:{called[(m + 1) % len(called)]}" if transfer else "" for m in range(shape[0])),
        (),
        correct,
        np.ones_like(correct),
        left.all(1),
        covered,
        left,
        broken,
        distance,
        np.full_like(distance, np.nan),
        steps,
        steps,
        spent,
        spent,
        spent,
        distance.min(1) if search else np.full_like(distance[:, 0], np.nan),
        passes,
        np.where(correct[:, None, :, None], distance[..., None] * (1 + 4 / passes), 0.0).astype(
            np.float32
        ),
    )


def _figures(cell: BoardCell, m: int) -> EvaluationFigures:
    n = len(cell.samples)
    attacks = [
        attack(
            text,
            0,
            accuracy=rate(int(cell.left[m, a].sum()), n),
            broken=int(cell.success[m, a].sum()),
        )
        for a, text in enumerate(cell.attacks)
    ]
    steps = []
    for a, text in enumerate(cell.attacks):
        first = np.where(cell.success[m, a], cell.first_step[m, a], 99)
        left = [int((cell.correct[m] & (first > x)).sum()) for x in range(41)]
        steps.append(curve(left, list(range(41)), n, attack=text))
    chosen = threat(cell.threat, None if cell.search else cell.eps, cell.eps_text or "")
    seen = f"The second half of the steps lowered accuracy by {m}.5 points."
    warnings = [Finding("W05", seen, "Give it more steps.", "warning")] if m % 3 == 0 else []
    return evaluation(
        name=f"{cell.name} {m}",
        model=replace(MODEL, name=cell.models[m], digest=f"{m:064d}"),
        threat=replace(chosen, goal=cell.goal, access=cell.access, norm=cell.norm),
        clean=rate(int(cell.correct[m].sum()), n),
        robust=rate(int(cell.robust[m].sum()), n),
        attacks=attacks,
        steps_curve=[] if cell.search else steps,
        eps_curve=None,
        distances=_distances(cell, m) if cell.search else None,
        gallery=[item(sample) for sample in range(12)],
        warnings=warnings,
        command=f"besiege run crowd.toml --out {cell.name}",
    )


def _distances(cell: BoardCell, m: int) -> Distances:
    n = len(cell.samples)
    cost = Descent((10, 20, 50, 100), (None, 0.9, 0.6, 0.5), 0.48, 100.0)
    every = Sizes(0.4, 0.4, 0.8, 0.4, 0.9, 0, cost)
    each = [
        AttackSizes(0.4 + a / 10, 0.4, 0.8, 0.4, 0.9, 0, cost, text, 3, 0.9)
        for a, text in enumerate(cell.attacks)
    ]
    return Distances(n, int(cell.success[m].any(0).sum()), every, tuple(each))

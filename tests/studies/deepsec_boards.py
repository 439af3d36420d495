"""Boards of DEEPSEC with made-up verdicts: rows on models themselves and by transfer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.report.sample import evaluation, figures, rate
from tests.studies.attack_boards import attacked, first

from besiege.bench.board import Board, BoardCell, BoardModel
from besiege.metrics.attack_values import AttackUtility, ReplayFigures
from besiege.metrics.defense_values import Auc, Detection, Rejections, Shares
from besiege.metrics.evidence import Origin
from besiege.metrics.rows import Rows
from besiege.metrics.utility import CleanAnswers
from besiege.studies.deepsec.attacks import form

SOURCE = "undefended"
Left = Mapping[str, Mapping[str, int | NDArray[np.bool_]]]
"""How many of the first images, or which, an attack leaves: by model and attack."""
Roles = Mapping[str, str]


def text(row: str, source: str = "") -> str:
    """An attack as a board names it: on the model itself, or made on another one."""
    attack = form("cifar10", row).attack
    return str(Origin(source, attack, "", False)) if source else attack


def board(
    threats: Mapping[str, Left],
    roles: Roles,
    count: int = 400,
    *,
    about: Mapping[tuple[str, str], Mapping[str, Any]] | None = None,
    texts: Mapping[str, str] | None = None,
    tags: Mapping[str, Mapping[str, str]] | None = None,
    clean: Mapping[str, CleanAnswers] | None = None,
    adaptive: bool = True,
) -> Board:
    """A board with a cell for each threat; `about` changes figures by threat and model.

    `adaptive` adds the suite of that name, which breaks what the attacks on a model itself break.
    """
    cells: list[BoardCell] = []
    found: list[Any] = []
    for threat, by in threats.items():
        rows, covered = _rows(by, count)
        (cell,) = attacked(threat, rows).cells
        places = tuple(range(len(found), len(found) + len(rows)))
        found += [evaluation(**(about or {}).get((threat, name), {})) for name in rows]
        norm = threat.split()[0].partition(":")[0]
        cell = replace(cell, threat=threat, norm=norm, data="cifar10", evaluations=places)
        success = cell.success & covered
        cells.append(replace(cell, covered=covered, left=cell.left | ~covered, success=success))
        if adaptive and threat == form("cifar10", "FGSM").threat:
            cells.append(_suite(cells[-1]))
    models = tuple(
        BoardModel(name, (texts or {}).get(name, f"zoo:{name}"), name, "Classifier", None,
                   {"role": role, **(tags or {}).get(name, {})})
        for name, role in roles.items()
    )  # fmt: skip
    return Board("deepsec", models, tuple(cells), figures(*found), clean=clean or {})


def _suite(cell: BoardCell) -> BoardCell:
    """A suite that breaks what the attacks of a cell break that were run on the model itself."""
    own = np.array([not name.startswith("transfer(") for name in cell.attacks])
    robust = ~(cell.success & own[:, None]).any(1)
    return replace(cell, name="adaptive", suite=True, robust=robust)


def _rows(by: Left, count: int) -> tuple[dict[str, dict[str, Any]], NDArray[np.bool_]]:
    names = [*dict.fromkeys(name for row in by.values() for name in row)]
    rows: dict[str, dict[str, Any]] = {}
    covered = np.zeros((len(by), len(names), count), bool)
    for m, (model, mine) in enumerate(by.items()):
        rows[model] = {}
        for a, name in enumerate(names):
            left = mine.get(name, count)
            rows[model][name] = first(left, count) if isinstance(left, int) else left
            covered[m, a] = name in mine
    return rows, covered


def looks(row: str, count: int = 400, **values: float) -> AttackUtility:
    """What the successes of a row look like."""
    usual = {"l0": 0.5, "l2": 1.0, "linf": 0.1, "ass": 0.9, "psd": 50.0, "acac": 0.9}
    mr = rate(count, count)
    return AttackUtility(text(row), False, mr, count, measured=count, **usual | values)  # type: ignore[arg-type]


def shown(row: str, hits: int, count: int, layer: str) -> ReplayFigures:
    """Successes on the undefended model after a layer."""
    name = str(Origin(SOURCE, form("cifar10", row).attack, layer, True))
    still = rate(hits, count)
    return ReplayFigures(name, SOURCE, form("cifar10", row).attack, layer, True, still,
                         rate(count - hits, count), None, None)  # fmt: skip


def layered(row: str, layer: str) -> str:
    return str(Origin(SOURCE, form("cifar10", row).attack, layer, True))


def detections(caught: Mapping[str, tuple[int, int]]) -> Rejections:
    """Rejected errors by attack text, of so many."""
    whole = rate(380, 400)
    clean = Shares("", whole, rate(0, 400), rate(20, 400), whole)
    return Rejections(
        0.05,
        clean,
        (),
        None,
        tuple(
            Detection(name, name.startswith("transfer("), rate(hits, count), Auc(0.4, 0.3, 0.45, 9))
            for name, (hits, count) in caught.items()
        ),
    )


def answers_of(correct: NDArray[np.bool_], certainty: float) -> CleanAnswers:
    """Clean answers of so certain a model with ten classes; wrong ones are class 1."""
    count = len(correct)
    logits = np.zeros((count, 10), np.float32)
    logits[np.arange(count), np.where(correct, 0, 1)] = np.log(9 * certainty / (1 - certainty))
    rows = {"sample": np.arange(count), "label": np.zeros(count, np.int64), "correct": correct}
    return CleanAnswers(Rows(rows), logits)

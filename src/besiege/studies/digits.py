"""The study ``digits``: adversarial training of a small model, in a minute."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from besiege.bench.board import Board
from besiege.bench.display import Curves, Figure, Grid
from besiege.metrics.bands import accuracy_bands
from besiege.metrics.crossings import SMALLEST
from besiege.studies.effects import advantage, least_advantage
from besiege.studies.study import STUDIES, Claim, Study, Table

BUDGETS = tuple(np.linspace(0.01, 0.3, 30).tolist())
_ADVERSARIAL, _NATURAL = "pgd-at", "natural"
_CAVEAT = "Two small models of 8x8 images: other models and data may differ."


def _accuracies(board: Board) -> Grid:
    """Accuracy of the models at three budgets."""
    cell, shown = board.cell("white linf"), (0.05, 0.1, 0.2)
    found = accuracy_bands(cell.smallest, shown, cell.known)
    rows = tuple(
        (model, *(f"{100 * value:.1f} %" for value in values))
        for model, values in zip(cell.models, found.value, strict=True)
    )
    return Grid("accuracy at linf budgets", ("model", *map(str, shown)), rows)


def _figures(board: Board) -> Sequence[Figure]:
    cell = board.cell("white linf")
    found = accuracy_bands(cell.smallest, (0.0, *BUDGETS), cell.known)
    drawn = Curves("accuracy against the budget", "linf budget", cell.models, found)
    return (drawn.figure(),)


STUDIES.add(
    "digits",
    Study(
        "digits",
        "Adversarial training on 8x8 digits, white-box",
        "Madry et al. 2018; Dong et al. 2020 for the order of models",
        Path(__file__).with_suffix(".toml"),
        (
            Claim(
                "D1",
                "Adversarial training withstands more than natural training at linf 0.1.",
                partial(advantage, cell="white linf", eps=0.1, better=_ADVERSARIAL, worse=_NATURAL),
                caveat=_CAVEAT,
            ),
            Claim(
                "D2",
                "Training against linf also helps at l2 0.5.",
                partial(advantage, cell="white l2", eps=0.5, better=_ADVERSARIAL, worse=_NATURAL),
                caveat=_CAVEAT,
            ),
            Claim(
                "D3",
                "The order does not change with the linf budget, from 0.01 to 0.3.",
                partial(
                    least_advantage,
                    cell="white linf",
                    budgets=BUDGETS,
                    better=_ADVERSARIAL,
                    worse=_NATURAL,
                ),
                smallest=0.0,
                denied=-SMALLEST,
                caveat=_CAVEAT,
            ),
        ),
        (Table("accuracies", _accuracies),),
        _figures,
    ),
)

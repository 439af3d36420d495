"""Claims about AutoAttack's parts, each run on all images: best ones, failures, Square, targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from besiege.bench.board import Board
from besiege.core.errors import UnknownNameError
from besiege.metrics.paired import LEVEL, Difference, paired_interval
from besiege.studies.answers import Measured
from besiege.studies.autoattack.attacks_compared import attack_place, gain, left_rate
from besiege.studies.effects import place_of


class Best(NamedTuple):
    """The attack that leaves least of a model, and what it leaves; equal ones are all there."""

    attacks: tuple[str, ...]
    accuracy: float


def best_single(board: Board, cell: str, model: str, attacks: Sequence[str]) -> Best:
    """The best of several attacks on a model, each run on all images."""
    found = board.cell(cell)
    _must_be_alone(board, cell)
    left = {attack: left_rate(found, model, attack).value for attack in attacks}
    least = min(left.values())
    return Best(tuple(attack for attack, value in left.items() if value == least), least)


def worst_failure(
    board: Board, cell: str, attack: str, attacks: Sequence[str], *, level: float = LEVEL
) -> Measured:
    """How far an attack falls behind the best single one, on the model where that is worst.

    Tango's intervals of the level ``1 - (1 - level) / m`` for m models. Models without all of the
    attacks are left out.
    """
    found = board.cell(cell)
    _must_be_alone(board, cell)
    ran = [
        model
        for row, model in enumerate(found.models)
        if all(found.covered[row, attack_place(found, one)].any() for one in {attack, *attacks})
    ]
    if not ran:
        raise UnknownNameError(f"no model of '{cell}' was attacked by all of {', '.join(attacks)}")
    each = 1 - (1 - level) / len(ran)
    gaps = []
    for model in ran:
        best = best_single(board, cell, model, attacks).attacks[0]
        gaps.append(gain(board, cell, model, attack, best, level=each))
    worst = int(np.argmax([gap.value for gap in gaps]))
    return Measured(
        gaps[worst].value,
        max(gap.low for gap in gaps),
        max(gap.high for gap in gaps),
        min(gap.count for gap in gaps),
        level,
        caveat=f"The worst of {len(ran)} models is {ran[worst]}.",
    )


def beyond(
    board: Board, cell: str, model: str, attack: str, others: Sequence[str], *, level: float = LEVEL
) -> Measured:
    """How much lower one attack gets than all others together, image by image.

    Square below all white-box attacks together is a sign that gradients are masked.
    """
    found = board.cell(cell)
    _must_be_alone(board, cell)
    row, places = place_of(found, model), [attack_place(found, one) for one in others]
    mine = attack_place(found, attack)
    both = found.covered[row, [mine, *places]].all(axis=0)
    if not np.any(both):
        raise UnknownNameError(f"no image of '{model}' was judged under all of these attacks yet")
    together = np.asarray(found.left[row, places].all(axis=0))
    change = Difference.of(together[both], found.left[row, mine][both])
    interval = paired_interval(change.only_first, change.only_second, change.count, level)
    return Measured(change.value, *interval, change.count, level)


def _must_be_alone(board: Board, cell: str) -> None:
    """Refuse the cell of a suite, whose attacks ran on what others left."""
    if board.cell(cell).suite:
        raise UnknownNameError(
            f"'{cell}' is a suite, whose attacks ran on what others left: list them as attacks"
        )

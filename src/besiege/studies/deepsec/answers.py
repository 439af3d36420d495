"""Effects that DEEPSEC's remarks 1 and 7 claim: iterative attacks succeed, and what transfers.

No mean over attacks is formed. Where a remark is about several attacks, or pairs of them, the one
where the effect is least decides, with intervals that hold for all of them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from besiege.bench.board import Board, BoardCell
from besiege.core.errors import UnknownNameError
from besiege.core.threat import Threat
from besiege.metrics.evidence import Origin
from besiege.metrics.intervals import clopper_pearson
from besiege.metrics.paired import LEVEL, Difference, paired_interval
from besiege.metrics.rows import places
from besiege.studies.answers import Measured
from besiege.studies.deepsec.attacks import SAME_BUT_GOAL, DataName, Form, form, forms
from besiege.studies.effects import place_of

ITERATIVE = ("BIM", "PGD", "U-MI-FGSM", "ILLC", "T-MI-FGSM")
"""The iterative attacks within an linf budget, which remark 1 is about."""
LINF_AND_L2 = tuple((name, "DF") for name in ("FGSM", "BIM", "PGD", "U-MI-FGSM"))
"""Untargeted attacks in linf, and the one in l2."""


class Wins(NamedTuple):
    """On which images an attack succeeds, of those that are classified correctly when clean."""

    samples: NDArray[np.int64]
    success: NDArray[np.bool_]


def wins(board: Board, model: str, row: Form, source: str = "") -> Wins:
    """The successes of a row of the tables on a model.

    Parameters
    ----------
    board : Board
        The results.
    model : str
        The model that judges the images.
    row : Form
        The attack and its threat.
    source : str
        The model they were made on and replayed from; by default `model` itself. Images on which
        the attack failed there were not replayed, and are no successes: every rate is of all images
        that both classify correctly.
    """
    cell = _cell(board, row)
    place = place_of(cell, model)
    text = row.attack
    right = cell.known[place] & cell.correct[place]
    if source:
        origin = place_of(cell, source)
        right &= cell.known[origin] & cell.correct[origin]
        text = str(Origin(source, row.attack, "", False))
    if text not in cell.attacks or not cell.covered[place, cell.attacks.index(text)].any():
        raise UnknownNameError(f"{row.name} ('{text}', {row.threat}) was not run on '{model}'")
    return Wins(cell.samples[right], cell.success[place, cell.attacks.index(text)][right])


def _cell(board: Board, row: Form) -> BoardCell:
    """The cell with the threat of a row."""
    wanted = replace(Threat.parse(row.threat), written=None)
    for cell in board.cells:
        if replace(Threat.parse(cell.threat), written=None) == wanted:
            return cell
    raise UnknownNameError(f"nothing was run against '{row.threat}', as {row.name} is")


def least_rate(
    board: Board,
    *,
    model: str,
    data: DataName,
    names: Sequence[str] = ITERATIVE,
    level: float = LEVEL,
) -> Measured:
    """Remark 1: the smallest MR of the iterative attacks, with an interval that holds for all.

    Exact intervals of the level ``1 - (1 - level) / m`` for m attacks: the smallest of their ends
    bound the smallest rate.
    """
    found = [wins(board, model, form(data, name)).success for name in names]
    if not all(len(each) for each in found):
        raise UnknownNameError(f"'{model}' classifies no image correctly")
    each = 1 - (1 - level) / len(found)
    ends = [clopper_pearson(int(one.sum()), len(one), each) for one in found]
    rates = [float(one.mean()) for one in found]
    least = names[int(np.argmin(rates))]
    return Measured(
        min(rates),
        min(low for low, _ in ends),
        min(high for _, high in ends),
        min(map(len, found)),
        level,
        caveat=f"The least of {len(names)} attacks is {least}.",
    )


def least_difference(
    board: Board,
    *,
    model: str,
    source: str,
    data: DataName,
    pairs: Sequence[tuple[str, str]],
    level: float = LEVEL,
) -> Measured:
    """How much more the first attack of each pair transfers than the second, where it is least.

    Both are replayed from one model on another, and paired image by image. Tango's intervals of
    the level ``1 - (1 - level) / m`` for m pairs.
    """
    each = 1 - (1 - level) / len(pairs)
    found = [(pair, _change(board, model, source, data, pair)) for pair in pairs]
    ends = [paired_interval(one.only_first, one.only_second, one.count, each) for _, one in found]
    least, change = min(found, key=lambda one: one[1].value)
    return Measured(
        change.value,
        min(low for low, _ in ends),
        min(high for _, high in ends),
        min(one.count for _, one in found),
        level,
        caveat=f"The least of {len(pairs)} differences is that of {least[0]} and {least[1]}.",
    )


def _change(
    board: Board, model: str, source: str, data: DataName, pair: tuple[str, str]
) -> Difference:
    first, second = (wins(board, model, form(data, name), source) for name in pair)
    where = places(second.samples, first.samples)
    both = where >= 0
    if not both.any():
        raise UnknownNameError(f"no image was judged for both {pair[0]} and {pair[1]}")
    return Difference.of(first.success[both], second.success[where[both]])


def untargeted_transfers_more(
    board: Board, *, model: str, source: str, data: DataName, level: float = LEVEL
) -> Measured:
    """Remark 7: untargeted attacks transfer more than the same ones with a target."""
    return least_difference(
        board, model=model, source=source, data=data, pairs=SAME_BUT_GOAL, level=level
    )


def linf_transfers_more(
    board: Board, *, model: str, source: str, data: DataName, level: float = LEVEL
) -> Measured:
    """Remark 7: untargeted attacks in linf transfer more than that in l2."""
    return least_difference(
        board, model=model, source=source, data=data, pairs=LINF_AND_L2, level=level
    )


def absent(board: Board, model: str, data: DataName, names: Iterable[str] = ()) -> list[str]:
    """The rows of the tables that were not run on a model, by name."""
    lacking = []
    for name in names or forms(data):
        try:
            wins(board, model, form(data, name))
        except UnknownNameError:
            lacking.append(name)
    return lacking

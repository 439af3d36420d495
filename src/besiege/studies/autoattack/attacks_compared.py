"""How much more one attack breaks than another, on the same images of one model."""

from __future__ import annotations

from besiege.bench.board import Board, BoardCell
from besiege.core.errors import UnknownNameError, near
from besiege.metrics.intervals import Rate
from besiege.metrics.paired import LEVEL, Difference, paired_interval
from besiege.studies.answers import Measured
from besiege.studies.effects import place_of


def attack_place(cell: BoardCell, attack: str) -> int:
    """The place of an attack in a cell; an error with near matches, which means "not run"."""
    if attack not in cell.attacks:
        raise UnknownNameError(
            f"'{attack}' was not run under '{cell.name}': {near(attack, cell.attacks)}"
        )
    return cell.attacks.index(attack)


def left_rate(cell: BoardCell, model: str, attack: str) -> Rate:
    """The share of images that are classified correctly under one attack, with its interval."""
    row, place = place_of(cell, model), attack_place(cell, attack)
    there = cell.covered[row, place]
    if not there.any():
        raise UnknownNameError(f"'{attack}' was judged on no image of '{model}' yet")
    return Rate.of(int(cell.left[row, place][there].sum()), int(there.sum()))


def gain(
    board: Board, cell: str, model: str, over: str, attack: str, *, level: float = LEVEL
) -> Measured:
    """How much lower the accuracy is under an attack than under another, `over`.

    On the images that both were judged on, with Tango's score interval.
    """
    found = board.cell(cell)
    row = place_of(found, model)
    first, second = attack_place(found, over), attack_place(found, attack)
    both = found.covered[row, first] & found.covered[row, second]
    if not both.any():
        raise UnknownNameError(f"no image of '{model}' was judged under both attacks yet")
    change = Difference.of(found.left[row, first][both], found.left[row, second][both])
    interval = paired_interval(change.only_first, change.only_second, change.count, level)
    return Measured(change.value, *interval, change.count, level)

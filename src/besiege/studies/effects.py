"""Effects that claims are about, measured on a board."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from besiege.bench.board import Board, BoardCell
from besiege.core.errors import UnknownNameError, near
from besiege.metrics.crossings import SMALLEST, crossing
from besiege.metrics.paired import LEVEL, Difference, paired_interval
from besiege.studies.answers import Measured


def advantage(
    board: Board,
    cell: str,
    better: str,
    worse: str,
    eps: float | None = None,
    *,
    level: float = LEVEL,
) -> Measured:
    """How much more of the images one model withstands than another, on the same images.

    Parameters
    ----------
    board : Board
        The results.
    cell : str
        The name of its cell.
    better, worse : str
        The models; the claim says that the first is the better one.
    eps : float, optional
        The budget, of a cell that searches the smallest perturbations.
    level : float
        The level of the interval (Tango's score interval).
    """
    found = board.cell(cell)
    one, other = place_of(found, better), place_of(found, worse)
    both, held = found.known[one] & found.known[other], found.withstood(eps)
    _must_have_images(both, found)
    change = Difference.of(held[one][both], held[other][both])
    interval = paired_interval(change.only_first, change.only_second, change.count, level)
    return Measured(
        change.value, *interval, change.count, level, caveat=_of_all(found, change.count)
    )


def least_advantage(
    board: Board,
    cell: str,
    better: str,
    worse: str,
    budgets: Sequence[float],
    *,
    level: float = LEVEL,
) -> Measured:
    """How much more one model withstands than another at the budget where it is least.

    With the simultaneous band of the difference at all budgets, so that the interval holds wherever
    that budget is. For claims that the order does not change: it is never far below 0.
    """
    found = board.cell(cell)
    one, other = place_of(found, better), place_of(found, worse)
    both = found.known[one] & found.known[other]
    _must_have_images(both, found)
    curves = crossing(found.smallest[one][both], found.smallest[other][both], budgets, level=level)
    where = ", ".join(f"{change.at:.3g}" for change in curves.changes)
    notes = (f"The order changes near {where}." if where else "", _of_all(found, curves.count))
    return Measured(
        float(curves.value.min()),
        float(curves.low.min()),
        float(curves.high.min()),
        curves.count,
        level,
        # Below, images would rather show the change than rule it out.
        curves.needed if curves.value.min() > -SMALLEST else None,
        caveat=" ".join(filter(None, notes)),
    )


def place_of(cell: BoardCell, model: str) -> int:
    """The place of a model in a cell."""
    if model not in cell.models:
        raise UnknownNameError(
            f"the model '{model}' was not evaluated under '{cell.name}': {near(model, cell.models)}"
        )
    return cell.models.index(model)


def _must_have_images(both: np.ndarray, cell: BoardCell) -> None:
    if not both.any():
        raise UnknownNameError(f"no image was judged for both models under '{cell.name}' yet")


def _of_all(cell: BoardCell, count: int) -> str:
    total = cell.known.shape[1]
    return f"Only {count:,} of {total:,} images were judged for both." if count < total else ""

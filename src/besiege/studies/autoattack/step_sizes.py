"""Tables 9 to 14: PGD with three step sizes, with and without momentum, against APGD.

On plain models the largest step is the worst; on masked ones it is the best. This inversion is a
sign of masking by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from besiege.bench.board import Board
from besiege.bench.display import Grid
from besiege.core.errors import UnknownNameError
from besiege.metrics.intervals import Rate
from besiege.metrics.paired import LEVEL
from besiege.studies.answers import Measured
from besiege.studies.autoattack.attacks_compared import gain, left_rate

CELL = "step sizes"
STEPS = ("0.1", "0.25", "2.0")
"""Sizes of steps, as shares of the budget."""
LOSSES = ("cross_entropy", "margin", "dlr")
"""The losses CE, CW and DLR."""
CAVEAT = (
    "Momentum here is that of gradients (Dong et al. 2018); theirs is that of points, as in APGD."
)


def pgd(loss: str, step: str, momentum: bool = False) -> str:
    """PGD with 100 equal steps and 5 restarts.

    Examples
    --------
    >>> pgd("dlr", "0.25")
    'pgd(steps=100, loss=dlr, schedule=constant(step=0.25), restarts=5)'
    """
    direction = "direction=chain(momentum(decay=0.75), steepest), " if momentum else ""
    named = "" if loss == "cross_entropy" else f"loss={loss}, "
    return f"pgd(steps=100, {named}{direction}schedule=constant(step={step}), restarts=5)"


def apgd(loss: str) -> str:
    """APGD with 100 steps and 5 restarts."""
    named = "" if loss == "cross_entropy" else f"loss={loss}, "
    return f"apgd({named}restarts=5)"


def attacks(loss: str) -> tuple[str, ...]:
    """The seven attacks of a loss: PGD, PGD with momentum, each with three steps, and APGD."""
    plain, moved = ([pgd(loss, step, way) for step in STEPS] for way in (False, True))
    return (*plain, *moved, apgd(loss))


@dataclass(frozen=True)
class Compared:
    """The seven attacks of one loss on one model.

    Attributes
    ----------
    left : tuple of Rate
        Accuracy under each, in the order of `attacks`.
    best : tuple of str
        Those with the lowest accuracy; equal ones are all there.
    inverted : Measured
        How much more PGD with the largest step breaks than with the better of the others: positive
        is a sign of masking.
    """

    left: tuple[Rate, ...]
    best: tuple[str, ...]
    inverted: Measured

    @property
    def sign(self) -> str:
        """What the step sizes say about the model."""
        if self.inverted.low > 0:
            return "masked: the largest step is best"
        return "not masked" if self.inverted.high <= 0 else "cannot tell"


def compared(
    board: Board, model: str, loss: str, cell: str = CELL, *, level: float = LEVEL
) -> Compared:
    """The seven attacks of a loss on one model."""
    found = board.cell(cell)
    names = attacks(loss)
    left = tuple(left_rate(found, model, one) for one in names)
    least = min(rate.value for rate in left)
    best = tuple(n for n, rate in zip(names, left, strict=True) if rate.value == least)
    return Compared(left, best, inversion(board, model=model, loss=loss, cell=cell, level=level))


def inversion(
    board: Board, *, model: str, loss: str, cell: str = CELL, level: float = LEVEL
) -> Measured:
    """How much more PGD breaks with the largest step than with the better of the smaller ones.

    The better one is that with the lower accuracy, which makes the claim harder to meet.
    """
    found = board.cell(cell)
    *small, large = (pgd(loss, step) for step in STEPS)
    other = min(small, key=lambda one: left_rate(found, model, one).value)
    return gain(board, cell, model, other, large, level=level)


def grid(board: Board, cell: str = CELL) -> Grid:
    """The tables: a row for each model and loss; those without all attacks are left out."""
    lines = []
    for model in board.cell(cell).models:
        for loss in LOSSES:
            try:
                found = compared(board, model, loss, cell)
            except UnknownNameError:
                continue
            shown = (f"{100 * rate.value:.2f}" for rate in found.left)
            lines.append((model, loss, *shown, found.sign))
    if not lines:
        raise UnknownNameError("no model has all seven attacks of a loss")
    steps = [f"eps * {step}" for step in STEPS]
    heads = ("model", "loss", *steps, *(f"momentum, {one}" for one in steps), "APGD", "sign")
    title = "Tables 9 to 14: accuracy under PGD and APGD, 100 steps and 5 restarts"
    return Grid(title, heads, tuple(lines))

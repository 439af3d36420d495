"""Figure 2: logits divided by 1, 10, 100 and 1000, on a net with large logits and on a plain one.

Where logits are large, cross-entropy has no gradient: PGD then breaks little, whatever the model
withstands. Dividing the logits gives it one again, and a margin loss never lost it. On a plain net
dividing only weakens the attack: that it helps is the sign of masking, not that it changes
something.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from besiege.bench.board import Board
from besiege.bench.display import Grid
from besiege.core.errors import UnknownNameError
from besiege.metrics.intervals import Rate
from besiege.metrics.paired import LEVEL
from besiege.metrics.rows import Rows
from besiege.studies.answers import Measured
from besiege.studies.autoattack.attacks_compared import gain, left_rate

CELL = "divided logits"
LOGITS, LARGE, PLAIN = "logits", "large", "plain"
"""The tag of models with large logits and of plain ones, and its values."""
DIVISORS = (1, 10, 100, 1000)
MARGIN = "pgd(loss=margin)"


def ascent(divisor: int, stable: bool = False) -> str:
    """PGD on cross-entropy of divided logits: the usual form, or ours that cancels nothing.

    Examples
    --------
    >>> ascent(10), ascent(1, stable=True)
    ('pgd(loss=cross_entropy(stable=False, divide=10))', 'pgd')
    """
    given = [] if stable else ["stable=False"]
    given += [f"divide={divisor}"] if divisor != 1 else []
    return f"pgd(loss=cross_entropy({', '.join(given)}))" if given else "pgd"


@dataclass(frozen=True)
class Scaling:
    """Accuracy of a model under PGD on divided logits.

    Attributes
    ----------
    usual, stable : mapping
        Accuracy by divisor, of the usual form of cross-entropy and of ours; without those that were
        not run.
    margin : Rate, optional
        Accuracy under PGD with a margin loss, which depends on no scale.
    masked : Measured, optional
        How much more the largest divisor breaks than none.
    """

    usual: Mapping[int, Rate]
    stable: Mapping[int, Rate]
    margin: Rate | None
    masked: Measured | None

    @property
    def sign(self) -> str:
        """What dividing says about the model."""
        if self.masked is None:
            return "not run"
        if self.masked.low > 0:
            return "masked: dividing the logits breaks more"
        if self.masked.high < 0:
            return "not masked: dividing the logits only weakens the attack"
        return "cannot tell"


def scaling(board: Board, model: str, cell: str = CELL, *, level: float = LEVEL) -> Scaling:
    """Figure 2 of one model.

    Parameters
    ----------
    board : Board
        The results.
    model, cell : str
        Names of the board.
    level : float
        The level of the interval of `Scaling.masked`.
    """
    found = board.cell(cell)

    def by_divisor(stable: bool) -> dict[int, Rate]:
        texts = {n: ascent(n, stable) for n in DIVISORS}
        return {n: left_rate(found, model, t) for n, t in texts.items() if t in found.attacks}

    usual = by_divisor(stable=False)
    margin = left_rate(found, model, MARGIN) if MARGIN in found.attacks else None
    masked = None
    if {1, DIVISORS[-1]} <= usual.keys():
        masked = masked_by_scale(board, model=model, cell=cell, level=level)
    return Scaling(usual, by_divisor(stable=True), margin, masked)


def masked_by_scale(
    board: Board, *, model: str, cell: str = CELL, level: float = LEVEL
) -> Measured:
    """The claim: PGD on logits divided by 1000 breaks more than on the logits themselves."""
    return gain(board, cell, model, ascent(1), ascent(DIVISORS[-1]), level=level)


def weakened_by_dividing(
    board: Board, *, model: str, cell: str = CELL, level: float = LEVEL
) -> Measured:
    """The claim about a plain net: dividing by 1000 breaks less."""
    return gain(board, cell, model, ascent(DIVISORS[-1]), ascent(1), level=level)


def blind(rows: Rows, attack: str) -> float:
    """The share of images whose gradient was exactly zero, or not finite, in every step.

    Parameters
    ----------
    rows : Rows
        The rows of an evaluation.
    attack : str
        Its attack.

    Examples
    --------
    >>> import numpy as np
    >>> rows = Rows({"attack": np.array(["pgd", "pgd"], object), "vanished": [True, False]})
    >>> blind(rows, "pgd")
    0.5
    """
    mine = rows["attack"] == attack
    if not mine.any():
        raise UnknownNameError(f"'{attack}' was not run")
    return float(rows["vanished"][mine].astype(bool).mean())


def grid(board: Board, cell: str = CELL) -> Grid:
    """The figure as a table: a row for each model and form of the loss."""
    lines = []
    for model in board.cell(cell).models:
        found = scaling(board, model, cell)
        for name, form in (("usual", found.usual), ("stable", found.stable)):
            shown = [f"{100 * form[n].value:.1f} %" if n in form else "-" for n in DIVISORS]
            margin = "-" if found.margin is None else f"{100 * found.margin.value:.1f} %"
            lines.append((model, name, *shown, margin, found.sign))
    heads = ("model", "cross-entropy", *(f"/ {n}" for n in DIVISORS), "margin", "sign")
    return Grid("Figure 2: accuracy under PGD on divided logits", heads, tuple(lines))

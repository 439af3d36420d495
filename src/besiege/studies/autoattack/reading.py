"""Reads a board of AutoAttack: every model with its parts, each run on all points, and suites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from besiege.bench.board import Board, BoardCell, Mask
from besiege.core.errors import UnknownNameError
from besiege.metrics.intervals import Rate, clopper_pearson
from besiege.studies.answers import Measured

PARTS = {"APGD-CE": "apgd", "APGD-T": "apgdt", "FAB-T": "fabt", "Square": "square"}
"""The parts of the suite standard, by the names of the publication."""
UNTARGETED = {"APGD-DLR": "apgd(loss=dlr, restarts=5)", "FAB": "fab(restarts=5)"}
"""The untargeted counterparts of APGD-T and FAB-T, with five restarts."""
AVERAGED = {
    "APGD-CE": "averaged(apgd, 20)",
    "APGD-DLR": "averaged(apgd(loss=dlr), 20)",
    "Square": "averaged(square(steps=1000), 20)",
}
"""The parts of the suite rand."""
REPORTED = "reported"
"""The tag with the accuracy that a model's card reports, in percent."""
FEWEST = 8
"""A claim about many models is not decided by fewer."""


@dataclass(frozen=True, eq=False)
class Attacked:
    """A model under several attacks, each run on all points.

    Attributes
    ----------
    name, threat : str
        The model and the threat, as tables name it.
    cell : BoardCell
        Its cell.
    row : int
        Its place there.
    reported : float, optional
        The accuracy that its card reports; None where it reports nothing.
    """

    name: str
    threat: str
    cell: BoardCell
    row: int
    reported: float | None

    @property
    def title(self) -> str:
        """The model and the threat."""
        return f"{self.name}, {self.threat}"

    def has(self, attack: str) -> bool:
        """Whether an attack was judged on it."""
        there = attack in self.cell.attacks
        return there and bool(self._covered(attack).any())

    def left(self, attack: str) -> Rate:
        """The share of images that are classified correctly under an attack."""
        mine = self._covered(attack)
        return Rate.of(int(self.held(attack)[mine].sum()), int(mine.sum()))

    def held(self, *attacks: str) -> Mask:
        """Which images withstand some attacks together, image by image."""
        places = [self.cell.attacks.index(one) for one in attacks]
        return np.asarray(self.cell.left[self.row, places].all(0))

    def known(self, *attacks: str) -> Mask:
        """Which images were judged under all of some attacks."""
        return np.asarray(np.logical_and.reduce([self._covered(one) for one in attacks]))

    def _covered(self, attack: str) -> Mask:
        return np.asarray(self.cell.covered[self.row, self.cell.attacks.index(attack)])

    @cached_property
    def worst(self) -> Rate:
        """AutoAttack: the share of images that withstand all of its parts, image by image."""
        return self.together(tuple(PARTS.values()))

    def together(self, attacks: Sequence[str]) -> Rate:
        """The share of images that withstand all of some attacks."""
        mine = self.known(*attacks)
        return Rate.of(int(self.held(*attacks)[mine].sum()), int(mine.sum()))


def alone(board: Board, attacks: Mapping[str, str] = PARTS) -> list[Attacked]:
    """The models on which all of some attacks were run, each on all points.

    In suites attacks run on what others left: their cells have no figure of a single attack.
    """
    tags = {model.name: model.tags.get(REPORTED) for model in board.models}
    found = []
    for cell in board.cells:
        if cell.suite or any(cell.sources) or not set(attacks.values()) <= set(cell.attacks):
            continue
        threat = f"{cell.norm} {cell.eps_text or cell.eps}"
        for row, name in enumerate(cell.models):
            text = tags.get(name)
            one = Attacked(name, threat, cell, row, None if text is None else float(text) / 100)
            if all(one.has(attack) for attack in attacks.values()):
                found.append(one)
    if not found:
        wanted = ", ".join(attacks.values())
        raise UnknownNameError(f"no model was attacked by {wanted}, each on all points")
    return found


def reported(board: Board) -> list[Attacked]:
    """Those with a reported figure."""
    found = [one for one in alone(board) if one.reported is not None]
    if not found:
        raise UnknownNameError("no card of these models reports a figure at this budget")
    return found


def share(hits: int, open_: int, count: int, level: float, words: str) -> Measured:
    """The share of models for which something holds, with the models that decide nothing.

    The lower end counts only those where it holds, the upper end also those that are `open_`.
    Fewer than eight models decide nothing.
    """
    low, _ = clopper_pearson(hits, count, level)
    _, high = clopper_pearson(hits + open_, count, level)
    if count < FEWEST:
        low, high = 0.0, 1.0
    said, needed = labelled(count, words), FEWEST if count < FEWEST else None
    return Measured(hits / count, low, high, count, level, needed, said, "models")


def labelled(count: int, words: str = "") -> str:
    """The number of models beside the 49 of the publication."""
    few = f", fewer than {FEWEST}, which decide nothing" if count < FEWEST else ""
    said = f" {words}" if words else ""
    return f"{count} of our models{few}, in place of the publication's 49.{said}"

"""Reads a board of DEEPSEC: the rows of its tables on a model, attacked itself or by transfer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from besiege.bench.board import Board, BoardCell, BoardModel, Mask
from besiege.bench.cell_groups import TRANSFER
from besiege.core.errors import UnknownNameError
from besiege.core.threat import Threat
from besiege.metrics.attack_values import AttackUtility, ReplayFigures
from besiege.metrics.defense_values import Detection
from besiege.metrics.evidence import Origin
from besiege.metrics.intervals import Rate
from besiege.metrics.outcomes import Ids
from besiege.metrics.rows import places
from besiege.studies.deepsec.attacks import DataName, Form, form, forms
from besiege.studies.effects import place_of

UNDEFENDED, DEFENSE, DETECTOR, ENSEMBLE = "undefended", "defense", "detector", "ensemble"
OTHERS = ("second start", "another depth", "another family")
"""Values of the tag ``role``: the model that images are made on, and those that are shown them."""
BLUR, COMPRESSED = "pil_blur", "jpeg"
"""The layers of robustness to blur and to compression."""


class Wins(NamedTuple):
    """On which images an attack succeeds, of those that are classified correctly when clean."""

    samples: NDArray[np.int64]
    success: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Found:
    """A row of the tables on a model: the cell, the model's place there, and the attack's."""

    cell: BoardCell
    row: int
    attack: int

    @property
    def text(self) -> str:
        """The attack as it was run."""
        return self.cell.attacks[self.attack]


def data_of(board: Board) -> DataName:
    """The data of a board."""
    for cell in board.cells:
        if cell.data in get_args(DataName):
            return cast(DataName, cell.data)
    raise UnknownNameError("DEEPSEC's attacks are for MNIST, CIFAR-10 and digits")


def models(board: Board, *roles: str) -> list[str]:
    """The models with one of these roles."""
    return [one.name for one in board.models if one.tags.get("role") in roles]


def must_have(board: Board, role: str) -> list[str]:
    """The models with a role; an error where there is none."""
    if not (found := models(board, role)):
        raise UnknownNameError(f"no model of this run has the role '{role}'")
    return found


def model_of(board: Board, name: str) -> BoardModel:
    """The model of a name."""
    return next(one for one in board.models if one.name == name)


def source_of(board: Board) -> str:
    """The undefended model, which images are replayed from."""
    found = models(board, UNDEFENDED)
    if not found:
        raise UnknownNameError("no model of this run has the role 'undefended'")
    return found[0]


def in_threat(board: Board, threat: str) -> Iterator[BoardCell]:
    """The cells with a threat."""
    wanted = replace(Threat.parse(threat), written=None)
    for cell in board.cells:
        if replace(Threat.parse(cell.threat), written=None) == wanted:
            yield cell


def look(board: Board, model: str, row: Form, source: str = "", through: str = "") -> Found:
    """A row of the tables on a model; an error where it was not run.

    Parameters
    ----------
    board : Board
        The results.
    model : str
        The model that judges the images.
    row : Form
        The attack and its threat.
    source : str
        The model they were made on and replayed from; by default `model` itself.
    through : str
        How the layer begins that they passed since then.
    """
    for cell in in_threat(board, row.threat):
        if model not in cell.models:
            continue
        place = cell.models.index(model)
        for number, text in enumerate(cell.attacks):
            mine = _is(text, row, model, source, through)
            if mine and cell.covered[place, number].any():
                return Found(cell, place, number)
    made = f" of '{source}'" if source else ""
    raise UnknownNameError(
        f"{row.name}{made} ('{row.attack}', {row.threat}) was not run on '{model}'"
    )


def _is(text: str, row: Form, model: str, source: str, through: str) -> bool:
    """Whether a text of a board is this attack: itself, transferred, or through a layer."""
    if not source and not through:
        return row.runs_as(text)
    same = source in ("", model)
    before = str(Origin(source or model, "@", "", same)).partition("@")[0]
    if not text.startswith(before):
        return False
    rest = text[len(before) : -1]
    if not through:
        return row.runs_as(rest)
    # A layer may have commas of its own: everything after the attack belongs to it.
    commas = (i for i in range(len(rest)) if rest.startswith(", ", i))
    return any(row.runs_as(rest[:i]) and rest[i + 2 :].startswith(through) for i in commas)


def wins(board: Board, model: str, row: Form, source: str = "") -> Wins:
    """The successes of a row of the tables on a model.

    Images on which the attack failed on the source were not replayed, and are no successes: every
    rate is of all images that both classify correctly.
    """
    nothing = _nothing_to_show(board, model, row, source) if source else None
    found = nothing or look(board, model, row, source)
    cell, place = found.cell, found.row
    right = cell.known[place] & cell.correct[place]
    if source:
        origin = place_of(cell, source)
        right &= cell.known[origin] & cell.correct[origin]
    elif not cell.known[place].any():
        right = cell.covered[place, found.attack] & cell.correct[place]
    success = np.zeros_like(right) if nothing else cell.success[place, found.attack]
    return Wins(cell.samples[right], success[right])


def _nothing_to_show(board: Board, model: str, row: Form, source: str) -> Found | None:
    """The row on the source, where it broke nothing that a model could have been shown."""
    with suppress(UnknownNameError):
        made = look(board, source, row)
        cell = made.cell
        judged = cell.known[made.row] & cell.correct[made.row]
        tried = cell.covered[made.row, made.attack]
        failed = not cell.success[made.row, made.attack].any() and tried[judged].all()
        if failed and model in cell.models and _is_shown(board, model, source):
            return replace(made, row=cell.models.index(model))
    return None


def _is_shown(board: Board, model: str, source: str) -> bool:
    """Whether a model is shown images of another one at all."""
    before = str(Origin(source, "@", "", False)).partition("@")[0]
    return any(
        text.startswith(before) and cell.covered[cell.models.index(model), number].any()
        for cell in board.cells
        if model in cell.models
        for number, text in enumerate(cell.attacks)
    )


def rate(found: Wins) -> Rate:
    """The share of images on which an attack succeeds."""
    if not len(found.samples):
        raise UnknownNameError("the models classify no image correctly that both were shown")
    return Rate.of(int(found.success.sum()), len(found.success))


def rows_of_tables(board: Board) -> list[Form]:
    """The rows that were run on the undefended model."""
    found, source = [], source_of(board)
    for row in forms(data_of(board)).values():
        try:
            look(board, source, row)
        except UnknownNameError:
            continue
        found.append(row)
    if not found:
        raise UnknownNameError(f"no attack of DEEPSEC was run on '{source}'")
    return found


def utility_of(board: Board, model: str, row: Form) -> AttackUtility:
    """What the successes of a row look like."""
    found = look(board, model, row)
    for one in board.evaluation(found.cell, found.row).attack_utility:
        if one.text == found.text:
            return one
    raise UnknownNameError(f"{row.name} has no utility on '{model}'")


def replayed(
    board: Board, model: str, row: Form, source: str = "", through: str = ""
) -> ReplayFigures:
    """What the replayed images of a row do on a model."""
    found = look(board, model, row, source, through)
    for one in board.evaluation(found.cell, found.row).replays:
        if one.text == found.text:
            return one
    raise UnknownNameError(f"{row.name} was not replayed on '{model}'")


def detected(board: Board, model: str, row: Form, source: str = "") -> Detection:
    """How well a detector finds the images of a row."""
    found = look(board, model, row, source)
    rejection = board.evaluation(found.cell, found.row).rejection
    for one in rejection.detection if rejection is not None else ():
        if one.text == found.text:
            return one
    raise UnknownNameError(f"'{model}' has no detector")


class Held(NamedTuple):
    """Which images withstand, of those that are classified correctly when clean."""

    samples: Ids
    held: Mask


def withstood(board: Board, model: str, *, transfer: bool) -> Held:
    """The images that withstand all attacks within the budget of the first table, one by one.

    Parameters
    ----------
    board : Board
        The results.
    model : str
        The model.
    transfer : bool
        Under the images of the undefended model; otherwise under all attacks on the model itself,
        among them those of the suite ``adaptive``.
    """
    threat = form(data_of(board), "FGSM").threat
    parts: list[Held] = []
    adaptive = False
    for cell in in_threat(board, threat):
        if model not in cell.models or any(cell.sources):
            continue
        place = cell.models.index(model)
        mine = [
            number
            for number, text in enumerate(cell.attacks)
            if text.startswith(f"{TRANSFER}(") == transfer
            and not text.startswith(("replay(", "oblivious("))
            and cell.covered[place, number].any()
        ]
        if not mine:
            continue
        # Replayed images are some samples only: the others withstand them.
        known = cell.known[place] if transfer else cell.covered[place, mine].all(0)
        right = known & cell.correct[place]
        broken: Mask = np.asarray(cell.success[place, mine].any(0))
        if cell.suite and not transfer:
            broken, adaptive = ~cell.robust[place], True
        parts.append(Held(cell.samples[right], ~broken[right]))
    # Other attacks leave much where gradients are hidden: without the suite nothing is adaptive.
    if not parts or not (transfer or adaptive):
        how = (
            "shown images of the undefended model" if transfer else "attacked by the suite adaptive"
        )
        raise UnknownNameError(f"'{model}' was not {how} within {threat}")
    found = together(parts)
    if not len(found.samples):
        raise UnknownNameError(f"'{model}' classifies none of these images correctly")
    return found


def together(parts: Sequence[Held]) -> Held:
    """The images of all parts, and which withstand in each."""
    common = parts[0].samples
    for one in parts[1:]:
        common = np.intersect1d(common, one.samples)
    held = [one.held[places(one.samples, common)] for one in parts]
    return Held(common, np.asarray(np.logical_and.reduce(held)))


def aligned(parts: Sequence[Held]) -> list[Mask]:
    """What several models withstand on the images that all classify correctly."""
    common = parts[0].samples
    for one in parts[1:]:
        common = np.intersect1d(common, one.samples)
    if not len(common):
        raise UnknownNameError("no image is classified correctly by all of these models")
    return [one.held[places(one.samples, common)] for one in parts]

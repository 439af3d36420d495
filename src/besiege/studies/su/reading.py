"""Reads a board of the study: its cells by name, and what each matrix and each distance is of.

All specifications of the study have the same names of cells. What is declared about models stands
in tags: their families, which is deeper, the sources of stripes, the pair of the asymmetry, and
published errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from besiege.bench.board import Board, BoardCell
from besiege.core.errors import UnknownNameError
from besiege.metrics.outcomes import Ids, Numbers
from besiege.studies.su.transfer import TOP, Crossed, must_read

FAMILY, DEPTH, STRIPES, PAIR, ERROR = "family", "depth", "stripes", "asymmetry", "error"
"""The tags."""
UNTARGETED, RANDOM, LEAST = "untargeted", "random", "least likely"
FGSM, IFGSM, CW, EAD, CLEVER = "FGSM", "I-FGSM", "C&W", "EAD-L1", "CLEVER"
_NAMES = {"fgsm": FGSM, "bim": IFGSM, "cw": CW, "ead": EAD, "minimal": IFGSM}
_WRITTEN = re.compile(r"(\w+)(?:@[\w-]+)?(?:\((.*)\))?")
FEW = 20
"""Classes up to which a targeted image counts if the target is predicted, not among five."""


@dataclass(frozen=True)
class Setting:
    """One attack as it was run for a matrix.

    Attributes
    ----------
    attack, goal : str
        The attack by its name in the publication, and its goal.
    eps, steps, kappa
        What tells it from other forms; None where it has no such parameter.
    cell : str
        The name of the cell.
    place : int
        The place of the attack in it.
    """

    attack: str
    goal: str
    eps: float | None
    steps: int | None
    kappa: float | None
    cell: str
    place: int

    @property
    def form(self) -> str:
        """The attack and its parameters, in words.

        Examples
        --------
        >>> Setting("I-FGSM", "untargeted", 0.3, 10, None, "", 0).form
        'I-FGSM, eps 0.3, 10 steps'
        """
        words = [self.attack]
        words += [] if self.eps is None else [f"eps {self.eps:g}"]
        words += [] if self.steps is None or self.attack == FGSM else [f"{self.steps} steps"]
        words += [] if self.kappa is None else [f"kappa {self.kappa:g}"]
        return ", ".join(words)

    @property
    def title(self) -> str:
        """The same with the goal."""
        return f"{self.form}, {self.goal}"


def goal_of(cell: BoardCell) -> str:
    """The goal of a cell as the publication calls it."""
    return {"targeted:random": RANDOM, "targeted:least-likely": LEAST}.get(cell.goal, cell.goal)


def settings_of(board: Board) -> list[Setting]:
    """All attacks whose images were judged by all models."""
    found = []
    for cell in board.cells:
        for place, text in enumerate(cell.attacks if cell.across is not None else ()):
            found.append(_setting(cell, place, text))
    return [one for one in found if one is not None]


def _setting(cell: BoardCell, place: int, text: str) -> Setting | None:
    written = _WRITTEN.fullmatch(text)
    name = _NAMES.get(written[1]) if written else None
    if written is None or name is None:
        return None
    numbers = dict(re.findall(r"(\w+)=([\d.]+)", written[2] or ""))
    first = name in (FGSM, IFGSM)
    return Setting(
        name,
        goal_of(cell),
        cell.eps if first else None,
        int(numbers.get("steps", 50)) if first else None,
        None if first else float(numbers.get("kappa", 0)),
        cell.name,
        place,
    )


def setting(board: Board, attack: str, goal: str, **given: float) -> Setting:
    """The attack of a matrix with these parameters; FGSM and I-FGSM by default the usual ones."""
    usual: dict[str, float] = {}
    if attack in (FGSM, IFGSM):
        usual = {"eps": 0.3} | ({"steps": 10} if attack == IFGSM else {})
    wanted = usual | ({"kappa": 0} if attack in (CW, EAD) else {}) | given
    for one in settings_of(board):
        same = (one.attack, one.goal) == (attack, goal)
        if same and all(np.isclose(getattr(one, k) or 0.0, v) for k, v in wanted.items()):
            return one
    words = ", ".join(f"{name} {value:g}" for name, value in wanted.items())
    raise UnknownNameError(f"{attack} ({words}, {goal}) was not judged by all models")


def crossed_of(board: Board, one: Setting, *, top: int | None = None) -> Crossed:
    """The matrix of an attack: untargeted errors, or targets among the first `top`.

    By default a target counts where it is predicted, of many classes where it is among five.
    """
    cell = board.cell(one.cell)
    found = cell.across
    assert found is not None, "settings are of such cells"
    judged = found.judged[:, :, one.place].all((0, 1))
    if not judged.any():
        raise UnknownNameError(f"no image of '{one.title}' was judged by all models")
    classes = classes_of(board)
    if one.goal == UNTARGETED:
        hit = found.fooled[:, :, one.place]
    else:
        ranks = found.rank[:, :, one.place]
        hit = (ranks > 0) & (ranks <= (usual_top(board) if top is None else top))
    for s, t in np.ndindex(*found.seen.shape[:2]):
        must_read(cell.models[t], found.seen[s, t][judged], classes)
    own = np.arange(len(cell.models))
    seen = found.seen[..., judged]
    return Crossed(cell.models, seen[own, own], hit[..., judged], seen)


def classes_of(board: Board) -> int:
    """The number of classes of the data."""
    return int(board.figures.evaluations[0].model.classes)


def usual_top(board: Board) -> int:
    """Among how many classes a target must be: five, as published; of few classes, the first."""
    return 1 if classes_of(board) <= FEW else TOP


@dataclass(frozen=True, eq=False)
class Sizes:
    """Distances of one kind, of all models, as the publication measures them.

    Attributes
    ----------
    name : str
        What they are, such as ``linf, I-FGSM``.
    goal : str
        The goal.
    models : tuple of str
        The models.
    size : array ``[models, images]``
        The distances, infinite where none was found, and NaN where unknown.
    correct : array of bool
        Which images are classified correctly.
    known : array of bool
        Which images were judged.
    samples : array
        Their ids.
    """

    name: str
    goal: str
    models: tuple[str, ...]
    size: Numbers
    correct: NDArray[np.bool_]
    known: NDArray[np.bool_]
    samples: Ids

    @property
    def among(self) -> NDArray[np.bool_]:
        """The images of each model: those that it classifies correctly."""
        return self.correct & self.known & ~np.isnan(self.size)

    @property
    def control(self) -> Sizes:
        """The same on the images that all models classify correctly."""
        every = self.among.all(0)
        return replace(self, correct=self.correct & every)


LINF, L2, ESTIMATE = "linf of I-FGSM", "l2 of C&W per value", "CLEVER, l2 per value"
MEASURES = (LINF, L2, ESTIMATE)


def sizes_of(board: Board, measure: str, goal: str) -> Sizes:
    """The distances of a measure towards a goal; l2 is divided by the number of pixel values."""
    for cell in board.cells:
        if goal_of(cell) != goal:
            continue
        if measure == ESTIMATE and estimates(cell):
            known = cell.known & ~np.isnan(cell.estimate)
            return _sizes(cell, measure, goal, cell.estimate / _values(cell), known)
        norm = {LINF: "linf", L2: "l2"}.get(measure)
        if cell.search and cell.norm == norm and not estimates(cell):
            each = _values(cell) if measure == L2 else 1.0
            return _sizes(cell, measure, goal, cell.distance[:, 0] / each, cell.covered[:, 0])
    raise UnknownNameError(f"{measure} was not measured for the goal {goal}")


def sizes_under(board: Board, one: Setting) -> Sizes:
    """The distances of one attack of a matrix on its own models, infinite where it failed.

    Those in l2 are divided by the number of pixel values, as of `sizes_of`.
    """
    cell = board.cell(one.cell)
    found, judged = cell.distance[:, one.place], cell.covered[:, one.place]
    # With a budget there is a distance only where the attack succeeded.
    found = np.where(np.isnan(found) & judged, np.inf, found)
    found = found / _values(cell) if cell.norm == "l2" else found
    return _sizes(cell, one.form, one.goal, found, judged)


def measured(board: Board) -> Iterator[Sizes]:
    """All distances of a board."""
    for goal in (UNTARGETED, RANDOM, LEAST):
        for measure in MEASURES:
            with suppress(UnknownNameError):
                yield sizes_of(board, measure, goal)


def estimates(cell: BoardCell) -> bool:
    """Whether a cell has CLEVER scores."""
    return bool(cell.estimate.size and np.isfinite(cell.estimate).any())


def _values(cell: BoardCell) -> Numbers:
    return np.array(cell.values, np.float64)[:, None]


def _sizes(cell: BoardCell, name: str, goal: str, size: Numbers, known: NDArray[np.bool_]) -> Sizes:
    return Sizes(name, goal, cell.models, size, cell.correct, known, cell.samples)


# What the specification says of models.


def tagged(board: Board, tag: str) -> dict[str, str]:
    """The values of a tag, by model."""
    return {one.name: one.tags[tag] for one in board.models if tag in one.tags}


def families(board: Board, models: tuple[str, ...]) -> dict[str, str]:
    """The family of each of some models."""
    found = tagged(board, FAMILY)
    if missing := [name for name in models if name not in found]:
        raise UnknownNameError(f"{', '.join(missing)} has no tag '{FAMILY}'")
    return {name: found[name] for name in models}


def depth_pairs(board: Board, models: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Each model with the next deeper one of its family, the deeper one first."""
    family, depth = tagged(board, FAMILY), tagged(board, DEPTH)
    some = sorted((name for name in models if name in depth), key=lambda name: float(depth[name]))
    pairs = []
    for place, name in enumerate(some):
        for deeper in some[place + 1 :]:
            if family.get(deeper) == family.get(name):
                pairs.append((deeper, name))
                break
    if not pairs:
        raise UnknownNameError(f"no two models of a family have the tag '{DEPTH}'")
    return tuple(pairs)


def published_errors(board: Board, models: tuple[str, ...]) -> Mapping[str, float]:
    """Published error rates of some models."""
    found = {name: float(text) for name, text in tagged(board, ERROR).items()}
    if missing := [name for name in models if name not in found]:
        raise UnknownNameError(f"no error of {', '.join(missing)} is published")
    return found

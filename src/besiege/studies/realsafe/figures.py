"""The figures of RealSafe by their numbers: curves over the budget and over the strength."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np

from besiege.bench.board import Board
from besiege.bench.display import Figure
from besiege.bench.sweeps import Line, Measure, Sweep, lines_of, points_of
from besiege.core.errors import UnknownNameError
from besiege.metrics.distances import quantile
from besiege.metrics.strength import left_after
from besiege.studies.realsafe.reading import (
    DECISIONS,
    ORDER,
    SCORES,
    TARGETED,
    TRANSFER,
    UNTARGETED,
    WHITE,
    WORDS,
    Ends,
    by_steps,
    cells_of,
    distances,
    family,
    progress,
)

Against = Literal["budget", "strength"]
_BOTH: tuple[Against, Against] = ("budget", "strength")
_SHARE, _ROOM = 0.95, 1.1


@dataclass(frozen=True)
class Declared:
    """A figure of the publication: what its panels show."""

    number: int
    knowledge: str
    norm: str
    goal: str
    against: Against
    measure: Measure

    @property
    def title(self) -> str:
        """What it shows, in words."""
        share = "success rate" if self.measure == "success" else "accuracy"
        goal = "" if self.goal == UNTARGETED else ", targeted"
        return f"{share} against {self.against}, {WORDS[self.knowledge]}, {self.norm}{goal}"


def _series(
    first: int, knowledge: tuple[str, ...], norm: str, goals: tuple[str, ...], measure: Measure
) -> Iterator[Declared]:
    """Figures with consecutive numbers: for each knowledge and goal, budget and then strength."""
    found = ((k, g, a) for k in knowledge for g in goals for a in _BOTH)
    for number, (k, goal, against) in enumerate(found, first):
        yield Declared(number, k, norm, goal, against, measure)


def _numbered(main: int, more: int) -> tuple[Declared, ...]:
    """The figures of one data set: eight in the text, 34 in the appendix."""
    three, both = (WHITE, TRANSFER, SCORES), (UNTARGETED, TARGETED)
    return (
        *_series(main, three, "linf", (UNTARGETED,), "accuracy"),
        *_series(main + 6, (DECISIONS,), "l2", (UNTARGETED,), "accuracy"),
        *_series(more, three, "linf", (TARGETED,), "accuracy"),
        *_series(more + 6, three, "linf", (UNTARGETED,), "success"),
        *_series(more + 12, three, "l2", both, "accuracy"),
        *_series(more + 24, (DECISIONS,), "l2", (TARGETED,), "accuracy"),
        *_series(more + 26, (*three, DECISIONS), "l2", (UNTARGETED,), "success"),
    )


CIFAR10, IMAGENET = _numbered(1, 17), _numbered(9, 51)


def figures(board: Board) -> list[Figure]:
    """The figures for the models of a board, with the numbers of the publication."""
    large = any(cell.data.startswith("imagenet") for cell in board.cells)
    found = []
    for one in IMAGENET if large else CIFAR10:
        panels = tuple(_panels(board, one))
        if panels:
            found.append(Figure(str(one.number), one.title, panels, _note(one)))
    return found


def _note(one: Declared) -> str:
    if one.against == "budget":
        how = "An image counts as broken from its smallest perturbation on"
        if one.knowledge == TRANSFER:
            how += (
                ", of the 16 budgets that were crafted on the substitute and judged on each model"
            )
        return f"{how}. The line marks the standard budget."
    ways = {
        WHITE: "Run again for each number of steps: as published, only the last iterate counts.",
        TRANSFER: "Crafted again on the substitute for each number of steps.",
        SCORES: "The query of the first success of one run.",
        DECISIONS: "The best distance after so many passes is beyond the standard budget.",
    }
    return ways[one.knowledge]


def _panels(board: Board, one: Declared) -> Iterator[Sweep]:
    if one.against == "budget":
        yield from _over_budgets(board, one)
        return
    for attack in ORDER[one.knowledge]:
        with suppress(UnknownNameError):
            yield _STRENGTH[one.knowledge](board, one, attack)


def _over_budgets(board: Board, one: Declared) -> Iterator[Sweep]:
    """All attacks on one axis, so that panels compare."""
    found: dict[str, Ends] = {}
    for attack in ORDER[one.knowledge]:
        with suppress(UnknownNameError):
            found[attack] = distances(board, one.knowledge, attack, one.norm, one.goal)
    end = max((_end(board, each) for each in found.values()), default=1.0)
    for attack, each in found.items():
        among = each.known & each.correct if one.measure == "success" else each.known
        lines = tuple(lines_of(each.models, each.ends, among, end, one.measure))
        yield Sweep(each.cell, attack, "budget", one.measure, "size", end, lines)


def _end(board: Board, found: Ends) -> float:
    """Where an axis holds nearly all perturbations, and the standard budget."""
    broken = found.ends[found.known & np.isfinite(found.ends)]
    most = _ROOM * quantile(broken, _SHARE) if len(broken) else 0.0
    return max(most, 1.5 * (board.cells[found.cell].eps or 0.0)) or 1.0


def _first_hits(board: Board, one: Declared, attack: str) -> Sweep:
    found = progress(board, attack, one.norm, one.goal)
    among = found.known & found.correct if one.measure == "success" else found.known
    finite = found.ends[np.isfinite(found.ends)]
    end = float(max(finite.max(initial=1.0), 1.0))
    lines = tuple(lines_of(found.models, found.ends, among, end, one.measure, whole=True))
    return Sweep(found.cell, attack, "strength", one.measure, "queries", end, lines)


def _by_steps(board: Board, one: Declared, attack: str) -> Sweep:
    place, cell, steps, left, known = by_steps(board, one.knowledge, attack, one.norm, one.goal)
    left = np.concatenate((cell.correct[:, None], left), 1)
    x = np.concatenate(([0.0], steps))
    among = known & cell.correct if one.measure == "success" else known
    lines: tuple[Line, ...] = tuple(
        points_of(cell.models, left, x, among, one.measure, joined=True)
    )
    return Sweep(place, attack, "strength", one.measure, "steps", float(x[-1]), lines)


def _descents(board: Board, one: Declared, attack: str) -> Sweep:
    for place, cell in cells_of(board, one.knowledge, one.norm, one.goal):
        for a, text in enumerate(cell.attacks):
            if family(text) == attack and cell.search and cell.eps is not None and len(cell.passes):
                table = cell.best[:, a]
                known = cell.covered[:, a] & ~np.isnan(table).any(-1)
                left = np.concatenate((cell.correct[:, None], left_after(table, cell.eps)), 1)
                x = np.array([0.0, *cell.passes.tolist()])
                among = known & cell.correct if one.measure == "success" else known
                lines = tuple(points_of(cell.models, left, x, among, one.measure))
                end = float(x[-1])
                return Sweep(place, attack, "strength", one.measure, "passes", end, lines)
    raise UnknownNameError(f"'{attack}' was not run")


_STRENGTH: dict[str, Callable[[Board, Declared, str], Sweep]] = {
    WHITE: _by_steps,
    TRANSFER: _by_steps,
    SCORES: _first_hits,
    DECISIONS: _descents,
}

"""Curves of a board: accuracy and success rate against the budget and against strength.

Against the budget they are exact, from the distance of each sample. Strength is the steps or the
queries of an attack with a budget, and the passes of a search: accuracy at the cell's budget, and
the median distance, after so many passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from besiege.bench.board import Board, BoardCell, Mask
from besiege.metrics.attack_values import AttackCurve, AttackSizes
from besiege.metrics.bands import Bands, accuracy_bands, share_bands, success_bands
from besiege.metrics.distances import quantile
from besiege.metrics.optimality import area
from besiege.metrics.outcomes import Numbers
from besiege.metrics.resampling import Resampling
from besiege.metrics.searches import ROUNDING
from besiege.metrics.strength import broken_at, left_after
from besiege.metrics.values import EvaluationFigures

TOGETHER = "all attacks together"
"""The curve of an evaluation's smallest perturbations by any attack."""
SHARE, ROOM = 0.95, 1.1
"""A budget axis ends where all but a few of the samples of every model are broken."""
POINTS = 24
"""Points of the band of a curve, which is drawn with few corners."""

Against = Literal["budget", "strength"]
Measure = Literal["accuracy", "success", "size"]
MEASURES: tuple[Measure, Measure] = ("accuracy", "success")


@dataclass(frozen=True, eq=False)
class Line:
    """The curve of one model: a share of ``count`` samples, or a median size.

    ``low`` and ``high`` are the simultaneous 95 % band at the points ``at``, which covers the whole
    curve. ``joined`` says whether points are joined by lines; otherwise a value holds until the
    next one. ``median`` and ``area`` are those of the distances, up to the end of the axis.
    """

    model: str
    x: Numbers
    value: Numbers
    at: Numbers
    low: Numbers
    high: Numbers
    count: int
    joined: bool = False
    median: float | None = None
    area: float | None = None


@dataclass(frozen=True, eq=False)
class Sweep:
    """The curves of all models under one attack of a cell.

    Attributes
    ----------
    cell : int
        The place of the cell in the board.
    attack : str
        The attack.
    against : str
        ``budget`` or ``strength``.
    measure : str
        ``accuracy`` of all samples, ``success`` rate of the correctly classified ones, or
        ``size``, the median smallest perturbation so far.
    axis : str
        What the horizontal axis counts: ``size``, ``steps``, ``queries`` or ``passes``.
    end : float
        Its end.
    lines : tuple of Line
        The curves.
    """

    cell: int
    attack: str
    against: Against
    measure: Measure
    axis: str
    end: float
    lines: tuple[Line, ...]


def sweeps_of(board: Board) -> Iterator[Sweep]:
    """All curves of a board, cell by cell."""
    for place, cell in enumerate(board.cells):
        found = (
            (_searched(cell, place), _passed(cell, place), _descents(board, cell, place))
            if cell.search
            else (
                _declared(board, place),
                _beside(cell, place),
                _progress(board, cell, place),
            )
        )
        yield from (sweep for some in found for sweep in some if sweep.lines)


@lru_cache(maxsize=1)
def _resampling(count: int) -> Resampling:
    """The resamples of all curves of so many samples: models stay paired."""
    return Resampling.of(count)


# Against the budget.


def _searched(cell: BoardCell, place: int) -> Iterator[Sweep]:
    """The exact curves of a search, from the smallest perturbation of each sample."""
    end = end_of(cell)
    for a, attack in enumerate(cell.attacks):
        sizes = np.where(np.isnan(cell.distance[:, a]), np.inf, cell.distance[:, a])
        yield from _sized(cell, place, attack, sizes, cell.covered[:, a], end)


def _beside(cell: BoardCell, place: int) -> Iterator[Sweep]:
    """The curves of the search that an evaluation with a budget adds."""
    known = ~np.isnan(cell.searched)
    if known.any():
        end = _end(cell.searched, cell)
        yield from _sized(cell, place, TOGETHER, cell.searched, known, end)


def _sized(
    cell: BoardCell, place: int, attack: str, sizes: Numbers, known: Mask, end: float
) -> Iterator[Sweep]:
    for measure in MEASURES:
        lines = tuple(_exact(cell, sizes, known, end, measure))
        yield Sweep(place, attack, "budget", measure, "size", end, lines)


def end_of(cell: BoardCell) -> float:
    """Where curves against the budget end, and with them all areas of a search."""
    return _end(cell.smallest, cell)


def _end(sizes: Numbers, cell: BoardCell) -> float:
    """Where the axis of these sizes, ``[m, n]``, ends."""
    broken = [row[np.isfinite(row)] for row in sizes]
    ends = [quantile(row, SHARE) for row in broken if len(row)]
    return max([*(ROOM * end for end in ends), 1.5 * (cell.eps or 0.0)]) or 1.0


def _exact(
    cell: BoardCell,
    ends: Numbers,
    known: Mask,
    end: float,
    measure: Measure,
    whole: bool = False,
) -> Iterator[Line]:
    """The curves of all models of a cell by where each sample is broken, ``[m, n]``."""
    among = known & cell.correct if measure == "success" else known
    return lines_of(cell.models, ends, among, end, measure, whole=whole)


def lines_of(
    names: Sequence[str],
    ends: Numbers,
    among: Mask,
    end: float,
    measure: Measure,
    *,
    whole: bool = False,
) -> Iterator[Line]:
    """Curves by where each sample is broken.

    Parameters
    ----------
    names : sequence of str
        The models ``[m]``.
    ends : array ``[m, n]``
        Where each sample is broken: 0 where it is misclassified when clean, infinite where never.
    among : array of bool ``[m, n]``
        The samples of the denominator. Models without any have no curve.
    end : float
        The end of the axis.
    measure : str
        ``accuracy`` or ``success``.
    whole : bool
        Whether the ends are whole numbers: steps or queries, which have no median and area.
    """
    models = np.flatnonzero(among.any(1)).tolist()
    if not models:
        return
    at = np.linspace(0, end, POINTS + 1)
    at = np.unique(np.rint(at)) if whole else at
    banded = success_bands if measure == "success" else accuracy_bands
    found = banded(ends[models], at, among[models], resampling=_resampling(ends.shape[1]))
    for place, m in enumerate(models):
        mine = np.sort(ends[m][among[m]])
        x = np.unique(np.concatenate(([0.0], mine[mine <= end], [end])))
        broken = np.searchsorted(mine, x, side="right") / len(mine)
        yield Line(
            names[m],
            x,
            broken if measure == "success" else 1 - broken,
            at,
            found.lowest[place],
            found.highest[place],
            len(mine),
            median=None if whole else quantile(mine),
            area=None if whole else area(mine, end),
        )


def _declared(board: Board, place: int) -> Iterator[Sweep]:
    """Curves through the budgets of cells that are otherwise alike; with the first of them."""
    alike = [
        n for n, cell in enumerate(board.cells) if _family(cell) == _family(board.cells[place])
    ]
    cells = sorted((board.cells[n] for n in alike), key=lambda cell: cell.eps or 0.0)
    if place != alike[0] or len(cells) < 2:
        return
    first, end = cells[0], 1.05 * (cells[-1].eps or 0.0)
    x = np.array([0.0, *(cell.eps or 0.0 for cell in cells)])
    for a, attack in enumerate(first.attacks):
        judged = np.logical_and.reduce([cell.covered[:, a] for cell in cells])
        left = np.stack([first.correct, *(cell.left[:, a] for cell in cells)], 1)
        for measure in MEASURES:
            lines = tuple(_at_points(first, left, x, judged, measure, joined=True))
            yield Sweep(place, attack, "budget", measure, "size", end, lines)


def _family(cell: BoardCell) -> tuple[object, ...]:
    """What cells have in common that differ in the budget only."""
    about = cell.norm, cell.goal, cell.access, cell.search, cell.queries, cell.suite, cell.seed
    return (*about, cell.data, cell.attacks, cell.sources, cell.models, cell.samples.tobytes())


def _at_points(
    cell: BoardCell, left: Mask, x: Numbers, known: Mask, measure: Measure, joined: bool = False
) -> Iterator[Line]:
    """The curves of all models of a cell by the samples left at each point, ``[m, points, n]``."""
    among = known & cell.correct if measure == "success" else known
    return points_of(cell.models, left, x, among, measure, joined=joined)


def points_of(
    names: Sequence[str],
    left: Mask,
    x: Numbers,
    among: Mask,
    measure: Measure,
    *,
    joined: bool = False,
) -> Iterator[Line]:
    """Curves by the samples that are left at each point, ``[m, points, n]``; see `lines_of`."""
    models = np.flatnonzero(among.any(1)).tolist()
    if not models:
        return
    held = ~left if measure == "success" else left
    resampling = _resampling(left.shape[-1])
    found: Bands = share_bands(held[models], x, among[models], resampling=resampling)
    for place, m in enumerate(models):
        band = found.lowest[place], found.highest[place], int(found.count[place])
        yield Line(names[m], x, found.value[place], x, *band, joined)


# Against strength.


def _progress(board: Board, cell: BoardCell, place: int) -> Iterator[Sweep]:
    """Curves against the steps or the queries of attacks with a budget, at their full budget."""
    figures = [board.evaluation(cell, m) for m in range(len(cell.models))]
    for a, attack in enumerate(cell.attacks):
        # The figures have curves against queries of query-based attacks, against steps of others.
        ends = {
            axis: [
                one.x[-1] for f in figures for one in curves(f) if one.attack == attack and one.x
            ]
            for axis, curves in _AXES.items()
        }
        axis = next((axis for axis, found in ends.items() if max(found, default=0) > 0), None)
        if axis is None:
            continue
        seen = cell.first_step if axis == "steps" else cell.first_query
        end, known = max(ends[axis]), cell.covered[:, a]
        broken = broken_at(seen[:, a], cell.success[:, a], cell.left[:, a], end)
        for measure in MEASURES:
            lines = tuple(_exact(cell, broken, known, end, measure, whole=True))
            yield Sweep(place, attack, "strength", measure, axis, end, lines)


_AXES: Mapping[str, Callable[[EvaluationFigures], Sequence[AttackCurve]]] = {
    "steps": lambda figures: figures.steps_curve,
    "queries": lambda figures: figures.queries_curve,
}


def _passed(cell: BoardCell, place: int) -> Iterator[Sweep]:
    """Curves against the passes of a search, at the budget of the cell."""
    if cell.eps is None or not len(cell.passes):
        return
    x = np.array([0.0, *cell.passes.tolist()])
    for a, attack in enumerate(cell.attacks):
        table = cell.best[:, a]
        known = cell.covered[:, a] & ~np.isnan(table).any(-1)
        left = left_after(table, cell.eps * (1 + ROUNDING))
        left = np.concatenate((cell.correct[:, None], left), 1)
        for measure in MEASURES:
            lines = tuple(_at_points(cell, left, x, known, measure))
            yield Sweep(place, attack, "strength", measure, "passes", float(x[-1]), lines)


def _descents(board: Board, cell: BoardCell, place: int) -> Iterator[Sweep]:
    """The median of the best distances so far against the passes of a search."""
    for attack in cell.attacks:
        lines = []
        for m, model in enumerate(cell.models):
            sizes = board.evaluation(cell, m).distances
            for one in () if sizes is None else sizes.attacks:
                if one.text == attack and one.cost is not None:
                    lines.append(_descent(model, one, sizes.count if sizes else 0))
        drawn = tuple(line for line in lines if len(line.x))
        if drawn:
            end = max(float(line.x[-1]) for line in drawn)
            yield Sweep(place, attack, "strength", "size", "passes", end, drawn)


def _descent(model: str, sizes: AttackSizes, count: int) -> Line:
    cost = sizes.cost
    assert cost is not None
    known = [
        (n, size) for n, size in zip(cost.passes, cost.median, strict=True) if size is not None
    ]
    x, value = (np.array(column, float) for column in zip(*known, strict=True)) if known else (
        np.zeros(0), np.zeros(0))  # fmt: skip
    return Line(model, x, value, x, value, value, count, joined=True, median=sizes.median)

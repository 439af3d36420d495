"""Curves of a board: accuracy and success rate against the budget and against strength.

Against the budget they are exact, from the distance of each sample. Strength is the steps or the
queries of an attack with a budget, and the passes of a search, whose median distance falls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from besiege.bench.board import Board, BoardCell
from besiege.metrics.curves import Curve, bands, survival
from besiege.metrics.distances import quantile
from besiege.metrics.optimality import area
from besiege.metrics.outcomes import Numbers
from besiege.metrics.values import AttackCurve, AttackSizes, BudgetCurve

TOGETHER = "all attacks together"
"""The curve of an evaluation's smallest perturbations by any attack."""
SHARE, ROOM = 0.95, 1.1
"""A budget axis ends where all but a few of the samples of every model are broken."""

Against = Literal["budget", "strength"]
Measure = Literal["accuracy", "success", "size"]


@dataclass(frozen=True, eq=False)
class Line:
    """The curve of one model: a share of ``count`` samples, or a median size.

    ``joined`` says whether points are joined by lines; otherwise a value holds until the next one.
    ``median`` and ``area`` are those of the distances, up to the end of the axis.
    """

    model: str
    x: Numbers
    value: Numbers
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
            (_searched(cell, place), _descents(board, cell, place))
            if cell.search
            else (
                _declared(board, place),
                _curves_beside(board, cell, place),
                _progress(board, cell, place),
            )
        )
        yield from (sweep for some in found for sweep in some if sweep.lines)


# Against the budget.


def _searched(cell: BoardCell, place: int) -> Iterator[Sweep]:
    """The exact curves of a search, from the smallest perturbation of each sample."""
    end = _end(cell)
    for a, attack in enumerate(cell.attacks):
        for measure in ("accuracy", "success"):
            lines = [_exact(cell, m, a, measure == "success", end) for m in range(len(cell.models))]
            drawn = tuple(line for line in lines if line is not None)
            yield Sweep(place, attack, "budget", measure, "size", end, drawn)


def _end(cell: BoardCell) -> float:
    sizes = [row[np.isfinite(row)] for row in cell.smallest]
    ends = [quantile(row, SHARE) for row in sizes if len(row)]
    return max([*(ROOM * end for end in ends), 1.5 * (cell.eps or 0.0)]) or 1.0


def _exact(cell: BoardCell, m: int, a: int, success: bool, end: float) -> Line | None:
    chosen = cell.covered[m, a] & (cell.correct[m] | (not success))
    if not chosen.any():
        return None
    sizes = np.nan_to_num(cell.distance[m, a][chosen], nan=np.inf)
    points = np.unique(np.concatenate(([0.0], sizes[sizes <= end], [end])))
    curve = survival(points, sizes, len(sizes))
    median = quantile(sizes)
    line = _line(cell.models[m], curve, success)
    return replace(line, median=median, area=area(sizes, end))


def _line(model: str, curve: Curve, success: bool) -> Line:
    """A curve of accuracy, or of the success rate, which is what it lacks to 1."""
    if not success:
        return Line(model, curve.x, curve.value, curve.low, curve.high, curve.count)
    return Line(model, curve.x, 1 - curve.value, 1 - curve.high, 1 - curve.low, curve.count)


def _declared(board: Board, place: int) -> Iterator[Sweep]:
    """Curves through the budgets of cells that are otherwise alike; with the first of them."""
    alike = [
        n for n, cell in enumerate(board.cells) if _family(cell) == _family(board.cells[place])
    ]
    cells = sorted((board.cells[n] for n in alike), key=lambda cell: cell.eps or 0.0)
    if place != alike[0] or len(cells) < 2:
        return
    end = 1.05 * (cells[-1].eps or 0.0)
    for attack in cells[0].attacks:
        for measure in ("accuracy", "success"):
            lines = [
                line
                for model in cells[0].models
                if (line := _through(cells, model, attack, measure == "success")) is not None
            ]
            yield Sweep(place, attack, "budget", measure, "size", end, tuple(lines))


def _family(cell: BoardCell) -> tuple[object, ...]:
    """What cells have in common that differ in the budget only."""
    about = cell.norm, cell.goal, cell.access, cell.search, cell.queries, cell.suite, cell.seed
    return (*about, cell.data, cell.attacks, cell.sources, cell.models, cell.samples.tobytes())


def _through(cells: Sequence[BoardCell], model: str, attack: str, success: bool) -> Line | None:
    m, a = cells[0].models.index(model), cells[0].attacks.index(attack)
    judged = np.logical_and.reduce([cell.covered[m, a] for cell in cells])
    if not judged.any():
        return None
    right = judged & cells[0].correct[m]
    count = int(right.sum()) if success else int(judged.sum())
    left = np.array([int(right.sum()), *(int(cell.left[m, a][judged].sum()) for cell in cells)])
    hits = right.sum() - left if success else left
    low, high = bands(hits, max(count, 1))
    x = np.array([0.0, *(cell.eps or 0.0 for cell in cells)])
    return Line(model, x, hits / max(count, 1), low, high, count, joined=True)


def _curves_beside(board: Board, cell: BoardCell, place: int) -> Iterator[Sweep]:
    """The curve of the strongest attack that an evaluation with a budget adds."""
    given = [(m, board.evaluation(cell, m).eps_curve) for m in range(len(cell.models))]
    known = [(m, curve) for m, curve in given if curve is not None and curve.count]
    if not known:
        return
    end = max(ROOM * max(_last(curve) for _, curve in known), 1.5 * (cell.eps or 0.0))
    lines = tuple(_of_figures(cell.models[m], curve, None) for m, curve in known)
    yield Sweep(place, TOGETHER, "budget", "accuracy", "size", end, lines)


def _last(curve: BudgetCurve) -> float:
    """Where a curve has fallen to a few percent of its samples, or its end."""
    low = [x for x, value in zip(curve.x, curve.value, strict=True) if value <= 1 - SHARE]
    return low[0] if low else curve.x[-1]


def _of_figures(model: str, curve: AttackCurve | BudgetCurve, right: int | None) -> Line:
    """A curve of the figures; with the number of correct samples, as a success rate of these."""
    x, value = np.array(curve.x), np.array(curve.value)
    if right is None:
        return Line(model, x, value, np.array(curve.low), np.array(curve.high), curve.count)
    broken = right - np.rint(value * curve.count).astype(np.int64)
    low, high = bands(broken, right)
    return Line(model, x, broken / right, low, high, right)


# Against strength.


def _progress(board: Board, cell: BoardCell, place: int) -> Iterator[Sweep]:
    """Curves against the steps or the queries of attacks with a budget."""
    for a, attack in enumerate(cell.attacks):
        for axis in ("steps", "queries"):
            found = []
            for m in range(len(cell.models)):
                figures = board.evaluation(cell, m)
                curves = figures.steps_curve if axis == "steps" else figures.queries_curve
                right = int((cell.covered[m, a] & cell.correct[m]).sum())
                found += [(m, one, right) for one in curves if one.attack == attack and one.x]
            if found and max(one.x[-1] for _, one, _ in found) > 0:
                end = max(one.x[-1] for _, one, _ in found)
                lines = [_of_figures(cell.models[m], one, None) for m, one, _ in found]
                yield Sweep(place, attack, "strength", "accuracy", axis, end, tuple(lines))
                lines = [_of_figures(cell.models[m], one, n) for m, one, n in found if n]
                yield Sweep(place, attack, "strength", "success", axis, end, tuple(lines))
                break  # query-based attacks have curves against queries; others against steps


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
    return Line(model, x, value, value, value, count, joined=True, median=sizes.median)

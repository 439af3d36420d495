"""The board of a run as one table: a row for each cell, model and attack.

An empty attack stands for all attacks of the cell together. Nothing is averaged over attacks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from besiege.bench.board import Board, BoardCell
from besiege.bench.sweeps import end_of
from besiege.metrics.distances import quantile
from besiege.metrics.intervals import Rate
from besiege.metrics.optimality import area
from besiege.metrics.outcomes import Numbers
from besiege.metrics.rows import Rows
from besiege.metrics.strength import per_value

_TEXTS = ("cell", "threat", "norm", "goal", "knowledge", "source", "data", "model", "attack")


def board_rows(board: Board) -> Rows:
    """The table of a board.

    Accuracy is a share of the ``images`` judged, the success rate of those that were ``correct``
    before; of a search, both are within ``eps``, or at any size without one. ``median`` is that of
    the distances: of a search over all images, with a budget over the broken ones;
    ``median_per_value`` compares between image sizes, such as l2 divided by the square root of the
    number of pixel values. ``area`` is that under accuracy against the budget of a search, from 0
    to ``area_to``.
    """
    found = [row for cell in board.cells for row in _rows(board, cell)]
    columns = {name: [row[name] for row in found] for name in (found[0] if found else {})}
    return Rows(
        {
            name: np.array(values, object if name in _TEXTS else None)
            for name, values in columns.items()
        }
    )


def _rows(board: Board, cell: BoardCell) -> Iterator[dict[str, Any]]:
    for m, name in enumerate(cell.models):
        about = {
            "cell": cell.name,
            "threat": cell.threat,
            "norm": cell.norm,
            "eps": np.nan if cell.eps is None else cell.eps,
            "search": cell.search,
            "goal": cell.goal,
            "knowledge": cell.knowledge,
            "source": cell.sources[m],
            "data": cell.data,
            "seed": cell.seed,
            "model": name,
        }
        figures = board.evaluation(cell, m)
        complete, pixels = figures.complete, math.prod(figures.data.shape)
        for a, attack in enumerate(cell.attacks):
            accuracy, success = cell.accuracy(m, a), cell.success_rate(m, a)
            sizes = cell.sizes(m, a) if cell.search else cell.distance[m, a][cell.success[m, a]]
            tried = cell.forwards[m, a] >= 0
            yield {
                **about,
                "attack": attack,
                **_rates(accuracy, success),
                **_sizes(cell, sizes, pixels),
                "queries": _each(cell.queries_used[m, a], tried),
                "passes": _each(cell.forwards[m, a] + cell.backwards[m, a], tried),
                "complete": complete,
            }
        smallest = cell.smallest[m][cell.known[m] if cell.search else cell.success[m].any(0)]
        yield {
            **about,
            "attack": "",
            **_rates(*_together(cell, m)),
            **_sizes(cell, smallest, pixels),
            "queries": np.nan,
            "passes": np.nan,
            "complete": complete,
        }


def _together(cell: BoardCell, m: int) -> tuple[Rate | None, Rate | None]:
    """Accuracy and success rate under all attacks of a cell."""
    known, right = cell.known[m], cell.known[m] & cell.correct[m]
    left = cell.withstood(cell.eps if cell.search else None)[m] & known
    broken = right & ~left
    return (
        Rate.of(int(left.sum()), int(known.sum())) if known.any() else None,
        Rate.of(int(broken.sum()), int(right.sum())) if right.any() else None,
    )


def _sizes(cell: BoardCell, sizes: Numbers, pixels: int) -> dict[str, float]:
    """Median and area of some distances; nothing of none, and no area of successes only."""
    found = dict.fromkeys(("median", "median_per_value", "area", "area_to"), np.nan)
    if len(sizes):
        found["median"] = quantile(sizes)
        found["median_per_value"] = float(per_value(found["median"], cell.norm, pixels))
        if cell.search:
            found["area_to"] = end_of(cell)
            found["area"] = area(sizes, found["area_to"])
    return found


def _rates(accuracy: Rate | None, success: Rate | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, rate in (("accuracy", accuracy), ("success_rate", success)):
        values = (np.nan,) * 3 if rate is None else (rate.value, rate.low, rate.high)
        found |= dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))
    counts = {"images": accuracy, "correct": success}
    return {**{n: 0 if rate is None else rate.count for n, rate in counts.items()}, **found}


def _each(spent: Any, tried: Any) -> float:
    """What was spent per image that the attack ran on."""
    return float(spent[tried].sum() / tried.sum()) if tried.any() else np.nan

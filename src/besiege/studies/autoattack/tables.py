"""Tables of AutoAttack's study: Table 2, suites, randomised models, and the sub-studies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from besiege.bench.board import Board, BoardCell
from besiege.bench.display import Grid, rows_of
from besiege.core.errors import UnknownNameError
from besiege.metrics.intervals import Rate
from besiege.studies.autoattack import scaling, step_sizes
from besiege.studies.autoattack.reading import AVERAGED, PARTS, UNTARGETED, Attacked, alone
from besiege.studies.study import Table

SUITES = ("standard", "quick", "plus")
WORST = "all four"


def table_2(board: Board) -> Grid:
    """Table 2 of the publication: every part on all points, and the worst case of the four."""
    found = [_entry(board, one) for one in alone(board)]
    names = (*PARTS, WORST, *UNTARGETED, *SUITES)
    rows = tuple(
        (
            f"{one['model']}, {one['threat']}",
            _percent(one["clean"]),
            *(_percent(one[name]) for name in names),
            _percent(one["reported"]) if np.isfinite(one["reported"]) else "nothing",
        )
        for one in found
    )
    counts = sorted({one["images"] for one in found})
    among = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
    note = (
        f"Percent of {among} images that are classified correctly. Each part runs on all points; "
        f"'{WORST}' is their worst case, image by image, and the suites run each attack on what "
        "those before it left. APGD-DLR and FAB are untargeted with five restarts. 'Reported' is "
        "what the model's own card reports at this budget, under PGD; 'nothing' where it reports "
        "none. Every figure is an upper bound of robust accuracy."
    )
    heads = ("model", "clean", *names, "reported")
    return Grid(
        "Table 2: parts of AutoAttack alone and together", heads, rows, note, rows_of(found)
    )


def _entry(board: Board, one: Attacked) -> dict[str, Any]:
    suites = {suite: _suite(board, one, suite) for suite in SUITES}
    singles = {
        name: one.left(text) if one.has(text) else None
        for name, text in (PARTS | UNTARGETED).items()
    }
    known = one.known(*PARTS.values())
    clean = Rate.of(int(one.cell.correct[one.row][known].sum()), int(known.sum()))
    return {
        "model": one.name,
        "threat": one.threat,
        "images": one.worst.count,
        **{name: _number(rate) for name, rate in ({"clean": clean} | singles | suites).items()},
        WORST: one.worst.value,
        "low": one.worst.low,
        "high": one.worst.high,
        "reported": np.nan if one.reported is None else one.reported,
    }


def _number(rate: Rate | None) -> float:
    return np.nan if rate is None else rate.value


def _suite(board: Board, one: Attacked, suite: str) -> Rate | None:
    """Accuracy under a suite in the same threat, if it was run."""
    for cell in board.cells:
        alike = cell.suite and cell.threat == one.cell.threat and cell.name.startswith(suite)
        if alike and one.name in cell.models:
            row = cell.models.index(one.name)
            known = cell.known[row]
            if known.any():
                return Rate.of(int(cell.robust[row][known].sum()), int(known.sum()))
    return None


def _percent(value: float) -> str:
    return f"{100 * value:.1f}" if np.isfinite(value) else "not run"


def randomised(board: Board) -> Grid:
    """Tables 3, 7 and 8: mean and deviation over five evaluations of one draw each."""
    found = []
    for one in alone(board, AVERAGED):
        drawn = board.evaluation(one.cell, one.row).chance
        if drawn is None:
            continue
        spreads = {each.text: str(each) for each in drawn.attacks}
        parts = (spreads.get(text, "not run") for text in AVERAGED.values())
        found.append((one.title, str(drawn.clean), *parts, str(drawn.robust)))
    if not found:
        raise UnknownNameError("no randomised model was attacked by the parts of rand")
    note = (
        "Accuracy in percent, and the standard deviation over five evaluations of one draw each. "
        "Every answer that an attack sees is a mean of 20 draws."
    )
    heads = ("model", "clean", *AVERAGED, "worst case")
    return Grid("Tables 3, 7 and 8: randomised models", heads, tuple(found), note)


def bounds(board: Board) -> Grid:
    """What is proved beside what attacks leave."""
    rows = tuple(
        (
            f"{name}, {cell.norm} {cell.eps_text}",
            found.method,
            *(
                f"{100 * rate.value:.1f}"
                for rate in (found.clean, found.empirical, found.certified)
            ),
            str(found.contradicted),
        )
        for cell, row, name in _everyone(board)
        if (found := board.evaluation(cell, row).certified) is not None
    )
    if not rows:
        raise UnknownNameError("no model of this run has a verified bound")
    heads = ("model", "method", "clean", "left by attacks", "proved", "proved and broken")
    note = "Percent of the images. An image that is proved cannot be broken: the last column is 0."
    return Grid("Verified bounds below what attacks leave", heads, rows, note)


def _everyone(board: Board) -> Iterator[tuple[BoardCell, int, str]]:
    for cell in board.cells:
        for row, name in enumerate(cell.models):
            yield cell, row, name


def divided(board: Board) -> Grid:
    """Figure 2 as a table."""
    return scaling.grid(board)


def steps(board: Board) -> Grid:
    """Tables 9 to 14."""
    return step_sizes.grid(board)


def readings(board: Board) -> list[str]:
    """How the tables are not to be read."""
    found = [
        "AutoAttack is an upper bound too: of a published model its four parts together left "
        "18.5 %, Square alone 20.4 %, and Square with 10,000 queries and 10 restarts 8.0 % (of 500 "
        "images).",
    ]
    for name, sign in _signs(board).items():
        found.append(f"Divided logits say of {name}: {sign}.")
    return found


def _signs(board: Board) -> Mapping[str, str]:
    try:
        cell = board.cell(scaling.CELL)
    except UnknownNameError:
        return {}
    return {name: scaling.scaling(board, name).sign for name in cell.models}


TABLES = (
    Table("table2", table_2),
    Table("randomised", randomised),
    Table("bounds", bounds),
    Table("figure2", divided),
    Table("steps", steps),
)

"""The utility of models on clean images in words, and as a table of the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from besiege.report.formats import NOTHING, interval, number, points, share

if TYPE_CHECKING:
    from besiege.bench.compared import Group, Pair
    from besiege.metrics.utility import Mean, Utility

UTILITY_LEGEND = (
    "Clean images, model against base: CAV accuracy gained, CRR newly correct, CSR newly wrong; "
    "where both are correct, CCV change of the label's probability in points, COS divergence of "
    "the outputs."
)


def utility_sentence(pair: Pair) -> str:
    """What one of two models does to clean images, against the other; empty if that is unknown.

    Examples
    --------
    "Clean images, B against A: CAV -1.0 [-5.4, 3.1], CRR 1.0 % [0.0, 5.4], CSR 2.0 % [0.2, 7.0],
    CCV 4.31 [3.5, 5.2], COS 0.0123 [0.0098, 0.015]."
    """
    if pair.utility is None:
        return ""
    cells = [
        f"{name} {' '.join(cell)}".strip() for name, cell in utility_cells(pair.utility).items()
    ]
    text = f"Clean images, {pair.model} against {pair.base}: {', '.join(cells)}."
    return " ".join([text, *lacking_sentences([pair])])


def utility_cells(found: Utility) -> dict[str, tuple[str, str]]:
    """The utility figures as texts by their names, each with its interval.

    CAV and CCV are in percentage points.
    """
    gained, _, ends = points(found.cav).partition(" points ")
    return {
        "CAV": (gained, ends),
        "CRR": (share(found.crr), interval(found.crr)),
        "CSR": (share(found.csr), interval(found.csr)),
        "CCV": _mean_cell(found.ccv, 100),
        "COS": _mean_cell(found.cos, 1),
    }


def _mean_cell(mean: Mean | None, scale: float) -> tuple[str, str]:
    if mean is None:
        return NOTHING, ""
    ends = f"[{scale * mean.low:.2g}, {scale * mean.high:.2g}]"
    return number(scale * mean.value), ends


def lacking_sentences(pairs: Sequence[Pair]) -> list[str]:
    """Why confidences or divergences of some pairs are missing, every reason once."""
    found: dict[str, list[str]] = {}
    for utility in (pair.utility for pair in pairs if pair.utility is not None):
        for name, reasons in utility.lacking.items():
            for why in reasons:
                found[why] = list(dict.fromkeys([*found.get(why, ()), name.upper()]))
    return [f"No {' and '.join(names)}: {why}." for why, names in found.items()]


def utility_table(group: Group, pairs: Sequence[Pair]) -> Table:
    """The utility figures of pairs on clean images, by the numbers of the ranking."""
    rank = {one.name: str(place) for place, one in enumerate(group.evaluations, 1)}
    rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("model", "base", "CAV", "CRR", "CSR", "CCV", "COS"):
        rows.add_column(heading, justify="right", overflow="fold")
    for pair in pairs:
        if pair.utility is not None and pair.base is not None:
            cells = ["\n".join(cell) for cell in utility_cells(pair.utility).values()]
            rows.add_row(rank[pair.model], rank[pair.base], *cells)
    return rows

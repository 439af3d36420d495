"""The tables of searches: the smallest perturbations, and how they fall with the passes."""

from __future__ import annotations

from rich.table import Table

from besiege.metrics.attack_values import Sizes
from besiege.metrics.values import EvaluationFigures as Evaluation
from besiege.report.answer import Fall, counted_in
from besiege.report.formats import budget_unit, distance
from besiege.report.terminal.layout import NONE, named_rows


def size_table(evaluation: Evaluation, width: int) -> Table:
    """How large the smallest perturbations are, by each attack and by the best of all."""
    sizes, unit = evaluation.distances, budget_unit(evaluation.threat)
    assert sizes is not None
    several = len(sizes.attacks) > 1
    headings = ["median", "mean", "90 %", f"area to {distance(sizes.all.area_to, unit)}"]
    headings += ["optimality"] if several else []
    rows: list[tuple[str, Sizes, float]] = [(a.text, a, a.optimality) for a in sizes.attacks]
    rows += [("best of all", sizes.all, 1.0)] if several else []
    cells = []
    for name, one, optimality in rows:
        values = (one.median, one.mean, one.p90, one.area)
        shown = ["infinite" if value is None else distance(value, unit) for value in values]
        cells.append((name, [*shown, *([f"{optimality:.3f}"] if several else [])]))
    return named_rows("smallest perturbation", headings, cells, width)


def descent_table(evaluation: Evaluation, fall: Fall, width: int) -> Table:
    """The median perturbation after numbers of passes, by each attack and by all in turn."""
    unit = budget_unit(evaluation.threat)
    headings = [*(f"{mark:,}" for mark in fall.marks), "in all"]
    cells = []
    for name, row in fall.rows.items():
        medians = [*(median for median, _ in row.cells), row.in_all]
        cells.append((name, [NONE if m is None else distance(m, unit) for m in medians]))
    return named_rows(f"median after {counted_in(evaluation)}", headings, cells, width)

"""The charts of an evaluation: accuracy against steps, queries and perturbation size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from besiege.metrics.values import AttackCurve, EvaluationFigures
from besiege.report.drawing import BANDS
from besiege.report.formats import budget_unit, distance
from besiege.report.plot import Chart, Curve, Mark

WIDE, NARROW = 720, 340

UNEVEN = 20.0
"""Ratio of the longest to the shortest curve above which the axis is logarithmic."""

TOGETHER = "best of all"
"""The name of the curve of all attacks together."""

BEYOND = 1.3
"""Curves of single attacks are cut at this multiple of the end of the curve of all."""


@dataclass(frozen=True)
class Figure:
    """A chart with title, caption, two drawings and its data."""

    title: str
    caption: str
    chart: Chart

    @property
    def wide(self) -> str:
        """SVG for wide screens and paper, in which every name is escaped."""
        return self.chart.svg(WIDE)

    @property
    def narrow(self) -> str:
        """SVG for phones, with letters of the same size."""
        return self.chart.svg(NARROW)

    @property
    def points(self) -> int:
        """The number of points, drawn or not."""
        return sum(map(len, self.chart.curves))

    @property
    def rows(self) -> list[tuple[str, str, float, float, float]]:
        """The drawn points: curve, x, value and interval in percent."""
        return [
            (curve.name, self.chart.x_text(x), 100 * value, 100 * low, 100 * high)
            for curve in self.chart.drawn
            for x, value, low, high in zip(curve.x, curve.value, curve.low, curve.high, strict=True)
        ]


def charts(evaluation: EvaluationFigures) -> list[Figure]:
    """The charts of an evaluation that have points."""
    found = (steps_chart(evaluation), queries_chart(evaluation), eps_chart(evaluation))
    return [figure for figure in found if figure is not None]


def steps_chart(evaluation: EvaluationFigures) -> Figure | None:
    """Accuracy against the steps of each attack on the model itself."""
    elsewhere = {a.text for a in evaluation.attacks if a.transfer}
    here = [curve for curve in evaluation.steps_curve if curve.attack not in elsewhere]
    return _progress(here, "steps", "step")


def queries_chart(evaluation: EvaluationFigures) -> Figure | None:
    """Accuracy against the queries of each query-based attack."""
    return _progress(evaluation.queries_curve, "queries", "query")


def _progress(given: Sequence[AttackCurve], what: str, one: str) -> Figure | None:
    """A chart of how fast attacks break the model."""
    curves = [curve for curve in map(Curve.of, given) if len(curve)]
    if not curves:
        return None
    name = curves[0].name if len(curves) == 1 else "each attack"
    caption = (
        f"Accuracy while {name} runs. If a curve still falls at its right end, more {what} would "
        "break more images."
    )
    if len(curves) > BANDS:
        caption += " The intervals of so many curves are only in the data below."
    title = f"Accuracy against {what}"
    ends = [curve.x[-1] for curve in curves]
    uneven = max(ends) > UNEVEN * max(1.0, min(ends))
    named = f"{what} of the attack" + (", logarithmic" if uneven else "")
    return Figure(title, caption, Chart(title, curves, named, one, by_tens=uneven))


def eps_chart(evaluation: EvaluationFigures) -> Figure | None:
    """Accuracy against perturbation size."""
    given, threat = evaluation.eps_curve, evaluation.threat
    if not given or not len(curve := Curve.of(given)):
        return None
    unit = budget_unit(threat)
    marks = []
    if threat.eps is not None:
        marks.append(Mark(threat.eps, f"budget {threat.eps_text}"))
    median = given.median
    if median is not None and math.isfinite(median):
        marks.append(Mark(median, f"median {distance(median, unit)}", "median"))
    title = "Accuracy against perturbation size"
    caption = (
        f"The smallest perturbation that {given.attack} found for each of {given.count:,} images. "
        "The curve falls by one image at the size that breaks it."
    )
    curves = [curve]
    if others := _each(evaluation, curve.x[-1]):
        curves = [replace(curve, name=TOGETHER), *others]
        caption = (
            f"The smallest perturbation found for each of {given.count:,} images, by each attack "
            "and by the best of all for each image. A curve falls by one image at the size that "
            "breaks it; the lowest curve is that of the strongest attack."
        )
        if len(curves) > BANDS:
            caption += " The band is that of the best of all; those of the others are in the data."
        if sum(map(len, others)) < sum(len(one.x) for one in evaluation.eps_curves):
            caption += " Longer curves are cut."
    if given.unbroken:
        caption += f" {given.unbroken:,} images were not broken at any size tried."
    named = f"perturbation size, {given.norm}"
    chart = Chart(title, curves, named, "size", True, unit, marks, banded=1)
    return Figure(title, caption, chart)


def _each(evaluation: EvaluationFigures, end: float) -> list[Curve]:
    """The curve of every attack, cut far beyond the end of the best of all."""
    curves = [Curve.of(given) for given in evaluation.eps_curves]
    cut = [c.at([row for row, x in enumerate(c.x) if x <= BEYOND * end]) for c in curves]
    return [curve for curve in cut if len(curve)]

"""The charts of an evaluation: accuracy against steps, queries and the size of the change."""

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
"""How many times as long the longest curve may be, for the shortest to be seen beside it."""

TOGETHER = "best of all"
"""The name of the curve of all attacks together."""

BEYOND = 1.3
"""How far beyond its end the curves of single attacks are drawn."""


@dataclass(frozen=True)
class Figure:
    """A chart with what stands beside it: two widths of it, words and the data."""

    title: str
    caption: str
    chart: Chart

    @property
    def wide(self) -> str:
        """For desks and paper; markup in which every name is escaped."""
        return self.chart.svg(WIDE)

    @property
    def narrow(self) -> str:
        """For phones, with letters as large."""
        return self.chart.svg(NARROW)

    @property
    def points(self) -> int:
        """How many points there are, drawn or not."""
        return sum(map(len, self.chart.curves))

    @property
    def rows(self) -> list[tuple[str, str, float, float, float]]:
        """The drawn points: curve, place, value and interval in percent."""
        return [
            (curve.name, self.chart.x_text(x), 100 * value, 100 * low, 100 * high)
            for curve in self.chart.drawn
            for x, value, low, high in zip(curve.x, curve.value, curve.low, curve.high, strict=True)
        ]


def charts(evaluation: EvaluationFigures) -> list[Figure]:
    """The charts an evaluation has points for."""
    found = (steps_chart(evaluation), queries_chart(evaluation), eps_chart(evaluation))
    return [figure for figure in found if figure is not None]


def steps_chart(evaluation: EvaluationFigures) -> Figure | None:
    """Accuracy against the steps of each attack that takes them on the model itself."""
    elsewhere = {a.text for a in evaluation.attacks if a.transfer}
    here = [curve for curve in evaluation.steps_curve if curve.attack not in elsewhere]
    return _progress(here, "steps", "step")


def queries_chart(evaluation: EvaluationFigures) -> Figure | None:
    """Accuracy against the queries of each attack that only asks."""
    return _progress(evaluation.queries_curve, "queries", "query")


def _progress(given: Sequence[AttackCurve], what: str, one: str) -> Figure | None:
    """How fast attacks break the model."""
    curves = [Curve.of(each) for each in given]
    curves = [curve for curve in curves if len(curve)]
    if not curves:
        return None
    caption = (
        "How fast each attack breaks the model. A curve that still falls at its right end says "
        f"that more {what} would break more."
    )
    if len(curves) == 1:
        caption = (
            f"How fast {curves[0].name} breaks the model. If the curve still falls at its right "
            f"end, more {what} would break more."
        )
    if len(curves) > BANDS:
        caption += " There are too many to draw their intervals: those are in the data below."
    title = f"Accuracy against {what}"
    ends = [curve.x[-1] for curve in curves]
    uneven = max(ends) > UNEVEN * max(1.0, min(ends))
    named = f"{what} of the attack" + (", by powers of ten" if uneven else "")
    return Figure(title, caption, Chart(title, curves, named, one, by_tens=uneven))


def eps_chart(evaluation: EvaluationFigures) -> Figure | None:
    """Accuracy against the size of the change."""
    given, threat = evaluation.eps_curve, evaluation.threat
    if not given:
        return None
    curve = Curve.of(given)
    if not len(curve):
        return None
    unit = budget_unit(threat)
    marks = []
    if threat.eps is not None:
        marks.append(Mark(threat.eps, f"budget {threat.eps_text}"))
    median = given.median
    if median is not None and math.isfinite(median):
        marks.append(Mark(median, f"median {distance(median, unit)}", "median"))
    title = "Accuracy against the size of the change"
    caption = (
        f"How large a change it takes: the smallest one that {given.attack} found for each of "
        f"{given.count:,} images. The curve falls where an image is lost."
    )
    curves = [curve]
    if others := _each(evaluation, curve.x[-1]):
        curves = [replace(curve, name=TOGETHER), *others]
        caption = (
            f"How large a change it takes: the smallest one that was found for each of "
            f"{given.count:,} images, by each attack and by the best of all of them, image by "
            "image. A curve falls where an image is lost; the lowest is the strongest attack."
        )
        if len(curves) > BANDS:
            caption += " The band is that of the best of all; those of the others are in the data."
        if sum(map(len, others)) < sum(len(one.x) for one in evaluation.eps_curves):
            caption += " Curves that go on to larger changes are cut."
    if given.unbroken:
        caption += f" {given.unbroken:,} images were not broken at any size tried."
    named = f"size of the change, {given.norm}"
    chart = Chart(title, curves, named, "change", True, unit, marks, banded=1)
    return Figure(title, caption, chart)


def _each(evaluation: EvaluationFigures, end: float) -> list[Curve]:
    """The curve of every attack, cut where it goes far beyond the end of the best of all."""
    found = []
    for given in evaluation.eps_curves:
        curve = Curve.of(given)
        found.append(curve.at([row for row, x in enumerate(curve.x) if x <= BEYOND * end]))
    return [curve for curve in found if len(curve)]

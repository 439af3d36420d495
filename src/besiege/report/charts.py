"""The charts of evaluations: accuracy against steps, queries and perturbation size; ROC curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from besiege.metrics.attack_values import AttackCurve
from besiege.metrics.values import EvaluationFigures
from besiege.report.answer import is_cascade
from besiege.report.drawing import BANDS
from besiege.report.formats import budget_unit, distance, listed
from besiege.report.grouping import Member
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
    def rows(self) -> dict[str, list[tuple[str, float, float, float]]]:
        """The drawn points of each curve: x, value and interval in percent."""
        return {
            curve.name: [
                (self.chart.x_text(x), 100 * value, 100 * low, 100 * high)
                for x, value, low, high in zip(
                    curve.x, curve.value, curve.low, curve.high, strict=True
                )
            ]
            for curve in self.chart.drawn
        }

    @property
    def listed(self) -> int:
        """The number of points that are drawn."""
        return sum(map(len, self.chart.drawn))


def charts(evaluation: EvaluationFigures) -> list[Figure]:
    """The charts of an evaluation that have points."""
    found = (steps_chart(evaluation), queries_chart(evaluation), eps_chart(evaluation))
    return [figure for figure in found if figure is not None]


def together(members: Sequence[Member]) -> list[Figure]:
    """The charts of several models under one threat, each with a curve per model."""
    if len(members) < 2:
        return []
    found = (
        _sizes_of_all(members),
        _progress_of_all(members, lambda one: _on_the_model(one.evaluation), "steps", "step"),
        _progress_of_all(members, lambda one: one.evaluation.queries_curve, "queries", "query"),
    )
    return [figure for figure in found if figure is not None]


def _sizes_of_all(members: Sequence[Member]) -> Figure | None:
    """Accuracy against perturbation size, by the best of all attacks on each model."""
    given = [(one, one.evaluation.eps_curve) for one in members]
    curves = [_styled(one, Curve.of(curve)) for one, curve in given if curve is not None]
    curves = [curve for curve in curves if len(curve)]
    if len(curves) < 2:
        return None
    threat = members[0].evaluation.threat
    marks = [] if threat.eps is None else [Mark(threat.eps, f"budget {threat.eps_text}")]
    title = "Accuracy against perturbation size"
    caption = (
        "For each model, the share of images whose smallest perturbation found is larger than a "
        "size."
    )
    chart = Chart(
        f"{title}, all models",
        curves,
        f"perturbation size, {threat.norm}",
        "size",
        True,
        budget_unit(threat),
        marks,
        named=False,
    )
    return Figure(title, caption + _without(members, curves), chart)


def _progress_of_all(
    members: Sequence[Member],
    curves_of: Callable[[Member], Sequence[AttackCurve]],
    what: str,
    one: str,
) -> Figure | None:
    """Accuracy while the attack that broke most images of each model runs, if it has a curve.

    None where no curve falls: these attacks had nothing left to break.
    """
    chosen = []
    for member in members:
        broken = {attack.text: attack.broken for attack in member.evaluation.attacks}
        known = [curve for curve in curves_of(member) if curve.x]
        if known:
            chosen.append((member, max(known, key=lambda curve: broken.get(curve.attack, 0))))
    if len(chosen) < 2 or all(curve.value[0] == curve.value[-1] for _, curve in chosen):
        return None
    curves = [_styled(member, Curve.of(curve)) for member, curve in chosen]
    names = dict.fromkeys(curve.attack for _, curve in chosen)
    by = next(iter(names)) if len(names) == 1 else "its attack that broke most and has such a curve"
    caption = f"Accuracy of each model while {by} runs."
    if len(names) > 1:
        caption += f" These are {listed([*names])}; the evaluations say which is whose."
    if any(is_cascade(member.evaluation) for member, _ in chosen):
        caption += " In a suite, an attack starts with what those before it left."
    title = f"Accuracy against {what}"
    uneven = _uneven(curves)
    named = f"{what} of the attack" + (", logarithmic" if uneven else "")
    chart = Chart(f"{title}, all models", curves, named, one, by_tens=uneven, named=False)
    return Figure(title, caption + _without(members, curves), chart)


def _styled(member: Member, curve: Curve) -> Curve:
    return replace(curve, name=member.name, style=member.style)


def _without(members: Sequence[Member], curves: Sequence[Curve]) -> str:
    """A sentence about models that have no curve, and about bands that are not drawn."""
    drawn = {curve.name for curve in curves}
    missing = [member.name for member in members if member.name not in drawn]
    text = f" No curve: {listed(missing)}." if missing else ""
    if len(curves) > BANDS:
        text += " The intervals are with each evaluation."
    return text


def roc_chart(evaluation: EvaluationFigures) -> Figure | None:
    """The ROC curve of each attack on a model that may reject images."""
    found = evaluation.rejection
    given = () if found is None else tuple(one for one in found.detection if one.fpr)
    if found is None or not given:
        return None
    curves = []
    for one in given:
        name = f"{one.text}, transfer" if one.transfer else one.text
        curves.append(Curve(name, [100 * x for x in one.fpr], one.tpr, one.tpr, one.tpr))
    marks = []
    if found.nominal is not None:
        marks = [Mark(100 * found.nominal, f"threshold set for {100 * found.nominal:g} %")]
    title = "Detection of the classifier's own errors"
    caption = (
        "For every threshold, the share of misclassified adversarial images that would be "
        "rejected, against the share of their clean images that would be. Dotted: a detector that "
        "guesses. A curve below it belongs to an attack whose images look less suspicious than "
        "clean ones."
    )
    chart = Chart(
        title,
        curves,
        "clean images rejected, %",
        "FPR %",
        marks=marks,
        y_title="errors rejected, %",
        sure=False,
        diagonal=True,
    )
    return Figure(title, caption, chart)


def steps_chart(evaluation: EvaluationFigures) -> Figure | None:
    """Accuracy against the steps of each attack on the model itself."""
    return _progress(_on_the_model(evaluation), "steps", "step")


def _on_the_model(evaluation: EvaluationFigures) -> list[AttackCurve]:
    """The curves against steps, without those of attacks on a substitute."""
    elsewhere = {a.text for a in evaluation.attacks if a.transfer}
    return [curve for curve in evaluation.steps_curve if curve.attack not in elsewhere]


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
    uneven = _uneven(curves)
    named = f"{what} of the attack" + (", logarithmic" if uneven else "")
    return Figure(title, caption, Chart(title, curves, named, one, by_tens=uneven))


def _uneven(curves: Sequence[Curve]) -> bool:
    ends = [curve.x[-1] for curve in curves]
    return max(ends) > UNEVEN * max(1.0, min(ends))


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

"""The chart of certified and empirical accuracy against the radius, with the gap between them."""

from __future__ import annotations

from besiege.metrics.values import EvaluationFigures
from besiege.report.charts import Figure
from besiege.report.formats import budget_unit
from besiege.report.plot import Chart, Curve, Mark


def bracket_chart(evaluation: EvaluationFigures) -> Figure | None:
    """What is proved, what attacks left, and the shaded gap in which the truth lies."""
    found, threat = evaluation.certified, evaluation.threat
    if found is None or found.curve is None:
        return None
    given = found.curve
    x, low = list(given.x), list(given.certified)
    title = "Certified and empirical accuracy"
    # Between two sizes the larger one's share is proved, and nothing beyond the last one.
    back = ("value", "low", "high")
    curves = [Curve(f"proved ({found.method})", x, low, low, low, back=back)]
    caption = f"Of {given.count:,} images, the share that is proved to withstand every perturbation"
    caption += " up to a size."
    if given.attacked is not None:
        high = list(given.attacked)
        # The band of this curve is the gap; where a proof is wrong, W30 says so.
        gap = [*map(min, low, high)]
        curves.insert(0, Curve("withstood the attacks", x, high, gap, high, back=("low",)))
        caption += (
            " Above it, the share that no attack broke within that size, at the same sizes. Robust "
            "accuracy lies in the shaded gap: attacks can only lower the upper curve, and better "
            "bounds only raise the lower one."
        )
    marks = [] if threat.eps is None else [Mark(threat.eps, f"budget {threat.eps_text}")]
    named = f"perturbation size, {threat.norm}"
    unit = budget_unit(threat)
    return Figure(title, caption, Chart(title, curves, named, "size", True, unit, marks, banded=1))

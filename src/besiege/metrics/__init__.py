"""Figures and their intervals: pure functions of counts and judged rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from besiege.core.lazy import lazily

if TYPE_CHECKING:
    from besiege.metrics.curves import Curve, against_budget, against_queries, against_steps
    from besiege.metrics.distances import against_cost, quantile
    from besiege.metrics.evidence import Evidence, Trial
    from besiege.metrics.intervals import Rate, clopper_pearson
    from besiege.metrics.optimality import area, envelope, global_optimality, local_optimality
    from besiege.metrics.paired import Difference
    from besiege.metrics.registry import Case, Figure, Row, Section, register
    from besiege.metrics.rows import Rows
    from besiege.metrics.values import EvaluationFigures, RunFigures

__all__ = [
    "Case",
    "Curve",
    "Difference",
    "EvaluationFigures",
    "Evidence",
    "Figure",
    "Rate",
    "Row",
    "Rows",
    "RunFigures",
    "Section",
    "Trial",
    "against_budget",
    "against_cost",
    "against_queries",
    "against_steps",
    "area",
    "clopper_pearson",
    "envelope",
    "global_optimality",
    "local_optimality",
    "quantile",
    "register",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "curves": "Curve against_budget against_queries against_steps",
        "distances": "against_cost quantile",
        "evidence": "Evidence Trial",
        "intervals": "Rate clopper_pearson",
        "optimality": "area envelope global_optimality local_optimality",
        "paired": "Difference",
        "registry": "Case Figure Row Section register",
        "rows": "Rows",
        "values": "EvaluationFigures RunFigures",
    },
)

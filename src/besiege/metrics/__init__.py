"""Figures and how sure they are: pure functions of counts and judged rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from besiege.core.lazy import lazily

if TYPE_CHECKING:
    from besiege.metrics.curves import Curve, against_budget, against_queries, against_steps
    from besiege.metrics.distances import against_cost, quantile
    from besiege.metrics.evidence import Evidence, Trial
    from besiege.metrics.intervals import Rate, clopper_pearson
    from besiege.metrics.optimality import area, envelope, global_optimality, local_optimality
    from besiege.metrics.registry import Case, Figure, Row, Section, register
    from besiege.metrics.rows import Rows
    from besiege.metrics.values import EvaluationFigures, RunFigures

__all__ = [
    "Case",
    "Curve",
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
        "Case": "registry",
        "Curve": "curves",
        "EvaluationFigures": "values",
        "Evidence": "evidence",
        "Figure": "registry",
        "Rate": "intervals",
        "Row": "registry",
        "Rows": "rows",
        "RunFigures": "values",
        "Section": "registry",
        "Trial": "evidence",
        "against_budget": "curves",
        "against_cost": "distances",
        "against_queries": "curves",
        "against_steps": "curves",
        "area": "optimality",
        "clopper_pearson": "intervals",
        "envelope": "optimality",
        "global_optimality": "optimality",
        "local_optimality": "optimality",
        "quantile": "distances",
        "register": "registry",
    },
)

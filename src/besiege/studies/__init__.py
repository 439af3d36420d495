"""Studies: benchmarks with claims that their results answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from besiege.core.lazy import lazily

if TYPE_CHECKING:
    from besiege.studies.answers import Answer, Measured, decide
    from besiege.studies.effects import advantage, least_advantage
    from besiege.studies.study import STUDIES, Claim, Curves, Grid, Study

__all__ = [
    "STUDIES",
    "Answer",
    "Claim",
    "Curves",
    "Grid",
    "Measured",
    "Study",
    "advantage",
    "decide",
    "least_advantage",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "answers": "Answer Measured decide",
        "effects": "advantage least_advantage",
        "study": "STUDIES Claim Curves Grid Study",
    },
)

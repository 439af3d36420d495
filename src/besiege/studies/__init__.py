"""Studies: benchmarks with claims that their results answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from besiege.core.lazy import lazily

if TYPE_CHECKING:
    from besiege.studies.answers import Answer, Measured, decide
    from besiege.studies.choosing import Size
    from besiege.studies.effects import advantage, least_advantage
    from besiege.studies.study import STUDIES, Claim, Study, Table

__all__ = [
    "STUDIES",
    "Answer",
    "Claim",
    "Measured",
    "Size",
    "Study",
    "Table",
    "advantage",
    "decide",
    "least_advantage",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "answers": "Answer Measured decide",
        "choosing": "Size",
        "effects": "advantage least_advantage",
        "study": "STUDIES Claim Study Table",
    },
)

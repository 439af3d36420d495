"""The laws every attack obeys, one function each.

Each is called as ``law(attack, norm, goal)`` and raises an `AssertionError` that names the law,
the attack, the norm, the goal and what was seen. Law 10 (resumable) is about records, not attacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from besiege.testing.accounts import access, honest_accounts
from besiege.testing.boxes import box_equivariant, sound_queries
from besiege.testing.extents import more_never_hurts, scale_and_classes
from besiege.testing.firmness import firm
from besiege.testing.outcomes import feasible, judged, not_idle
from besiege.testing.repetition import repeatable, row_independent
from besiege.testing.trial import Law

__all__ = [
    "LAWS",
    "Law",
    "access",
    "box_equivariant",
    "feasible",
    "firm",
    "honest_accounts",
    "judged",
    "more_never_hurts",
    "not_idle",
    "repeatable",
    "row_independent",
    "scale_and_classes",
    "sound_queries",
]

LAWS: Mapping[str, Law] = MappingProxyType(
    {
        law.name: law
        for law in (
            *(feasible, judged, row_independent, repeatable, honest_accounts, access, not_idle),
            *(more_never_hurts, scale_and_classes, box_equivariant, sound_queries, firm),
        )
    }
)
"""The laws by name, in their order."""

"""The conformance suite: laws every attack obeys, and victims with known distances.

Public, so that an attack written elsewhere can be held to it: `conform` tries all laws, `cases`
feeds ``pytest.parametrize``, and each law is a function in `besiege.testing.laws`. No pytest is
needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from besiege.core.lazy import lazily

if TYPE_CHECKING:
    from besiege.testing import laws as laws
    from besiege.testing import victims as victims
    from besiege.testing.allowances import EXCEPTIONS, FACTORS
    from besiege.testing.laws import LAWS
    from besiege.testing.suite import Case, Conformance, cases, conform, registered

__all__ = [
    "EXCEPTIONS",
    "FACTORS",
    "LAWS",
    "Case",
    "Conformance",
    "cases",
    "conform",
    "registered",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "allowances": "EXCEPTIONS FACTORS",
        "laws": "LAWS",
        "suite": "Case Conformance cases conform registered",
    },
    modules="laws victims",
)

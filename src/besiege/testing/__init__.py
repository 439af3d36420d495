"""The conformance suite: laws every attack obeys, and victims with known distances.

Public, so that an attack written elsewhere can be held to it: `conform` tries all laws, `cases`
feeds ``pytest.parametrize``, and each law is a function in `besiege.testing.laws`. No pytest is
needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_HOMES = {
    "EXCEPTIONS": "allowances",
    "FACTORS": "allowances",
    "LAWS": "laws",
    "Case": "suite",
    "Conformance": "suite",
    "cases": "suite",
    "conform": "suite",
    "registered": "suite",
}
_MODULES = ("laws", "victims")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"besiege.testing.{_HOMES[name]}"), name)
    if name in _MODULES:
        return import_module(f"besiege.testing.{name}")
    raise AttributeError(f"module 'besiege.testing' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])

"""The conformance suites: laws of attacks, victims and layers, and victims with known distances.

Public, so that an attack written elsewhere can be held to it: `conform` tries all laws, `cases`
feeds ``pytest.parametrize``, and each law is a function in `besiege.testing.laws`. `conform_victim`
and `conform_layer` do the same for victims and layers of defenses. No pytest is needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from besiege.testing import laws as laws
    from besiege.testing import victims as victims
    from besiege.testing.allowances import EXCEPTIONS, FACTORS
    from besiege.testing.laws import LAWS
    from besiege.testing.layer_laws import LAYER_LAWS, conform_layer
    from besiege.testing.suite import Case, Conformance, cases, conform, registered
    from besiege.testing.victim_laws import VICTIM_LAWS, conform_victim

__all__ = [
    "EXCEPTIONS",
    "FACTORS",
    "LAWS",
    "LAYER_LAWS",
    "VICTIM_LAWS",
    "Case",
    "Conformance",
    "cases",
    "conform",
    "conform_layer",
    "conform_victim",
    "registered",
]

_HOMES = {
    "EXCEPTIONS": "allowances",
    "FACTORS": "allowances",
    "LAWS": "laws",
    "LAYER_LAWS": "layer_laws",
    "VICTIM_LAWS": "victim_laws",
    "Case": "suite",
    "Conformance": "suite",
    "cases": "suite",
    "conform": "suite",
    "conform_layer": "layer_laws",
    "conform_victim": "victim_laws",
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

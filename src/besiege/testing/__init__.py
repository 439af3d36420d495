"""The conformance suites: laws of attacks, victims and layers, and victims with known distances.

They are public, so that attacks written elsewhere can be tested, too: `conform` tries all laws,
`cases` is meant for ``pytest.parametrize``, and each law is a function in `besiege.testing.laws`.
`conform_victim` and `conform_layer` test victims and layers of defenses. No pytest is needed.
`Robustness` measures models in tests; it is a fixture of the pytest plugin. `impostors` are models
that only look robust, with their true accuracy, to measure evaluations with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from besiege.core.lazy import lazily

if TYPE_CHECKING:
    from besiege.testing import impostors as impostors
    from besiege.testing import laws as laws
    from besiege.testing import victims as victims
    from besiege.testing.allowances import EXCEPTIONS, FACTORS
    from besiege.testing.laws import LAWS
    from besiege.testing.layer_laws import LAYER_LAWS, conform_layer
    from besiege.testing.measuring import Robustness
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
    "Robustness",
    "cases",
    "conform",
    "conform_layer",
    "conform_victim",
    "registered",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "allowances": "EXCEPTIONS FACTORS",
        "laws": "LAWS",
        "layer_laws": "LAYER_LAWS conform_layer",
        "measuring": "Robustness",
        "suite": "Case Conformance cases conform registered",
        "victim_laws": "VICTIM_LAWS conform_victim",
    },
    modules="impostors laws victims",
)

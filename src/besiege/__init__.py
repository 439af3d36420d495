"""besiege measures how robust image classifiers really are.

`evaluate` measures a model and keeps the records; `attack` is for people with tensors in hand;
`Classifier` says how a model takes its images, and `function_model` makes one of a function.
Nothing here imports torch before it is needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from besiege.core.errors import BesiegeError, Finding
from besiege.core.threat import Access, Goal, Norm, Threat

if TYPE_CHECKING:
    from besiege import attacks as attacks
    from besiege import bench as bench
    from besiege import data as data
    from besiege import defenses as defenses
    from besiege import evaluation as evaluation
    from besiege import metrics as metrics
    from besiege import models as models
    from besiege import report as report
    from besiege import testing as testing
    from besiege import training as training
    from besiege.attacks.attack import Attack
    from besiege.bench.single import Evaluation, evaluate
    from besiege.core.siege import Siege, register
    from besiege.core.victim import Victim
    from besiege.evaluation.attacking import AttackResult, attack
    from besiege.models.classifier import Classifier
    from besiege.models.functions import function_model

__version__ = "0.1.0"
__all__ = [
    "Access",
    "Attack",
    "AttackResult",
    "BesiegeError",
    "Classifier",
    "Evaluation",
    "Finding",
    "Goal",
    "Norm",
    "Siege",
    "Threat",
    "Victim",
    "attack",
    "evaluate",
    "function_model",
    "register",
]

_LAZY = {
    "Attack": "besiege.attacks.attack",
    "AttackResult": "besiege.evaluation.attacking",
    "Classifier": "besiege.models.classifier",
    "Evaluation": "besiege.bench.single",
    "Siege": "besiege.core.siege",
    "Victim": "besiege.core.victim",
    "attack": "besiege.evaluation.attacking",
    "evaluate": "besiege.bench.single",
    "function_model": "besiege.models.functions",
    "register": "besiege.core.siege",
}
_ROOMS = {
    "attacks",
    "bench",
    "core",
    "data",
    "defenses",
    "evaluation",
    "metrics",
    "models",
    "report",
    "testing",
    "training",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name in _ROOMS:
        return import_module(f"besiege.{name}")
    raise AttributeError(f"module 'besiege' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS])

"""besiege measures how robust image classifiers really are.

`evaluate` measures a model and keeps the records, and `open` reads them again; `attack` is for
people with tensors in hand; `Classifier` says how a model takes its images, and `function_model`
makes one of a function. Nothing here imports torch before it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from besiege.core.errors import BesiegeError, Finding
from besiege.core.lazy import lazily
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
    from besiege.bench.evaluations import Evaluation, Evaluations
    from besiege.bench.opening import open as open
    from besiege.bench.single import evaluate
    from besiege.core.attack_registry import register
    from besiege.core.siege import Siege
    from besiege.core.victim import Victim
    from besiege.evaluation.attacking import AttackResult, attack
    from besiege.models.classifier import Classifier
    from besiege.models.functions import function_model

__version__ = "0.1.0"
# `open` is not listed: `from besiege import *` must not hide Python's own.
__all__ = [
    "Access",
    "Attack",
    "AttackResult",
    "BesiegeError",
    "Classifier",
    "Evaluation",
    "Evaluations",
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

__getattr__, __dir__ = lazily(
    __name__,
    {
        "attacks.attack": "Attack",
        "bench.evaluations": "Evaluation Evaluations",
        "bench.opening": "open",
        "bench.single": "evaluate",
        "core.errors": "BesiegeError Finding",
        "core.attack_registry": "register",
        "core.siege": "Siege",
        "core.victim": "Victim",
        "core.threat": "Access Goal Norm Threat",
        "evaluation.attacking": "AttackResult attack",
        "models.classifier": "Classifier",
        "models.functions": "function_model",
    },
    modules="attacks bench core data defenses evaluation metrics models report testing training",
)

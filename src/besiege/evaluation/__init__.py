"""Craft and judge: what an attack makes, and what it is worth."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from besiege.evaluation.attacking import AttackResult
    from besiege.evaluation.crafting import Crafted, craft
    from besiege.evaluation.judging import Verdicts, judge

__all__ = ["AttackResult", "Crafted", "Verdicts", "craft", "judge"]

_LAZY = {
    "AttackResult": "attacking",
    "Crafted": "crafting",
    "Verdicts": "judging",
    "craft": "crafting",
    "judge": "judging",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"besiege.evaluation.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'besiege.evaluation' has no attribute '{name}'")

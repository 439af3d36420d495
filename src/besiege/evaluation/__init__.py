"""Craft adversarial images, and judge them on the original victim."""

from __future__ import annotations

from typing import TYPE_CHECKING

from besiege.core.lazy import lazily

if TYPE_CHECKING:
    from besiege.evaluation.attacking import AttackResult
    from besiege.evaluation.crafting import Crafted, craft
    from besiege.evaluation.judging import judge
    from besiege.evaluation.verdicts import Verdicts

__all__ = ["AttackResult", "Crafted", "Verdicts", "craft", "judge"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "attacking": "AttackResult",
        "crafting": "Crafted craft",
        "judging": "judge",
        "verdicts": "Verdicts",
    },
)

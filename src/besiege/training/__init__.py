"""Training: recipes as values, and one `train`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from besiege.training.loop import Epoch, fresh, train
    from besiege.training.recipes import RECIPES, Recipe, natural, pgd_at

__all__ = ["RECIPES", "Epoch", "Recipe", "fresh", "natural", "pgd_at", "train"]

_LAZY = {
    "RECIPES": "recipes",
    "Epoch": "loop",
    "Recipe": "recipes",
    "fresh": "loop",
    "natural": "recipes",
    "pgd_at": "recipes",
    "train": "loop",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"besiege.training.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'besiege.training' has no attribute '{name}'")

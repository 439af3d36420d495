"""Training: recipes as values, and one `train`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from besiege.core.lazy import lazily

if TYPE_CHECKING:
    from besiege.training.loop import Epoch, fresh, train
    from besiege.training.recipes import RECIPES, Recipe, natural, pgd_at

__all__ = ["RECIPES", "Epoch", "Recipe", "fresh", "natural", "pgd_at", "train"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "RECIPES": "recipes",
        "Epoch": "loop",
        "Recipe": "recipes",
        "fresh": "loop",
        "natural": "recipes",
        "pgd_at": "recipes",
        "train": "loop",
    },
)

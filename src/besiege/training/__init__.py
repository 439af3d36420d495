"""Training: recipes as values, one `train`, and `fit` from recipe to files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from besiege.core.lazy import lazily

if TYPE_CHECKING:
    from besiege.training.epochs import Epoch
    from besiege.training.fitting import fit
    from besiege.training.loop import fresh, train
    from besiege.training.recipes import (
        PRESETS,
        RECIPES,
        Recipe,
        natural,
        natural_cifar,
        pgd_at,
        pgd_at_cifar,
        recipe,
    )

__all__ = [
    "PRESETS",
    "RECIPES",
    "Epoch",
    "Recipe",
    "fit",
    "fresh",
    "natural",
    "natural_cifar",
    "pgd_at",
    "pgd_at_cifar",
    "recipe",
    "train",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "PRESETS": "recipes",
        "RECIPES": "recipes",
        "Epoch": "epochs",
        "Recipe": "recipes",
        "fit": "fitting",
        "fresh": "loop",
        "natural": "recipes",
        "natural_cifar": "recipes",
        "pgd_at": "recipes",
        "pgd_at_cifar": "recipes",
        "recipe": "recipes",
        "train": "loop",
    },
)

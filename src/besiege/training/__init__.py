"""Training: recipes as values, one `train`, and `fit` from recipe to files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from besiege.core.lazy import lazily

if TYPE_CHECKING:
    from besiege.training.detectors import fit_detector
    from besiege.training.fitting import fit
    from besiege.training.history import Epoch
    from besiege.training.loop import fresh, train
    from besiege.training.objectives import Objective, Step
    from besiege.training.recipes import RECIPES, Recipe, recipe
    from besiege.training.shipped import natural, natural_cifar, pgd_at, pgd_at_cifar
    from besiege.training.stealing import fit_substitute
    from besiege.training.substitutes import Stolen, steal

__all__ = [
    "RECIPES",
    "Epoch",
    "Objective",
    "Recipe",
    "Step",
    "Stolen",
    "fit",
    "fit_detector",
    "fit_substitute",
    "fresh",
    "natural",
    "natural_cifar",
    "pgd_at",
    "pgd_at_cifar",
    "recipe",
    "steal",
    "train",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "detectors": "fit_detector",
        "history": "Epoch",
        "fitting": "fit",
        "loop": "fresh train",
        "objectives": "Objective Step",
        "recipes": "RECIPES Recipe recipe",
        "shipped": "natural natural_cifar pgd_at pgd_at_cifar",
        "stealing": "fit_substitute",
        "substitutes": "Stolen steal",
    },
)

"""Recipes: how a model is trained, as values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from besiege.attacks.ascent import pgd
from besiege.attacks.attack import Attack
from besiege.attacks.pieces import Constant
from besiege.core.errors import UnknownNameError, near
from besiege.core.threat import Threat


@dataclass(frozen=True)
class Recipe:
    """How to train.

    Parameters
    ----------
    name : str
        What cards and reports call it.
    epochs, batch : int
        Passes over the data, and images per step.
    optimiser : str
        'adam', or 'sgd' with Nesterov momentum 0.9 and a learning rate that falls linearly to 0.
    rate, decay : float
        Learning rate and weight decay.
    attack : Attack, optional
        What makes the training images adversarial; none trains naturally.
    threat : Threat, optional
        Within what.
    ramp : int
        Epochs over which the budget grows to its full size.
    clean : float
        Weight of the clean images' loss beside the adversarial one: 0 is Madry's training.
    """

    name: str
    epochs: int = 40
    batch: int = 64
    optimiser: Literal["adam", "sgd"] = "adam"
    rate: float = 1e-3
    decay: float = 0.0
    attack: Attack | None = None
    threat: Threat | None = None
    ramp: int = 0
    clean: float = 0.0

    def __post_init__(self) -> None:
        if (self.attack is None) != (self.threat is None):
            raise ValueError("an adversarial recipe needs both an attack and a threat")
        if self.threat is not None and self.threat.eps is None:
            raise ValueError(f"the threat '{self.threat}' has no budget to train for")

    def within(self, threat: str | Threat) -> Recipe:
        """The recipe for another threat."""
        return replace(self, threat=Threat.parse(threat))


natural = Recipe("natural")

pgd_at = Recipe(
    "pgd-at",
    # Madry et al. 2018: 7 steps of a quarter of the budget from a random start.
    attack=replace(pgd, steps=7, schedule=Constant(0.25)),
    threat=Threat.parse("linf:8/255"),
    ramp=10,
)

RECIPES = {recipe.name: recipe for recipe in (natural, pgd_at)}


def recipe(name: str | Recipe) -> Recipe:
    """The recipe of a name."""
    if isinstance(name, Recipe):
        return name
    if name not in RECIPES:
        raise UnknownNameError(f"no recipe is called '{name}': {near(name, RECIPES)}")
    return RECIPES[name]

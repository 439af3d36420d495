"""`Recipe`: how a model is trained, as a frozen value with a text form that reads back."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from besiege.attacks.ascent import pgd
from besiege.attacks.attack import LANGUAGE, Attack, parse
from besiege.attacks.pieces import Constant
from besiege.core.errors import InputError, UnknownNameError, near
from besiege.core.fields import check_fields, number, of_kind, one_of, whole_number
from besiege.core.text import read
from besiege.core.threat import Threat


@dataclass(frozen=True)
class Recipe:
    """How to train.

    Parameters
    ----------
    name : str
        Name in cards and reports.
    epochs, batch : int
        Passes over the data, and images per step.
    optimiser : str
        'adam', or 'sgd' with Nesterov momentum 0.9.
    rate, decay : float
        Highest learning rate, and weight decay.
    attack : Attack, optional
        Attack that makes the training images adversarial; natural training without one.
    threat : Threat, optional
        Threat of that attack.
    ramp : int
        Epochs over which the budget grows to its full size.
    clean : float
        Weight of the clean images' loss beside the adversarial one: 0 is Madry's training.
    schedule : str
        Learning rate after the warm-up: 'constant', 'linear' or 'cosine' (both down to 0); 'auto'
        is constant for adam and linear for sgd.
    warmup : float
        Share of all steps over which the rate first rises.
    decayed : str
        Parameters with weight decay: 'all', or only the 'weights' of convolutions and linear
        layers, without biases and batch norm.
    smoothing : float
        Label smoothing of the training loss; attacks always use the labels themselves.
    average : float
        Decay per step of a moving average of weights and batch-norm statistics, which is the final
        model; 0 for none. The attack uses the weights themselves.
    crop, flip : int, bool
        Random shifts of up to `crop` pixels over a black border, and random mirroring.
    precision : str
        'bfloat16' computes forward passes in mixed precision; weights and losses stay float32.
    early, early_share : Attack, float
        A cheaper attack for the first epochs, and their share of all epochs.
    held_out : int
        Number of training images that are not trained on. The epoch with the best accuracy on
        them, under the attack if there is one, is kept.
    whole : bool
        Leave out the last batch of an epoch if it is smaller, as fixed shapes are faster on a GPU;
        each epoch leaves out other images.

    Examples
    --------
    >>> str(replace(pgd_at, epochs=60).within("linf:0.15"))
    "pgd-at(epochs=60, threat='linf:0.15')"
    """

    name: str
    epochs: int = whole_number(40)
    batch: int = whole_number(64)
    optimiser: Literal["adam", "sgd"] = one_of("adam", "sgd")
    rate: float = number(1e-3)
    decay: float = number(0.0)
    attack: Attack | None = of_kind(None, Attack)
    threat: Threat | None = of_kind(None, Threat)
    ramp: int = whole_number(0, 0)
    clean: float = number(0.0, most=1)
    schedule: Literal["auto", "constant", "linear", "cosine"] = one_of(
        "auto", "constant", "linear", "cosine"
    )
    warmup: float = number(0.0, below=1)
    decayed: Literal["all", "weights"] = one_of("all", "weights")
    smoothing: float = number(0.0, below=1)
    average: float = number(0.0, below=1)
    crop: int = whole_number(0, 0)
    flip: bool = False
    precision: Literal["float32", "bfloat16"] = one_of("float32", "bfloat16")
    early: Attack | None = of_kind(None, Attack)
    early_share: float = number(0.0, most=1)
    held_out: int = whole_number(0, 0)
    whole: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.attack is None) != (self.threat is None):
            raise ValueError("an adversarial recipe needs both an attack and a threat")
        if self.threat is not None and self.threat.eps is None:
            raise ValueError(f"the threat '{self.threat}' has no budget to train for")
        if self.early is not None and self.attack is None:
            raise ValueError("an early attack needs an attack that follows it")

    def within(self, threat: str | Threat) -> Recipe:
        """The recipe for another threat."""
        return replace(self, threat=Threat.parse(threat))

    def attack_at(self, epoch: int) -> Attack | None:
        """The attack of an epoch, counted from 1."""
        early = epoch <= round(self.early_share * self.epochs)
        return self.early if early and self.early is not None else self.attack

    def radius_at(self, epoch: int) -> float:
        """The budget of an epoch, counted from 1."""
        full = 0.0 if self.threat is None else self.threat.radius
        return full * min(1.0, epoch / max(self.ramp, 1))

    def rate_at(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0, out of `steps`."""
        rise = self.warmup * steps
        if step < rise:
            return self.rate * (step + 1) / (rise + 1)
        schedule = self.schedule
        if schedule == "constant" or (schedule == "auto" and self.optimiser == "adam"):
            return self.rate
        gone = (step - rise) / (steps - rise)
        if schedule == "cosine":
            return self.rate * 0.5 * (1.0 + math.cos(math.pi * gone))
        return self.rate * max(0.0, 1 - gone)

    def settings(self) -> dict[str, Any]:
        """Every field as text or number, as cards and checkpoints store it."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        texts = {k: str(v) for k, v in given.items() if isinstance(v, (Attack, Threat))}
        return given | texts

    def __str__(self) -> str:
        usual = RECIPES.get(self.name, Recipe(self.name)).settings()
        shown = [
            f"{name}={value if name in ('attack', 'early') else repr(value)}"
            for name, value in self.settings().items()
            if value != usual[name]
        ]
        return f"{self.name}({', '.join(shown)})" if shown else self.name


natural = Recipe("natural")

pgd_at = Recipe(
    "pgd-at",
    # Madry et al. 2018: 7 steps of a quarter of the budget from a random start.
    attack=replace(pgd, steps=7, schedule=Constant(0.25)),
    threat=Threat.parse("linf:8/255"),
    ramp=10,
)

# For 32x32 colour images and networks with batch norm.
natural_cifar = Recipe(
    "natural-cifar",
    epochs=60,
    batch=256,
    optimiser="sgd",
    rate=0.2,
    decay=5e-4,
    warmup=0.1,
    decayed="weights",
    crop=4,
    flip=True,
    precision="bfloat16",
    held_out=1000,
    whole=True,
)
pgd_at_cifar = replace(
    natural_cifar,
    name="pgd-at-cifar",
    epochs=90,
    attack=replace(pgd, steps=10, schedule=Constant(0.25)),
    threat=Threat.parse("linf:8/255"),
    # The moving average removes most of the overfitting of late epochs (Rice et al. 2020).
    average=0.999,
    smoothing=0.1,
    early=replace(pgd, steps=3, schedule=Constant(0.5)),
    early_share=0.3,
)

RECIPES = {recipe.name: recipe for recipe in (natural, pgd_at, natural_cifar, pgd_at_cifar)}
# A data set's own variant of a recipe, used when the recipe is given by name.
PRESETS = {"cifar10": {"natural": natural_cifar, "pgd-at": pgd_at_cifar}}


def recipe(source: str | Recipe, data: str | None = None, **changes: Any) -> Recipe:
    """The recipe that a text names, with some of its fields changed.

    Parameters
    ----------
    source : str or Recipe
        A name, or a name with changes: ``pgd-at(epochs=30, threat='linf:0.1')``.
    data : str, optional
        Name of the data set, which may have its own variant of the recipe.
    **changes
        Fields and their values; attacks and threats may be given as text.

    Examples
    --------
    >>> recipe("pgd-at(epochs=30)", threat="linf:0.1").epochs
    30
    >>> recipe("pgd-at", data="cifar10").name
    'pgd-at-cifar'
    """
    if isinstance(source, Recipe):
        return _changed(source, changes)
    match = re.fullmatch(r"\s*([\w.-]+)\s*(?:\((.*)\))?\s*", source, re.DOTALL)
    name = match[1] if match else source
    known = {**RECIPES, **PRESETS.get(data or "", {})}
    if match is None or name not in known:
        raise UnknownNameError(f"no recipe is called '{name}': {near(name, RECIPES)}")
    return _changed(known[name], {**_arguments(match[2] or "", source), **changes})


def _arguments(inside: str, source: str) -> dict[str, Any]:
    def call(name: str, args: list[Any], given: dict[str, Any]) -> Any:
        if name != "recipe":
            return LANGUAGE.make(name, args, given)
        if args:
            raise InputError(f"'{source}' has values without names: write epochs=30")
        return given

    return dict(read(f"recipe({inside})", call))


def _changed(plan: Recipe, changes: dict[str, Any]) -> Recipe:
    known = [f.name for f in fields(Recipe) if f.name != "name"]
    for field in changes:
        if field not in known:
            raise InputError(f"a recipe has no field '{field}': {near(field, known)}")
    given = dict(changes)
    for field, read_text in (("attack", parse), ("early", parse), ("threat", Threat.parse)):
        if isinstance(given.get(field), str):
            given[field] = read_text(given[field])
    try:
        return replace(plan, **given)
    except (TypeError, ValueError) as problem:
        raise InputError(f"the recipe '{plan.name}' cannot be changed: {problem}") from None

"""`Recipe`: how a model is trained, as a frozen value with a text form that reads back."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Literal

from torch import Tensor

from besiege.attacks.attack import LANGUAGE as ATTACK_LANGUAGE
from besiege.attacks.attack import Attack, parse
from besiege.core.dice import Dice
from besiege.core.errors import BesiegeError, InputError, UnknownNameError, near
from besiege.core.fields import check_fields, checked, number, of_kind, one_of, whole_number
from besiege.core.registry import Registry
from besiege.core.text import Call, read_each, short
from besiege.core.threat import Threat
from besiege.core.vocabulary import Vocabulary
from besiege.defenses.layers import LANGUAGE as LAYER_LANGUAGE
from besiege.defenses.layers import Layer
from besiege.training import objectives, radii, updates
from besiege.training.losses import CrossEntropy
from besiege.training.objectives import Objective
from besiege.training.radii import TrainingRadius, Whole
from besiege.training.updates import Plain, Update

RECIPES: Registry[Recipe] = Registry("recipe", ("besiege.training.shipped",))


def _all_are(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple) and all(isinstance(one, kind) for one in value)


def _are_shares(value: Any) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(v, (int, float)) and 0 < v < 1 for v in value
    )


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
    objective : Objective
        The loss: ``cross_entropy``, ``trades(beta=6)`` and others.
    radius : TrainingRadius
        The budget of each image: ``whole``, or ``half_normal(sigma, cap)``.
    sources : tuple of str
        Static models. For every batch one of them or the model itself is drawn, and the images are
        crafted on it.
    update : Update
        How a batch changes the weights: ``plain``, ``replay(m=8)`` or ``perturbed(gamma=0.01)``.
    layers : tuple of Layer
        Layers in front of the model while it is trained and attacked.
    crafting : str
        Mode of batch norm and dropout while images are crafted: in 'eval' the running statistics
        are used and stay; in 'train' the batch's are, and each step of the attack updates them.
    away_from : str
        The class that an untargeted attack leaves: the 'label', or the 'prediction' of the model
        it is crafted on, so that crafted images do not reveal the label.
    guard : float
        Largest fall of the accuracy under PGD-5 on a fixed batch of training images, from its best
        epoch; a larger one ends the training, which keeps the weights before. 0 for no guard.
    ramp : int
        Epochs over which the budget grows to its full size.
    schedule : str
        Learning rate after the warm-up: 'constant', 'linear' or 'cosine' (both down to 0), or
        'drops', a tenth after each of `drops`; 'auto' is constant for adam and linear for sgd.
    drops : tuple of float
        Shares of the training after which the rate falls to a tenth.
    warmup : float
        Share of all steps over which the rate first rises.
    decayed : str
        Parameters with weight decay: 'all', or only the 'weights' of convolutions and linear
        layers, without biases and batch norm.
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
        them is kept: under the attack if there is one, and under PGD-5 if that is a single step.
    whole : bool
        Leave out the last batch of an epoch if it is smaller, as fixed shapes are faster on a GPU;
        each epoch leaves out other images.

    Examples
    --------
    >>> str(recipe("pgd-at", epochs=60).within("linf:0.15"))
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
    objective: Objective = of_kind(CrossEntropy(), Objective)
    radius: TrainingRadius = of_kind(Whole(), TrainingRadius, "radius")
    sources: tuple[str, ...] = checked((), _all_are(str), "but the names of models are needed")
    update: Update = of_kind(Plain(), Update)
    layers: tuple[Layer, ...] = checked((), _all_are(Layer), "but a tuple of layers is needed")
    crafting: Literal["eval", "train"] = one_of("eval", "train")
    away_from: Literal["label", "prediction"] = one_of("label", "prediction")
    guard: float = number(0.0, most=1)
    ramp: int = whole_number(0, 0)
    schedule: Literal["auto", "constant", "linear", "cosine", "drops"] = one_of(
        "auto", "constant", "linear", "cosine", "drops"
    )
    drops: tuple[float, ...] = checked((), _are_shares, "but shares between 0 and 1 are needed")
    warmup: float = number(0.0, below=1)
    decayed: Literal["all", "weights"] = one_of("all", "weights")
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
        crafts = self.attack is not None or not self.update.crafts
        if self.objective.proves:
            self._must_prove(crafts)
        if self.attack is not None and self.threat is None:
            raise ValueError("an adversarial recipe needs both an attack and a threat")
        if self.threat is not None and not (crafts or self.objective.proves):
            raise ValueError("an adversarial recipe needs both an attack and a threat")
        if self.attack is not None and not self.update.crafts:
            raise ValueError(f"the update '{self.update}' crafts its images itself: attack=None")
        if self.threat is not None and self.threat.eps is None:
            raise ValueError(f"the threat '{self.threat}' has no budget to train for")
        if self.early is not None and self.attack is None:
            raise ValueError("an early attack needs an attack that follows it")
        if self.objective.needs_attack and not crafts:
            raise ValueError(
                f"the objective '{self.objective}' compares clean with adversarial images: give "
                "an attack and a threat, such as attack=pgd(steps=7), threat='linf:8/255'"
            )
        if self.radius != Whole() and self.attack is None:
            raise ValueError(
                f"the radius '{self.radius}' is that of an attack's images: give an attack and a "
                "threat"
            )
        if self.sources and self.attack is None:
            raise ValueError("static sources are models to craft on: give an attack and a threat")
        if self.guard and self.threat is None:
            raise ValueError("the guard measures accuracy under attack: give a threat")
        for attack in (self.attack, self.early):
            if attack is not None and attack.oblivious:
                raise ValueError(f"'{attack}' ignores the model in training: leave out oblivious")
        if self.objective.reads_slope and not self.update.crafts:
            raise ValueError(
                f"'{self.objective}' takes the gradient of images that '{self.update}' changes "
                "itself: combine it with update=plain"
            )
        if self.objective.noises and (self.sources or not self.update.crafts):
            raise ValueError(
                f"'{self.objective}' keeps the noise that its attack saw, on the model itself: "
                "combine it with update=plain and without sources"
            )
        if not self.objective.classifies and (self.threat or self.held_out or self.layers):
            raise ValueError(
                f"'{self.objective}' trains no classifier, which could be attacked, chosen by its "
                "accuracy or put behind layers: leave out attack, threat, held_out and layers"
            )
        self.update.check(self.threat)
        if self.threat is not None:
            self.radius.check(self.threat.radius)

    def _must_prove(self, crafts: bool) -> None:
        """Refuse what does not go with bounds."""
        if self.threat is None or crafts:
            raise ValueError(
                f"'{self.objective}' trains against bounds within a budget, not against an attack: "
                "give a threat, and leave out attack and replay"
            )
        if self.ramp or self.layers or self.held_out:
            raise ValueError(
                f"'{self.objective}' has a growing budget of its own (calm, ramp), its bounds are "
                "those of the network alone, and an epoch that attacks on held-out images choose "
                "may have no proofs: leave out ramp, layers and held_out"
            )

    def within(self, threat: str | Threat) -> Recipe:
        """The recipe for another threat."""
        return replace(self, threat=Threat.parse(threat))

    def attack_at(self, epoch: int) -> Attack | None:
        """The attack of an epoch, counted from 1."""
        early = epoch <= round(self.early_share * self.epochs)
        return self.early if early and self.early is not None else self.attack

    def share_at(self, epoch: int) -> float:
        """The share of the budget in an epoch, counted from 1."""
        return min(1.0, epoch / max(self.ramp, 1))

    def radius_at(self, epoch: int) -> float:
        """The largest budget of an epoch, counted from 1."""
        full = 0.0 if self.threat is None else self.threat.radius
        return full * self.share_at(epoch)

    def radii_at(self, epoch: int, dice: Dice) -> Tensor:
        """The budget of every image in an epoch, counted from 1."""
        assert self.threat is not None
        drawn = self.radius(self.threat.radius, dice) * self.share_at(epoch)
        return drawn.float()  # as `ball` rounds the budget of a threat

    def rate_at(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0, out of `steps`."""
        rise = self.warmup * steps
        if step < rise:
            return self.rate * (step + 1) / (rise + 1)
        schedule = self.schedule
        if schedule == "constant" or (schedule == "auto" and self.optimiser == "adam"):
            return self.rate
        if schedule == "drops":
            return float(self.rate * 0.1 ** sum(step >= share * steps for share in self.drops))
        gone = (step - rise) / (steps - rise)
        if schedule == "cosine":
            return self.rate * 0.5 * (1.0 + math.cos(math.pi * gone))
        return self.rate * max(0.0, 1 - gone)

    def settings(self) -> dict[str, Any]:
        """Every field as text or number, as cards and checkpoints store it."""
        return {f.name: _plain(f.name, getattr(self, f.name)) for f in fields(self)}

    def __str__(self) -> str:
        usual = RECIPES.get(self.name) if self.name in RECIPES else Recipe(self.name)
        shown = [
            f"{f.name}={_text(f.name, value)}"
            for f in fields(self)
            if (value := getattr(self, f.name)) != getattr(usual, f.name)
        ]
        return f"{self.name}({', '.join(shown)})" if shown else self.name


# The language of each field whose values have names.
_LANGUAGES: Mapping[str, Vocabulary] = MappingProxyType(
    {
        "attack": ATTACK_LANGUAGE,
        "early": ATTACK_LANGUAGE,
        "objective": objectives.LANGUAGE,
        "radius": radii.LANGUAGE,
        "update": updates.LANGUAGE,
        "layers": LAYER_LANGUAGE,
    }
)


def _plain(name: str, value: Any) -> Any:
    """The value of a field as JSON can hold it."""
    if name in _LANGUAGES or isinstance(value, Threat):
        return None if value is None else _text(name, value).strip("'")
    return list(value) if isinstance(value, tuple) else value


def _text(name: str, value: Any) -> str:
    """The value of a field as a recipe's text has it."""
    if value is None or name not in _LANGUAGES:
        return repr(str(value)) if isinstance(value, Threat) else repr(value)
    return _LANGUAGES[name].text(value)


def recipe(source: str | Recipe, data: str | None = None, **changes: Any) -> Recipe:
    """The recipe that a text names, with some of its fields changed.

    Parameters
    ----------
    source : str or Recipe
        A name, or a name with changes: ``pgd-at(epochs=30, threat='linf:0.1')``.
    data : str, optional
        Name of the data set, which may have its own variant of the recipe.
    **changes
        Fields and their values; those that have a text form may be given as text.

    Examples
    --------
    >>> recipe("pgd-at(epochs=30)", threat="linf:0.1").epochs
    30
    >>> recipe("pgd-at", data="cifar10").name
    'pgd-at@cifar10'
    """
    if isinstance(source, Recipe):
        return _changed(source, changes)
    match = re.fullmatch(r"\s*([\w.@-]+)\s*(?:\((.*)\))?\s*", source, re.DOTALL)
    if match is None:
        close = near(source, RECIPES.names())
        raise UnknownNameError(f"no recipe is called '{short(source)}': {close}")
    plan = _find(match[1], data)
    return _changed(plan, {**read_each(match[2] or "", _call), **changes})


def must_read_back(plan: Recipe) -> None:
    """Refuse a recipe whose text gives another one: files would not say how they were made."""
    try:
        if recipe(str(plan)) == plan:
            return
        reason = "it gives another recipe"
    except BesiegeError as problem:
        reason = str(problem)
    raise InputError(
        f"the recipe '{short(str(plan), 200)}' cannot be written to a file, because its text "
        f"cannot be read back ({reason}): register its parts, such as @objective('mine')"
    )


# Names that cards of models shipped before have.
_EARLIER = MappingProxyType({"natural-cifar": "natural@cifar10", "pgd-at-cifar": "pgd-at@cifar10"})


def _find(name: str, data: str | None) -> Recipe:
    """The recipe of a name, in the variant of a data set where it has one."""
    name = _EARLIER.get(name, name)
    joint = "-" if "@" in name else "@"  # nat@deepsec-mnist, pgd-at@mnist
    if data is not None and f"{name}{joint}{data}" in RECIPES:
        return RECIPES.get(f"{name}{joint}{data}")
    if name not in RECIPES:
        variants = [
            known for known in RECIPES.names() if known.startswith((name + "@", name + "-"))
        ]
        if variants:
            raise InputError(
                f"the recipe '{name}' has settings for some data sets only: write "
                f"{' or '.join(variants)}, with your own values in parentheses"
            )
    return RECIPES.get(name)


def _call(name: str) -> Call | None:
    return _LANGUAGES[name].make if name in _LANGUAGES else None


def _changed(plan: Recipe, changes: dict[str, Any]) -> Recipe:
    known = [f.name for f in fields(Recipe) if f.name != "name"]
    for field in changes:
        if field not in known:
            raise InputError(f"a recipe has no field '{field}': {near(field, known)}")
    given = {field: _read(field, value) for field, value in changes.items()}
    try:
        return replace(plan, **given)
    except (TypeError, ValueError) as problem:
        raise InputError(f"the recipe '{plan.name}' cannot be changed: {problem}") from None


def _read(field: str, value: Any) -> Any:
    """The value of a field, from text where it has a text form."""
    if field == "threat":
        return Threat.parse(value) if isinstance(value, str) else value
    if field == "sources":
        return (value,) if isinstance(value, str) else value
    if isinstance(value, str) and field in ("attack", "early"):
        return parse(value)
    if isinstance(value, str) and field in _LANGUAGES:
        value = _LANGUAGES[field].read(value)
    return (value,) if field == "layers" and isinstance(value, Layer) else value

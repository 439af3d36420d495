"""Whether data, model and recipe fit together, before any work."""

from __future__ import annotations

import torch

from besiege.attacks.attack import Attack
from besiege.core.dice import Dice
from besiege.core.errors import GradientError, InputError
from besiege.core.oracle import Oracle
from besiege.core.siege import must_have_cells, must_take_codes
from besiege.core.threat import Goal
from besiege.core.victim import Victim
from besiege.data.dataset import Data
from besiege.defenses.defended import Defended
from besiege.defenses.layers import Layer
from besiege.models.classifier import Classifier
from besiege.models.denoising import Denoise
from besiege.training.bounded import followed
from besiege.training.catalogue import CATALOGUE
from besiege.training.inner import plain as is_plain
from besiege.training.recipes import Recipe


def must_fit(
    victim: Classifier, data: Data, plan: Recipe, layers: tuple[Layer, ...] | None = None
) -> None:
    """Refuse data, a model and a recipe that do not fit together, before any work.

    The layers in front of the model are by default those of the recipe.
    """
    if len(data) == 0:
        raise InputError("the training data are empty")
    if plan.held_out >= len(data):
        raise InputError(
            f"the recipe holds out {plan.held_out} images of {len(data)}: no images are left to "
            "train on, so choose a smaller held_out"
        )
    layers = plan.layers if layers is None else layers
    if not plan.objective.classifies:
        _must_answer(victim, data, plan, layers)
        return
    classes = classes_of(Defended(victim, *layers) if layers else victim, data)
    low, high = int(data.labels.min()), int(data.labels.max())
    if low < 0 or high >= classes:
        raise InputError(
            f"the labels of {data.name} go from {low} to {high}, but the model has {classes} "
            f"classes: it needs labels from 0 to {classes - 1}"
        )
    victim.classes = classes
    _must_be_attackable(victim, layers, classes, plan)
    if plan.objective.proves:
        _must_be_bounded(victim, layers, data, plan)
    _must_have_what_is_needed(victim, layers, data, plan)
    if plan.objective.needs_members:
        plan.objective.check(classes, _members(victim, layers, data))


def _must_be_attackable(
    victim: Classifier, layers: tuple[Layer, ...], classes: int, plan: Recipe
) -> None:
    """Refuse an attack that does not fit the threat or the model."""
    threat = plan.threat
    if threat is None:
        return
    stochastic = victim.stochastic or any(layer.stochastic for layer in layers)
    if plan.objective.noises and not stochastic:
        raise InputError(
            f"the objective '{plan.objective}' keeps the noise of a layer while it crafts, and the "
            "model has none: write layers=gaussian_noise(sigma=0.25)"
        )
    front = Defended(victim, *layers) if layers else victim
    for attack in filter(None, (plan.attack, plan.early)):
        must_take(front, attack)
        if plan.objective.noises and (not is_plain(attack) or victim.grid is not None):
            raise InputError(
                f"the attack '{attack}' would draw new noise in every step, and the objective "
                f"'{plan.objective}' keeps it: write a plain ascent, such as pgd(steps=4)"
            )
        if threat.norm not in attack.norms:
            known = ", ".join(sorted(map(str, attack.norms)))
            raise InputError(
                f"the attack '{attack}' of the recipe works in {known}, but its threat is "
                f"'{threat}': give another threat or another attack"
            )
        if threat.goal not in attack.goals:
            goals = ", ".join(sorted(map(str, attack.goals)))
            raise InputError(
                f"the attack '{attack}' of the recipe has the goals {goals}, but its threat is "
                f"'{threat}': give another threat or another attack"
            )
        if attack.needs_substitute:
            raise InputError(
                f"the attack '{attack}' of the recipe needs a substitute, and a training has none: "
                "give another attack"
            )
        if stochastic and attack.draws == 1 and not is_plain(attack):
            raise InputError(
                f"the attack '{attack}' of the recipe needs several draws of a stochastic model: "
                f"write averaged({attack}, 4), or a plain ascent such as pgd"
            )
    if threat.goal is Goal.GIVEN and threat.target is None:
        raise InputError(
            f"the threat '{threat}' leaves the targets to the caller, and a training has none: "
            "write targeted:random, targeted:least-likely or targeted:class=0"
        )
    if threat.target is not None and threat.target >= classes:
        raise InputError(
            f"the threat '{threat}' aims at class {threat.target}, but the model has {classes} "
            f"classes: choose one from 0 to {classes - 1}"
        )


def must_take(victim: Victim, attack: Attack) -> None:
    """Refuse an attack that does not send images such as this model takes."""
    if attack.sends_codes:
        must_take_codes(victim, f"the attack '{attack}' of the recipe")
    if attack.needs_cells:
        must_have_cells(victim, f"the attack '{attack}' of the recipe")


def _must_be_bounded(
    victim: Classifier, layers: tuple[Layer, ...], data: Data, plan: Recipe
) -> None:
    """Refuse a network that has no bounds, or layers in front of it."""
    assert plan.threat is not None, "the recipe has checked it"
    if layers:
        raise InputError(
            f"'{plan.objective}' bounds the network alone, and this one stands behind "
            f"{written(layers)}: give the network without layers"
        )
    followed(victim, plan.threat, data.images[:8].to(victim.device))


def _must_answer(victim: Classifier, data: Data, plan: Recipe, layers: tuple[Layer, ...]) -> None:
    """Refuse a network that is no classifier and whose answers the objective cannot use."""
    if layers:
        raise InputError(
            f"'{plan.objective}' trains the network of a layer, and this one stands behind "
            f"{written(layers)}: give the network by itself"
        )
    some, ids = data.images[:8].to(victim.device), data.ids[:8].to(victim.device)
    with victim.held(), torch.no_grad():
        plan.objective.check_answer(some, victim.answer(some, Dice.throw(0, ids)))


def _must_have_what_is_needed(
    victim: Classifier, layers: tuple[Layer, ...], data: Data, plan: Recipe
) -> None:
    """Refuse a network without that part of a defense which is not the recipe's."""
    family = plan.name.partition("@")[0]
    blocks = any(isinstance(part, Denoise) for part in victim.module.modules())
    there = {"rse": victim.stochastic, "denoise": blocks}.get(family, True)
    if not there:
        network = CATALOGUE[family].network.replace("{}", "resnet20")
        raise InputError(
            f"the recipe '{plan.name}' is natural or adversarial training of a network that is "
            f"itself the defense, and this one is not: choose an architecture such as {network}"
        )
    if plan.objective.fine_tunes:
        front = Defended(victim, *layers) if layers else victim
        some = data.subset(min(256, len(data)), 0)
        x, y, ids = (t.to(victim.device) for t in (some.images, some.labels, some.ids))
        with front.held():
            answer = Oracle(front).logits(x, Dice.throw(0, ids) if front.stochastic else None)
        if float((answer.argmax(1) == y).double().mean()) < 2 / answer.shape[1]:
            raise InputError(
                f"the objective '{plan.objective}' fine-tunes a trained network, and this one "
                "answers at random: start from weights, such as --arch zoo:NAME or ARCH:FILE"
            )


def _members(victim: Classifier, layers: tuple[Layer, ...], data: Data) -> int:
    """The number of members of a joint network; an error names `joint` if it is none."""
    x, ids = data.images[:8].to(victim.device), data.ids[:8].to(victim.device)
    with victim.held(), torch.no_grad():
        for layer in layers:
            x = layer(x, victim.box, Dice.throw(0, ids))
        return len(victim.each(x, Dice.throw(0, ids)))


def classes_of(victim: Victim, data: Data) -> int:
    """The number of classes that a victim answers for images of these data."""
    some, ids = data.images[:8].to(victim.device), data.ids[:8].to(victim.device)
    with victim.held():
        drawn = Dice.throw(0, ids) if victim.stochastic else None
        return Oracle(victim).logits(some, drawn).shape[1]


def has_gradient(victim: Victim, data: Data) -> bool:
    """Whether the answers of a model to some images depend differentiably on them."""
    some, ids = data.images[:8].to(victim.device), data.ids[:8].to(victim.device)
    dice = Dice.throw(0, ids) if victim.stochastic else None
    with victim.held():
        try:
            Oracle(victim).gradient(some, lambda logits, _: logits.amax(1), dice=dice)
        except GradientError:
            return False
    return True


def written(layers: tuple[Layer, ...]) -> str:
    """Layers as the text of a model has them."""
    return "+".join(map(str, layers))

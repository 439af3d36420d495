"""Models to craft on in place of a victim: checks that they fit, and results of crafting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from besiege.core.dice import Dice
from besiege.core.errors import AttackError, InputError, UndefendedError, VictimError
from besiege.core.oracle import Access, Oracle, full_precision
from besiege.core.victim import Victim
from besiege.defenses.defended import Defended, load
from besiege.evaluation.crafting import Crafted
from besiege.models.classifier import Classifier

Model = str | nn.Module | Victim


class OnGrid(Victim):
    """A victim with the grid of another one."""

    def __init__(self, victim: Victim, grid: float | None) -> None:
        self.victim = self.adopt(Defended(victim))
        self.name, self.grid = victim.name, grid

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """The victim's logits."""
        return self.victim(x, dice)

    @property
    def apart(self) -> list[tuple[float, Victim]] | None:
        """Weights and members of an ensemble whose losses are fused."""
        return self.victim.apart

    def fused(self, answers: Sequence[Tensor]) -> Tensor:
        """One answer from those of an ensemble's members."""
        return self.victim.fused(answers)

    def digest(self) -> str:
        """SHA-256 of the victim's digest and the grid, which changes the crafted images."""
        return sha256(f"{self.victim.digest()} {self.grid!r}".encode()).hexdigest()


def read_model(model: Model, device: torch.device) -> Victim:
    """A model from its text, on a device, or from a module."""
    return load(model, str(device)) if isinstance(model, str) else Classifier.of(model)


def in_place_of(victim: Victim, substitute: Victim, images: Tensor, classes: int | None) -> Victim:
    """The substitute with the victim's grid.

    A substitute with another box or other classes is refused before the victim is queried.
    `images` are some of the victim's images, `classes` its number of classes, if known.
    """
    if substitute.access is not Access.GRADIENT:
        raise InputError(
            f"the substitute '{substitute}' grants {substitute.access} access only, but attacks "
            "need its gradients: use a model of your own"
        )
    if substitute.stochastic:
        raise InputError(f"the substitute '{substitute}' is stochastic: use it without that layer")
    if substitute.box != victim.box:
        (low, high), (other, top) = victim.box, substitute.box
        std = (high - low) / (top - other)
        raise InputError(
            f"the substitute takes pixels in {substitute.box}, but the victim in {victim.box}: "
            f"wrap it in a Classifier with box={victim.box}, mean={low - std * other:g} and "
            f"std={std:g}"
        )
    answered = _classes(substitute, images)
    if classes is not None and answered != classes:
        raise InputError(
            f"the substitute '{substitute.name}' has {answered} classes, but the victim "
            f"{classes}: use one with the same classes in the same order"
        )
    # The victim must be able to receive the crafted images.
    return substitute if substitute.grid == victim.grid else OnGrid(substitute, victim.grid)


def bare_of(victim: Victim, images: Tensor) -> Victim:
    """The undefended model of a victim, with the victim's grid, to craft oblivious attacks on.

    A victim without a defense is refused, and one whose undefended model does not take the
    victim's images: a network behind thermometer codes takes codes only.
    """
    if victim.bare is victim:
        raise UndefendedError(
            f"'{victim.name}' has no defense in front of it, so there is nothing to be oblivious "
            "of: write the attack without oblivious(...)"
        )
    try:
        return in_place_of(victim, victim.bare, images, None)
    except InputError as problem:
        raise AttackError(
            f"no attack can be crafted on the undefended model of '{victim.name}': {problem}"
        ) from problem


def transferred(crafted: Crafted, device: torch.device | None = None) -> Crafted:
    """The result of crafting on a substitute, before the victim was queried.

    It claims no success and costs one query per image; the passes of the substitute are in
    ``substitute_passes``. Tensors are moved to the victim's device, if one is given.
    """
    if device is not None:
        held = {f.name: getattr(crafted, f.name) for f in fields(crafted)}
        moved: dict[str, Any] = {
            name: part.to(device) for name, part in held.items() if isinstance(part, Tensor)
        }
        crafted = replace(crafted, **moved)
    passes = crafted.forwards + crafted.backwards
    nothing, once = torch.zeros_like(passes), torch.ones_like(passes)
    return replace(
        crafted,
        success=torch.zeros_like(crafted.success),
        first_step=nothing,
        first_query=once,
        forwards=nothing.clone(),
        backwards=nothing.clone(),
        queries=once.clone(),
        substitute_passes=passes,
        descent=None,
    )


def _classes(substitute: Victim, images: Tensor) -> int:
    """The substitute's number of classes; an error where it does not accept the images."""
    try:
        with substitute.held(), full_precision(substitute.device):
            columns = Oracle(substitute).logits(images.to(substitute.device)).shape[1]
            return int(columns) - substitute.rejects
    except VictimError as problem:
        cause = problem.__cause__
        if cause is not None and not isinstance(cause, RuntimeError):
            raise  # a bug of the model, not a wrong size
        name = substitute.name
        raise InputError(
            f"the substitute '{name}' cannot take the images {list(images.shape[1:])}: "
            f"{str(problem).rstrip('.')}. Resize them with '{name}+adapt(size=...)'"
        ) from None

"""A model of one's own in the victim's place: whether it fits, and what crafting on it tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from besiege.core.dice import Dice
from besiege.core.errors import InputError, VictimError
from besiege.core.oracle import Access, Oracle, full_precision
from besiege.core.victim import Victim
from besiege.defenses.defended import Defended, load
from besiege.evaluation.crafting import Crafted
from besiege.models.classifier import Classifier

Model = str | nn.Module | Victim


class OnGrid(Victim):
    """A victim that receives what another one can: multiples of that one's grid, or anything."""

    def __init__(self, victim: Victim, grid: float | None) -> None:
        self.victim = self.adopt(Defended(victim))
        self.name, self.grid = victim.name, grid

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Logits, as the victim answers them."""
        return self.victim(x, dice)

    @property
    def apart(self) -> list[tuple[float, Victim]] | None:
        """Weights and members of an ensemble whose losses are fused."""
        return self.victim.apart

    def fused(self, answers: Sequence[Tensor]) -> Tensor:
        """One answer from those of an ensemble's members."""
        return self.victim.fused(answers)

    def digest(self) -> str:
        """SHA-256 of what identifies the victim, and of the grid: another one is crafted on it."""
        return sha256(f"{self.victim.digest()} {self.grid!r}".encode()).hexdigest()


def read_model(model: Model, device: torch.device) -> Victim:
    """A model from its text, on a device, or as it is."""
    return load(model, str(device)) if isinstance(model, str) else Classifier.of(model)


def in_place_of(victim: Victim, substitute: Victim, images: Tensor, classes: int | None) -> Victim:
    """The substitute as it stands in for a victim: of its box, its classes and its grid.

    One that cannot is refused before the victim is asked anything. `images` are some that the
    victim takes, `classes` how many it tells apart, as far as that is known.
    """
    if substitute.access is not Access.GRADIENT:
        raise InputError(
            f"the substitute '{substitute}' grants {substitute.access} access only, but a "
            "substitute is there for its gradients: take a model of your own"
        )
    if substitute.stochastic:
        raise InputError(
            f"the substitute '{substitute}' answers by chance: take it without that layer"
        )
    if substitute.box != victim.box:
        (low, high), (other, top) = victim.box, substitute.box
        std = (high - low) / (top - other)
        raise InputError(
            f"the substitute takes pixels in {substitute.box}, but the victim in {victim.box}: "
            f"wrap it in a Classifier with box={victim.box}, and with mean={low - std * other:g} "
            f"and std={std:g}, which bring those to its own"
        )
    answered = _classes(substitute, images)
    if classes is not None and answered != classes:
        raise InputError(
            f"the substitute '{substitute.name}' answers {answered} classes, but the victim "
            f"{classes}: take one of the same classes in the same order"
        )
    # What is crafted must be what the victim can receive.
    return substitute if substitute.grid == victim.grid else OnGrid(substitute, victim.grid)


def transferred(crafted: Crafted, device: torch.device | None = None) -> Crafted:
    """What was crafted elsewhere, which claims nothing about the victim: it is shown it once.

    What the substitute computed stands apart, in ``substitute_passes``. It is brought to the
    victim's device, where one is given.
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
    """How many classes a substitute answers for such images, if it takes them."""
    try:
        with substitute.held(), full_precision(substitute.device):
            return int(Oracle(substitute).logits(images.to(substitute.device)).shape[1])
    except VictimError as problem:
        cause = problem.__cause__
        if cause is not None and not isinstance(cause, RuntimeError):
            raise  # a bug of the model: another size would not help
        name = substitute.name
        raise InputError(
            f"the substitute '{name}' cannot take the images {list(images.shape[1:])}: "
            f"{str(problem).rstrip('.')}. Bring them to its size with '{name}+adapt(size=...)'"
        ) from None

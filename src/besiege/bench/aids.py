"""What an attacker has besides the victim, in an evaluation: a substitute, images to begin at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from besiege.attacks.attack import Attack
from besiege.core.errors import InputError, VictimError, near
from besiege.core.oracle import Access, Oracle, Victim, plainly
from besiege.core.threat import Threat
from besiege.data.dataset import Data
from besiege.defenses.defended import Defended
from besiege.defenses.defended import load as load_victim
from besiege.models.classifier import Classifier
from besiege.models.ensemble import Ensemble

PER_CLASS, MANY = 2, 100
"""Images of every class to begin at, and from how many classes on one must do."""

Model = str | nn.Module | Victim
Fuse = Literal["logits", "probabilities", "losses"]


@dataclass(frozen=True)
class Aids:
    """What attacks may use that is not the victim's answer.

    Attributes
    ----------
    substitute : Victim, optional
        Attacks that need gradients are crafted on it, and judged on the victim; others may take
        its advice.
    starts : Data, optional
        Images of known classes at which attacks that see decisions alone may begin.
    """

    substitute: Victim | None = None
    starts: Data | None = None

    def crafts(self, attack: Attack) -> bool:
        """Whether an attack is crafted on the substitute."""
        return self.substitute is not None and attack.access is Access.GRADIENT

    def advises(self, attack: Attack) -> bool:
        """Whether an attack takes the substitute's advice."""
        return self.substitute is not None and attack.advised

    def begins(self, attack: Attack) -> bool:
        """Whether an attack may begin at other images."""
        return self.starts is not None and attack.access is Access.DECISION


def read_aids(
    models: Model | Sequence[Model] | None, fuse: Fuse, victim: Victim, data: Data
) -> Aids:
    """The substitute, from its text or as it is, several as one; and images to begin at."""
    starts = beginnings(data)
    if models is None:
        return Aids(None, starts)
    members = [_read(one, victim.device) for one in each(models)]
    if not members:
        raise InputError("no substitute is listed: write for example substitute='zoo:NAME'")
    one = members[0] if len(members) == 1 else Ensemble(members, fuse=fuse)
    if one.access is not Access.GRADIENT:
        raise InputError(
            f"the substitute '{one}' grants {one.access} access only, but a substitute is there "
            "for its gradients: take a model of your own"
        )
    if one.stochastic:
        raise InputError(f"the substitute '{one}' answers by chance: take it without that layer")
    if one.box != victim.box:
        raise InputError(
            f"the substitute takes pixels in {one.box}, but the victim in {victim.box}: wrap it "
            "in a Classifier with the victim's box"
        )
    _must_fit(one, victim, data)
    if one.grid != victim.grid:  # what is crafted must be what the victim can receive
        one = Defended(one)
        one.grid = victim.grid
    return Aids(one, starts)


def _must_fit(substitute: Victim, victim: Victim, data: Data) -> None:
    """Refuse a substitute of other images or classes before anybody is asked anything."""
    low, high = victim.box
    image = data.take([0]).images.to(substitute.device).clamp(low, high)
    name = getattr(substitute, "name", str(substitute))
    try:
        with substitute.held(), plainly(substitute.device):
            classes = int(Oracle(substitute).logits(image).shape[1])
    except VictimError as problem:
        raise InputError(
            f"the substitute '{name}' cannot take the images {list(image.shape[1:])} of "
            f"'{data.name}': {problem} Bring them to its size with '{name}+adapt(size=...)'"
        ) from None
    known = victim.classes or data.classes
    if classes != known:
        raise InputError(
            f"the substitute '{name}' answers {classes} classes, but the victim {known}: take one "
            "of the same classes in the same order"
        )


def each(models: Model | Sequence[Model]) -> Sequence[Model]:
    """One model or several, as several; a sequence of modules is a module."""
    several = isinstance(models, Sequence) and not isinstance(models, (str, nn.Module))
    return models if several else [models]  # type: ignore[return-value, list-item]


def read_fuse(fuse: str) -> Fuse:
    """What an ensemble takes the mean of."""
    known: dict[str, Fuse] = {"logits": "logits", "probabilities": "probabilities"}
    known["losses"] = "losses"
    if fuse not in known:
        raise InputError(f"fuse is '{fuse}': {near(str(fuse), known)}")
    return known[fuse]


def _read(model: Model, device: torch.device) -> Victim:
    if isinstance(model, str):
        return load_victim(model, str(device))
    return Classifier.of(model)


def beginnings(data: Data) -> Data:
    """A few images of every class, the first of the data that have it."""
    order = torch.argsort(data.labels, stable=True)
    labels = data.labels[order]
    place = torch.arange(len(labels))
    new = torch.ones_like(labels, dtype=torch.bool)
    new[1:] = labels[1:] != labels[:-1]
    nth = place - torch.where(new, place, torch.zeros_like(place)).cummax(0).values
    few = PER_CLASS if int(new.sum()) < MANY else 1
    return data.take(order[nth < few].sort().values)


def terms_on(threat: Threat) -> Threat:
    """The threat as it is on a substitute, whose gradients are free."""
    return replace(threat, access=Access.GRADIENT)

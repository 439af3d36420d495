"""What an attacker has besides the victim, in an evaluation: a substitute, images to begin at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from besiege.core.errors import InputError, near
from besiege.core.victim import Victim
from besiege.data.dataset import Data
from besiege.evaluation.transfer import Model, in_place_of, read_model
from besiege.models.ensemble import Ensemble

PER_CLASS, MANY = 10, 100
"""Images of every class to begin at, and from how many classes on one must do."""

Fuse = Literal["logits", "probabilities", "losses"]


def read_substitute(
    models: Sequence[Model], fuse: Fuse, victim: Victim, data: Data
) -> Victim | None:
    """The substitute, several models as one ensemble; None where there is none."""
    if not models:
        return None
    members = [read_model(one, victim.device) for one in models]
    one = members[0] if len(members) == 1 else Ensemble(members, fuse=fuse)
    image = data.take([0]).images.clamp(*victim.box)
    return in_place_of(victim, one, image, victim.classes or data.classes)


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

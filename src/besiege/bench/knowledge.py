"""The attacker's knowledge in an evaluation: other models, and images to start from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
from torch import nn

from besiege.bench.shards import Read
from besiege.bench.undefended import is_undefended
from besiege.core.errors import AttackError, BesiegeError, InputError, near
from besiege.core.victim import Victim
from besiege.data.dataset import Data
from besiege.evaluation.transfer import Model, bare_of, in_place_of, read_model
from besiege.models.catalogue import ZOO, zoo_card, zoo_names
from besiege.models.ensemble import Ensemble

PER_CLASS, MANY = 10, 100
"""Starting images per class, and the number of classes from which on there is only one."""

Fuse = Literal["logits", "probabilities", "losses"]


def read_substitute(
    models: Sequence[Model], fuse: Fuse, victim: Victim, data: Data, read: Read
) -> Victim | None:
    """The substitute, an ensemble of several models; None without models."""
    if not models:
        return None
    members = [
        read.model((one, str(victim.device)), partial(read_model, one, victim.device))
        if isinstance(one, str)
        else read_model(one, victim.device)
        for one in models
    ]
    one = members[0] if len(members) == 1 else Ensemble(members, fuse=fuse)
    image = data.take([0]).images.clamp(*victim.box)
    return in_place_of(victim, one, image, victim.classes or data.classes)


def undefended_model(victim: Victim, data: Data) -> tuple[Victim, None] | tuple[None, AttackError]:
    """The model behind the victim's layers, or why no attack can be crafted on it."""
    try:
        return bare_of(victim, data.take([0]).images.clamp(*victim.box)), None
    except AttackError as problem:
        return None, problem


def at_hand(victim: Victim, data: Data, read: Read) -> Victim | None:
    """A shipped model of the same data, the smallest undefended one first; None without any."""
    cards = {name: zoo_card(name) for name in zoo_names()}
    fitting = [name for name, card in cards.items() if card["data"].split()[0] == data.name]
    size = {name: (ZOO / f"{name}.safetensors").stat().st_size for name in fitting}
    for name in sorted(fitting, key=lambda n: (not is_undefended(f"zoo:{n}"), size[n])):
        try:
            other = read_substitute([f"zoo:{name}"], "logits", victim, data, read)
        except BesiegeError:  # other images, classes or range of pixel values
            continue
        if other is not None and other.digest() != victim.digest():
            return other
    return None


def each(models: Model | Sequence[Model]) -> Sequence[Model]:
    """One model or several as a sequence; an ``nn.Sequential`` is one model."""
    several = isinstance(models, Sequence) and not isinstance(models, (str, nn.Module))
    return models if several else [models]  # type: ignore[return-value, list-item]


def read_fuse(fuse: str) -> Fuse:
    """The outputs that an ensemble averages, checked."""
    known: dict[str, Fuse] = {"logits": "logits", "probabilities": "probabilities"}
    known["losses"] = "losses"
    if fuse not in known:
        raise InputError(f"fuse is '{fuse}': {near(str(fuse), known)}")
    return known[fuse]


def beginnings(data: Data) -> Data:
    """The first few images of every class."""
    order = torch.argsort(data.labels, stable=True)
    labels = data.labels[order]
    place = torch.arange(len(labels))
    new = torch.ones_like(labels, dtype=torch.bool)
    new[1:] = labels[1:] != labels[:-1]
    nth = place - torch.where(new, place, torch.zeros_like(place)).cummax(0).values
    few = PER_CLASS if int(new.sum()) < MANY else 1
    return data.take(order[nth < few].sort().values)

"""Other models that judge the images crafted on a victim: read, checked and described."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from besiege.bench.model_spec import read_victim
from besiege.bench.shards import Read
from besiege.bench.spec import Target
from besiege.core.errors import InputError
from besiege.core.unchanged import once
from besiege.core.victim import Victim
from besiege.data.dataset import Data
from besiege.evaluation.elsewhere import answered_by
from besiege.evaluation.transfer import Model

_ADAPTED = "+adapt("


@dataclass(frozen=True)
class OtherModel:
    """A model that judges images crafted on another one.

    Attributes
    ----------
    name : str
        Its text.
    victim : Victim
        The model, behind a layer that adapts the images where they have another size.
    bare : Victim
        The model without this layer.
    """

    name: str
    victim: Victim
    bare: Victim


def read_across(
    texts: Sequence[str],
    objects: Sequence[Model],
    victim: Victim,
    device: str | None,
    read: Read,
    data: Data,
) -> tuple[OtherModel, ...]:
    """The models of a request that judge the images of its victim.

    They have to be as exact as the verdicts of the victim itself: models that are only queried,
    draw or reject are refused, and those with other classes or another range of pixel values.
    """
    given = objects or texts
    found = tuple(
        _read(one, name, device, read) for name, one in zip(texts, given, strict=bool(objects))
    )
    for other in found:
        one = other.victim
        if one.stochastic or one.metered or one.rejects:
            what = "draws" if one.stochastic else "rejects images" if one.rejects else "is metered"
            raise InputError(
                f"'{other.name}' {what}: it cannot judge images of other models. Leave it out of "
                "the cells with 'across'"
            )
        if one.box != victim.box:
            raise InputError(
                f"'{other.name}' takes pixels in {one.box}, but the images of '{victim.name}' are "
                f"in {victim.box}: give both one range"
            )
        classes = once(_classes, one, data)
        if victim.classes is not None and classes != victim.classes:
            raise InputError(
                f"'{other.name}' has {classes} classes, but '{victim.name}' {victim.classes}: only "
                "models with the same classes in the same order judge each other's images"
            )
    return found


def _classes(victim: Victim, data: Data) -> int:
    """The number of classes that a model answers the first image with."""
    return int(answered_by(victim, data.take([0]).images.clamp(*victim.box)).shape[1])


def _read(one: Model, name: str, device: str | None, read: Read) -> OtherModel:
    if not isinstance(one, str):
        victim = read_victim(one, device)
        return OtherModel(name, victim, victim)
    bare, adapted, rest = name.rpartition(_ADAPTED)
    text = read.text(bare if adapted else name)
    inner = read_victim(text, device, None, read)
    whole = read_victim(f"{text}{adapted}{rest}", device, None, read) if adapted else inner
    return OtherModel(name, whole, inner)


def targets_of(found: Sequence[OtherModel]) -> tuple[Target, ...]:
    """The models as a plan describes them."""
    return tuple(
        Target(name=one.name, digest=one.victim.digest(), model=one.bare.digest()) for one in found
    )

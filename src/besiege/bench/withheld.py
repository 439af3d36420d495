"""Images that detectors were calibrated on: which of the data they are, and who leaves them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from besiege.core.errors import BesiegeError, InputError
from besiege.core.samples import Withheld, WithheldImages
from besiege.core.shell import shell
from besiege.data import load as load_data
from besiege.data.catalogue import CATALOGUE
from besiege.data.contents import contents
from besiege.data.dataset import Data
from besiege.data.places import locate

if TYPE_CHECKING:
    from besiege.bench.spec import Request

Name = TypeVar("Name")


def calibrated_on(data: Data, withheld: Withheld, box: tuple[float, float] = (0.0, 1.0)) -> Tensor:
    """Which of the images a detector was calibrated on, as a mask ``[rows]``.

    The ids of a named data set tell, and those of a folder, which follow from its files. Elsewhere
    the pixels of each image tell, in `box`; without a digest of each, ids of equal images do.
    """
    same = torch.isin(data.ids, torch.tensor(withheld.ids))
    named = (data.name, data.split) == (withheld.data, withheld.split)
    if named and (data.name in CATALOGUE or data.pixels is not None):
        return same
    known = _contents(withheld)
    if known:
        return torch.tensor([one in known for one in contents(data, box)], dtype=torch.bool)
    whole = int(same.sum()) == len(withheld.ids)
    if named or (whole and data.take(same).digest == withheld.digest):
        return same
    return torch.zeros_like(same)


@lru_cache(maxsize=16)
def _contents(withheld: Withheld) -> frozenset[str]:
    """Digests of single images: from the card, or of the named data set where that is at hand."""
    if isinstance(withheld, WithheldImages):
        return frozenset(withheld.contents)
    entry = CATALOGUE.get(withheld.data)
    if entry is None or withheld.split not in entry.images:
        return frozenset()
    try:
        if not entry.shipped and locate(entry, withheld.split) is None:
            return frozenset()  # nothing is downloaded for this
        data = load_data(withheld.data, withheld.split)
    except BesiegeError:
        return frozenset()
    chosen = data.take(torch.isin(data.ids, torch.tensor(withheld.ids)))
    if len(chosen) != len(withheld.ids) or chosen.digest != withheld.digest:
        return frozenset()
    return frozenset(contents(chosen))


def left_out(data: Data, withheld: Sequence[Withheld]) -> Data:
    """The data without images that some detector was calibrated on."""
    gone = torch.zeros(len(data), dtype=torch.bool)
    for one in dict.fromkeys(withheld):
        gone |= calibrated_on(data, one)
    if bool(gone.all()):
        raise InputError(
            f"the detector was calibrated on all {len(data)} images of {data.name} ({data.split}), "
            "so that none is left to evaluate: calibrate it on fewer, besiege detector --count N, "
            "or evaluate on other images"
        )
    return data.take(~gone) if bool(gone.any()) else data


def beside(
    models: Mapping[Name, tuple[str, Withheld | None]],
) -> dict[Name, tuple[str, ...]]:
    """For each model, the texts of the others whose calibration images it leaves out, too.

    Models of one table are then evaluated on the same images. `models` are their texts and what
    they withhold; where none withholds images there is nothing to leave out.
    """
    found = {}
    for name, (_, own) in models.items():
        known = {own}
        texts = []
        for text, other in models.values():
            if other is not None and other not in known:
                known.add(other)
                texts.append(text)
        found[name] = tuple(sorted(texts))
    return found


def with_others(request: Request, others: Sequence[str]) -> Request:
    """The request that leaves out the calibration images of other models, too.

    The command that reproduces it, where it is one of ours, says so.
    """
    added = [one for one in others if one not in request.beside]
    if not added:
        return request
    command = request.command
    if command.startswith("besiege evaluate "):
        command += " " + shell([word for one in added for word in ("--beside", one)])
    update = {"beside": (*request.beside, *added), "command": command}
    return request.model_copy(update=update)


def same_data(request: Request, source: object) -> tuple[object, ...]:
    """What is equal for requests of the same data."""
    where = request.data if source is None else id(source)
    return where, request.split, request.resize, request.crop, request.channels, request.layout

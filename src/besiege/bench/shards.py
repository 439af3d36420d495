"""The samples of an evaluation: in the victim's box, cut into the shards of records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from besiege.bench.spec import Request, Shard
from besiege.bench.store import key_of
from besiege.bench.withheld import left_out
from besiege.core.errors import InputError
from besiege.core.samples import Samples, Withheld, in_box
from besiege.core.text import side
from besiege.core.victim import Victim
from besiege.data import load as load_data
from besiege.data.dataset import Data, Pixels
from besiege.data.sources import is_in_box
from besiege.evaluation.checking import check_grid
from besiege.models.black_box import black_box

SHARD, GPU_SHARD = 100, 500
"""Samples per record: few, so that a killed run loses little, but more on a fast GPU."""
CURVE_SHARD = 50
"""Samples per record of a search, which takes many times as long as an attack."""


@dataclass
class Read:
    """Data and models that were read for other requests of the same call.

    A model is kept by its text and device. Those that cannot be kept are read again: black boxes,
    which count their queries for each evaluation. ``trained`` has the texts of models that a
    benchmark has trained, by their names.
    """

    trained: dict[str, str] = field(default_factory=dict)
    data: dict[Any, Data] = field(default_factory=dict)
    models: dict[Any, Victim] = field(default_factory=dict)

    def text(self, model: str) -> str:
        """The text of a model: that of its weights, if a benchmark has trained it."""
        return self.trained.get(model, model)

    def model(self, key: Any, load: Callable[[], Victim]) -> Victim:
        """The model of a key, loaded once."""
        if key in self.models:
            return self.models[key]
        victim = load()
        if not victim.metered and black_box(victim) is None:
            self.models[key] = victim
        return victim


def read_data(
    request: Request,
    source: Any,
    victim: Victim | None,
    read: Read | None = None,
    withheld: Sequence[Withheld] = (),
) -> tuple[Data, int | None]:
    """The samples: tensors, datasets and loaders in the victim's box, other data in [0, 1].

    Images that detectors were calibrated on (`withheld`) are left out, and the number of these is
    returned, too; None where there are no such detectors. Tensors, datasets and loaders are the
    caller's own choice: nothing is left out of them.

    For a victim that receives bytes, the images are rounded to its levels first, so that it
    receives the attacked images. What is in `read` is not read again: a loader may take minutes,
    and several models share one copy of the images.
    """
    how: dict[str, Any] = {"split": request.split, "count": request.count, "seed": request.seed}
    if victim is not None and is_in_box(source):
        how["box"] = victim.box
    else:
        how |= {
            "resize": side(request.resize, "--resize"),
            "crop": side(request.crop, "--crop"),
            "channels": request.channels,
            "layout": request.layout,
        }
    left = None if not withheld else 0
    chosen = bool(withheld) and not is_in_box(source)
    if chosen:
        how["count"] = None  # chosen below, from the images that are left
    known = {} if read is None else read.data
    key = (request.data if source is None else id(source), *how.items())
    if key not in known:
        known[key] = load_data(request.data if source is None else source, **how)
    data = known[key]
    if chosen:
        everything, data = data, left_out(data, withheld)
        left = len(everything) - len(data)
        data = data if request.count is None else data.subset(request.count, request.seed)
    if victim is None or is_in_box(source):
        return data, left
    inner = black_box(victim)
    if inner is None or not inner.as_bytes or inner.grid is None:
        return data, left
    steps = round((inner.box[1] - inner.box[0]) / inner.grid)
    if data.pixels is None:
        return replace(data, images=_on_levels(data.images, steps)), left
    return replace(data, images=_Levels(data.pixels, steps)), left  # type: ignore[arg-type]  # lazily


def _on_levels(images: Tensor, steps: int) -> Tensor:
    return (images * steps).round() / steps


@dataclass(frozen=True)
class _Levels:
    """Images that are decoded when needed, and then rounded to a number of levels."""

    pixels: Pixels
    steps: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.pixels.shape

    def at(self, rows: Sequence[int]) -> _Levels:
        return _Levels(self.pixels.at(rows), self.steps)

    def decode(self) -> Tensor:
        return _on_levels(self.pixels.decode(), self.steps)


def boxed(data: Data, victim: Victim, scaled: bool) -> Samples:
    """Samples of the data, checked; `scaled` says to scale pixels in [0, 1] to the victim's box."""
    images = in_box(data.images, victim.box) if scaled else data.images
    return Samples.of(images, data.labels, box=victim.box, classes=victim.classes, ids=data.ids)


def usual_size(victim: Victim) -> int:
    """The default number of samples per record."""
    return SHARD if victim.device.type == "cpu" else GPU_SHARD


def shards_of(data: Data, size: int) -> list[Callable[[], Data]]:
    """Functions that return the shards of the data when needed."""
    rows = torch.arange(len(data))
    return [partial(data.take, part) for part in rows.split(size)]  # type: ignore[no-untyped-call]


def described(data: Data, size: int, victim: Victim, scaled: bool) -> tuple[Shard, ...]:
    """The descriptions of all shards; every sample is checked."""
    if len(torch.unique(data.ids)) < len(data):
        raise InputError("the ids are not unique: every sample needs an id of its own")
    shards = []
    for make in shards_of(data, size):
        part = make()
        samples = boxed(part, victim, scaled)
        check_grid(victim, samples)
        # The same pixels scaled to another box are other samples.
        digest = key_of({"digest": part.digest, "box": victim.box}) if scaled else part.digest
        shards.append(Shard(digest=digest, count=len(part)))
    return tuple(shards)

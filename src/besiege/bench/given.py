"""Images made elsewhere: read from a file or another run, placed among the samples of a plan."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from besiege.bench.context import Context, Images
from besiege.bench.exports.images import chosen_images
from besiege.bench.overview import open_run
from besiege.bench.plan import Plan
from besiege.bench.run import FILE
from besiege.bench.spec import AttackSpec, Replay
from besiege.bench.store import key_of
from besiege.bench.words import told_apart
from besiege.core.errors import DataError, InputError, StoreError, ThreatError
from besiege.core.samples import Samples
from besiege.core.threat import Goal, Threat
from besiege.data.arrays import as_pixels, as_whole, read_arrays
from besiege.metrics.evidence import Origin
from besiege.metrics.rows import Column, places

_FITS = (Goal.UNTARGETED, Goal.RANDOM, Goal.GIVEN)
"""Goals whose targets follow from the samples; others follow from what an attack saw."""
_SAME = 1e-6
"""Largest difference between pixel values of the same clean image."""


@dataclass(frozen=True, eq=False)
class Given:
    """Images made elsewhere, as they were read.

    Attributes
    ----------
    name : str
        What tables call them.
    images : array
        Bytes, or numbers in the model's range of pixel values.
    ids : array, optional
        The samples they belong to; without ids there is one image for every sample, in order.
    labels, clean : array, optional
        The classes and the clean images of these samples, where known, for comparison.
    threat : str, optional
        The threat they were made for, where known: only evaluations against it take them.
    origin : Origin, optional
        Where they come from, if an attack of a run made them.
    targets : array, optional
        The classes they were aimed at, which goals need whose targets an attack saw.
    layer : str
        What decides the images of the layer that they pass, if any.
    """

    name: str
    images: Column
    ids: Column | None = None
    labels: Column | None = None
    clean: Column | None = None
    threat: str | None = None
    origin: Origin | None = None
    targets: Column | None = None
    layer: str = ""


def read_given(path: Path) -> list[Given]:
    """The images of an ``.npz`` file, or of each evaluation of a run folder."""
    if (path / FILE).is_file():
        return _of_run(path)
    if path.is_dir():
        open_run(path)  # an error that says which folders inside are runs
    if path.suffix.lower() != ".npz" and path.exists():
        raise DataError(f"{path} is no .npz file and no run folder: {_WRITTEN}")

    def chosen(members: Collection[str]) -> Mapping[str, str]:
        images = next((name for name in ("images", "x") if name in members), None)
        if images is None:
            held = ", ".join(sorted(members)[:20]) or "nothing"
            raise DataError(f"{path} has no 'images' and no 'x'; it holds {held}: {_WRITTEN}")
        return {"images": images, "ids": "ids", "labels": "y", "clean": "clean"}

    held = read_arrays(path, chosen)
    count = len(held["images"]) if held["images"].ndim else 0
    try:
        numbers = {n: as_whole(held[n], n, count) for n in _NUMBERS if n in held}
    except InputError as problem:
        raise DataError(f"{path}: {problem}") from None
    ids, labels = map(numbers.get, _NUMBERS)
    return [Given(path.name, held["images"], ids, labels, held.get("clean"))]


_NUMBERS = ("ids", "labels")
_WRITTEN = "write images with numpy.savez(path, images=images, ids=ids)"


def _of_run(folder: Path) -> list[Given]:
    """One adversarial image of every broken sample, for each evaluation of a run."""
    store, run = open_run(folder)
    found = []
    for plan in run.current:
        rows, images, clean = chosen_images(store, plan)
        if rows.count:
            ids, labels = rows["sample"], rows["label"]
            found.append(Given(plan.model.name, images, ids, labels, clean, plan.threat))
    if not found:
        raise StoreError(f"{folder} has no adversarial images: no attack of it broke an image")
    base = folder.resolve().name
    if len(found) == 1:
        return [replace(found[0], name=base)]
    traits = [(one.name, one.threat or "") for one in found]
    names = told_apart(traits)
    return [replace(one, name=f"{base}, {name}") for one, name in zip(found, names, strict=True)]


@dataclass(frozen=True, eq=False)
class Placed:
    """Images as part of a plan, and the live images by digest."""

    replay: Replay
    arrays: Mapping[str, Images]


def place(plan: Plan, given: Given, context: Context) -> Placed:
    """The images among the samples of a plan; an error where they do not belong to these."""
    must_fit(plan, given)
    shards = [context.samples(shard.digest) for shard in plan.shards]
    known = np.concatenate([_numbers(samples.ids) for samples in shards])
    pixels = _pixels(plan, given.images)
    ids = known if given.ids is None else given.ids
    _must_be_of(plan, ids, len(pixels), known)
    digests, arrays = [], {}
    for samples in shards:
        where = places(ids, _numbers(samples.ids))
        here = np.flatnonzero(where >= 0)
        rows = where[here]
        _must_be_the_same(plan, given, rows, samples, here)
        aims = None if given.targets is None else given.targets[rows]
        mine = ids[rows], np.ascontiguousarray(pixels[rows]), aims
        digest = _digest(*mine) if len(rows) else ""
        digests.append(digest)
        if digest:
            arrays[digest] = mine
    counts = [len(arrays[digest][0]) if digest else 0 for digest in digests]
    through = "" if given.origin is None else given.origin.through
    spec = _spec(plan, given, digests, len(ids))
    replay = Replay(
        attack=spec, images=tuple(digests), counts=tuple(counts), through=through, layer=given.layer
    )
    return Placed(replay, arrays)


def must_fit(plan: Plan, given: Given) -> None:
    """Refuse goals whose targets are not known, and images that were made for another threat."""
    threat = Threat.parse(plan.threat)
    if threat.goal not in _FITS and given.targets is None:
        raise ThreatError(
            f"the goal {threat.goal} chooses a class from the model's answers for each image, "
            "which images made elsewhere were not aimed at: import them into an evaluation of "
            "another goal"
        )
    if given.threat is not None and replace(Threat.parse(given.threat), written=None) != replace(
        threat, written=None
    ):
        raise ThreatError(f"the images were made for '{given.threat}', not for '{plan.threat}'")


def _numbers(ids: Any) -> Column:
    found: Column = ids.cpu().numpy()
    return found


def _pixels(plan: Plan, images: Column) -> Column:
    """The images as float32 numbers in the model's box, checked."""
    channels, height, width = plan.data.shape
    layouts: dict[tuple[int, ...], str] = {
        (channels, height, width): "nchw",
        (height, width, channels): "nhwc",
    }
    if channels == 1:
        layouts[height, width] = "nchw"
    layout = layouts.get(images.shape[1:])
    if layout is None:
        expected = " or ".join(str(["rows", *shape]) for shape in layouts).replace("'", "")
        raise InputError(
            f"the images have the shape {list(images.shape)}, but those of {plan.data.name} have "
            f"{expected}"
        )
    return as_pixels(images, layout, plan.model.box)


def _must_be_of(plan: Plan, ids: Column, count: int, known: Column) -> None:
    """Refuse ids that the plan does not have."""
    if len(ids) != count:
        raise InputError(
            f"there are {count} images without ids, but {len(ids)} samples in this evaluation: "
            "give one image for each in order, or ids, the numbers of their samples"
        )
    numbers, often = np.unique(ids, return_counts=True)
    if len(numbers) < count:
        raise InputError(
            f"the id {numbers[often > 1][0]} occurs {often.max()} times: give one image for each "
            "sample, and others in another file"
        )
    foreign = ids[~np.isin(ids, known)]
    if len(foreign):
        raise InputError(
            f"{len(foreign)} of {count} ids, such as {foreign[0]}, are not among those of the "
            f"{len(known)} samples of {plan.data.name} here, {known.min()} to {known.max()}: "
            "leave their images out"
        )


def _must_be_the_same(
    plan: Plan, given: Given, rows: Column, samples: Samples, here: Column
) -> None:
    """Refuse images of other samples that have the same ids; `here` are their rows in a shard."""
    if given.labels is not None and (given.labels[rows] != _numbers(samples.labels)[here]).any():
        raise InputError(
            "the labels (y) of some ids are not those of this evaluation: the ids count the "
            "samples of other data"
        )
    if given.clean is not None and len(rows):
        clean = _pixels(plan, given.clean[rows])
        if float(np.abs(clean - samples.images.cpu().numpy()[here]).max()) > _SAME:
            raise InputError(
                "the clean images of some ids are not those of this evaluation: the ids count "
                "the samples of other data, or these were resized or scaled otherwise"
            )


def _digest(ids: Column, images: Column, targets: Column | None) -> str:
    parts = [np.ascontiguousarray(ids, "<i8"), np.ascontiguousarray(images, "<f4")]
    parts += [] if targets is None else [np.ascontiguousarray(targets, "<i8")]
    return key_of({"arrays": [hashlib.sha256(part.tobytes()).hexdigest() for part in parts]})


def _spec(plan: Plan, given: Given, digests: list[str], count: int) -> AttackSpec:
    """The images as an attack of the plan; those that it has already keep their name."""
    origin = given.origin
    through = {} if origin is None or not origin.through else {"through": given.layer}
    whole = key_of({"shards": digests, **through})
    known = {replay.attack.text: replay.attack.source for replay in plan.replays}
    taken = [text for text, digest in known.items() if digest != whole]
    base = f"replay({given.name})" if origin is None else str(origin)
    number, text = 1, base
    while text in taken:
        number += 1
        text = f"{base.removesuffix(')')}, {number})"
    text = next((text for text, digest in known.items() if digest == whole), text)
    return AttackSpec(
        text=text,
        described=_described(origin, count),
        spelled={
            "name": "replay",
            "images": whole,
            **({} if origin is None else {"origin": origin._asdict()}),
        },
        threat=str(replace(Threat.parse(plan.threat), written=None)),
        keep="first",
        leave="end",
        queries=None,
        steps=None,
        restarts=1,
        plain=False,
        one_step=False,
        passes=1,
        source=whole,
    )


def _described(origin: Origin | None, count: int) -> str:
    if origin is None:
        return f"{count:,} images made elsewhere, judged like those of every attack"
    words = f"{count:,} successes of '{origin.attack}' on {origin.model}"
    return f"{words}, through {origin.passed}" if origin.through else words

"""The images of galleries: read from their records once, then cached together in one small file.

``figures/pictures.safetensors`` is derived, like everything in that folder. An image in it is used
only while the file of its record is unchanged.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from besiege.bench.image_pairs import stored_images
from besiege.bench.store import IMAGES, KEPT, Store
from besiege.bench.summaries import FOLDER, about
from besiege.core.errors import BesiegeError, StoreError
from besiege.core.files import read_file
from besiege.metrics.rows import Column
from besiege.metrics.values import Picture

Place = tuple[str, int]
"""The record of an image, and its row there."""
_FILE = f"{FOLDER}/pictures.safetensors"
_MOST = 8_000_000
"""Largest size of the cache, in bytes of images; larger galleries are not cached."""


def pictures(store: Store, items: Iterable[Picture]) -> Callable[[Picture], tuple[Column, Column]]:
    """A function that returns the clean and the adversarial image of an item, ``[channels, h, w]``.

    Every record is read once for all `items`, and not at all where its images are cached.
    """
    shown = [*items]
    wanted = {(one.clean, one.clean_row) for one in shown} | {(o.record, o.row) for o in shown}
    stamps = {record: _stamp(store, record) for record, _ in wanted}
    known = {place: image for place, image in _kept(store, stamps).items() if place in wanted}
    lacking = {record for record, row in wanted if (record, row) not in known}
    failed: dict[str, BesiegeError] = {}
    for record in lacking:
        try:
            images = _images(store, record)
        except BesiegeError as problem:
            failed[record] = problem
            continue
        known |= {
            place: images[place[1]].copy()
            for place in wanted
            if place[0] == record and place[1] in images
        }
    if lacking and not failed:
        _keep(store, stamps, known)

    def both(item: Picture) -> tuple[Column, Column]:
        for record in (item.clean, item.record):
            if record in failed:
                raise failed[record]
        image = known.get((item.record, item.row))
        if image is None:
            raise StoreError(f"the image of sample {item.sample} is not in {item.record}")
        return known[item.clean, item.clean_row], image

    return both


def _images(store: Store, record: str) -> dict[int, Column]:
    arrays = store.shown_images(record.removeprefix("records/"))
    images = stored_images(arrays)
    rows = arrays.get("rows", np.arange(len(images)))
    return dict(zip(rows.tolist(), images, strict=True))


def _stamp(store: Store, record: str) -> list[int] | None:
    folder = store.folder / record
    return about(folder / IMAGES) or about(folder / KEPT)


def _kept(store: Store, stamps: dict[str, list[int] | None]) -> dict[Place, Column]:
    """The cached images of unchanged records."""
    try:
        content = read_file(store.folder / _FILE)
        arrays = load(content)
        (size,) = struct.unpack("<Q", content[:8])
        then = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["stamps"])
    except (OSError, ValueError, KeyError, TypeError, SafetensorError, struct.error):
        return {}
    found = {}
    for name, image in arrays.items():
        record, _, row = name.rpartition(":")
        if then.get(record) is not None and then[record] == stamps.get(record):
            found[record, int(row)] = image
    return found


def _keep(store: Store, stamps: dict[str, list[int] | None], known: dict[Place, Column]) -> None:
    if sum(image.nbytes for image in known.values()) > _MOST:
        return
    arrays = {f"{record}:{row}": image for (record, row), image in known.items()}
    with suppress(OSError, StoreError):  # a read-only folder works without a cache
        (store.folder / FOLDER).mkdir(exist_ok=True)
        store.write_file(_FILE, save(arrays, {"stamps": json.dumps(stamps)}))

"""Stored adversarial images with the clean ones they were made of, read record by record."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from besiege.bench.store import Store
from besiege.core.errors import StoreError
from besiege.metrics.evidence import Evidence
from besiege.metrics.rows import Column, Rows, places
from besiege.metrics.similarity import Pairs, to_unit


def originals_of(evidence: Evidence, rows: Rows) -> Rows:
    """The clean rows of the samples of some rows."""
    return evidence.clean.where(places(evidence.clean["sample"], rows["sample"]))


def by_record(rows: Rows, originals: Rows) -> list[Rows]:
    """Rows cut where the clean images are in another record: then every record is read once."""
    record = originals["record"]
    cuts = np.flatnonzero(record[1:] != record[:-1]) + 1
    return [rows.where(part) for part in np.split(np.arange(rows.count), cuts) if len(part)]


def stored_pixels(rows: Rows, store: Store) -> Column:
    """The stored images of some rows, in their order."""
    keys = rows["record"]
    found: Column | None = None
    for key in dict.fromkeys(keys.tolist()):
        mine = np.flatnonzero(keys == key)
        arrays = store.images(key)
        images = stored_images(arrays)
        stored = arrays.get("rows", np.arange(len(images)))
        where = places(stored, rows["row"][mine])
        if (where < 0).any():
            sample = int(rows["sample"][mine][where < 0][0])
            raise StoreError(f"the image of sample {sample} is not with the record {key[:12]}")
        if found is None:
            found = np.empty((rows.count, *images.shape[1:]), np.float32)
        found[mine] = images[where]
    assert found is not None, "a shard has rows"
    return found


def pairs_in(store: Store, box: tuple[float, float]) -> Callable[[Rows, Rows], Pairs | None]:
    """A function from rows and the clean rows of their samples to both images, from 0 to 1.

    It gives None where an image is not there any more: of a benchmark that let them go, or damaged.
    """

    def pairs(rows: Rows, clean: Rows) -> Pairs | None:
        try:
            both = [stored_pixels(some, store) for some in (clean, rows)]
        except StoreError:
            return None
        first, second = (to_unit(images, box) for images in both)
        return first, second

    return pairs


def stored_images(arrays: dict[str, Column]) -> Column:
    """Stored images as float32; images of 8-bit pixels are stored as bytes."""
    images = arrays["images"]
    if images.dtype == np.uint8:
        images = images.astype(np.float32) / np.float32(255)
    return images

"""The adversarial images as arrays: an ``.npz`` file that numpy and `besiege.data.load` read.

Images are read and written record by record, so that any number of them fits into the memory.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy

from besiege.bench.exports import EXPORTS, Export
from besiege.bench.file_names import with_file_names
from besiege.bench.pictures import stored_images
from besiege.bench.plan import Plan
from besiege.bench.reading import gather
from besiege.bench.store import Store
from besiege.core.errors import InputError, StoreError, UnknownNameError, near
from besiege.metrics.evidence import Evidence, Trial
from besiege.metrics.rows import Column, Rows, places


@EXPORTS.register("npz")
def to_npz(wanted: Export, file: BinaryIO) -> None:
    """One adversarial image of every broken sample, the clean image, and what they are.

    ``x`` and ``clean`` are float32 ``[images, channels, height, width]`` in the model's range of
    pixel values, ``box``; ``x`` is exactly what was judged. ``y``, ``predictions`` and ``ids`` are
    int64: labels, the model's classes of ``x``, and ids. ``attacks`` are texts, ``distances`` the
    sizes in the threat's norm. ``files`` are there for images from files.
    """
    if len(wanted.evaluations) > 1:
        names = [
            f"'{one.figures.model.title}' against '{one.figures.threat.text}'"
            for one in wanted.evaluations
        ]
        raise InputError(
            f"an .npz file has the images of one evaluation, but there are {len(names)} "
            f"({', '.join(names)}): choose one with model='NAME' and threat='TEXT'"
        )
    (found,) = wanted.evaluations
    store, plan = Store(found.folder), found._plan
    evidence = gather(store, plan).evidence
    chosen = with_file_names(broken_images(evidence, wanted.attack), store, plan.data.digest)
    originals = _originals(evidence, chosen)
    shape = plan.data.shape
    with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        _write_images(archive, "x", shape, _shards(chosen, originals), store)
        arrays = {
            "y": chosen["label"],
            "ids": chosen["sample"],
            "predictions": chosen["prediction"],
            "attacks": chosen["attack"].astype(str),
            "distances": chosen[evidence.norm],
            "box": np.array(plan.model.box),
            "class_names": np.array(plan.data.class_names, str),
            "provenance": np.array(json.dumps(wanted.provenance)),
        }
        if "file" in chosen:
            arrays["files"] = chosen["file"].astype(str)
        for name, array in arrays.items():
            with archive.open(_member(name), "w") as member:
                npy.write_array(member, np.asarray(array, order="C"), allow_pickle=False)
        _write_images(archive, "clean", shape, _shards(originals, originals), store)


def chosen_images(store: Store, plan: Plan) -> tuple[Rows, Column, Column]:
    """The rows of `broken_images` of an evaluation, their images, and the clean images."""
    evidence = gather(store, plan).evidence
    rows = broken_images(evidence)
    clean = _originals(evidence, rows)
    shards = zip(_shards(rows, clean), _shards(clean, clean), strict=True)
    parts = [(_images(mine, store), _images(theirs, store)) for mine, theirs in shards]
    nothing = np.zeros((0, *plan.data.shape), np.float32)
    images, originals = zip(*parts, strict=True) if parts else ([nothing], [nothing])
    return rows, np.concatenate(images), np.concatenate(originals)


def _originals(evidence: Evidence, rows: Rows) -> Rows:
    """The clean rows of the samples of some rows."""
    return evidence.clean.where(places(evidence.clean["sample"], rows["sample"]))


def broken_images(evidence: Evidence, attack: str | None = None) -> Rows:
    """The row of one successful attack on every broken sample, in the order of the clean samples.

    It is that of the first attack in the list that broke the sample; without a budget, that with
    the smallest perturbation. With `attack` it is that of this attack.
    """
    trials = [trial for trial in evidence.trials if attack in (None, trial.text)]
    if not trials:
        known = [trial.text for trial in evidence.trials]
        raise UnknownNameError(f"no attack of this run is '{attack}': {near(attack or '', known)}")
    samples = evidence.clean["sample"]
    which, row = np.full(len(samples), -1), np.full(len(samples), -1)
    size = np.full(len(samples), np.inf)
    for number, trial in enumerate(trials):
        mine = np.flatnonzero(evidence.broken(trial))
        place = places(samples, trial.rows["sample"][mine])
        now = trial.rows[evidence.norm][mine]
        better = now < size[place] if evidence.eps is None else which[place] < 0
        mine, place = mine[better], place[better]
        which[place], row[place], size[place] = number, mine, now[better]
    taken = [_taken(trial, row[which == number]) for number, trial in enumerate(trials)]
    rows = Rows.joined(taken)
    return rows.where(np.argsort(places(samples, rows["sample"]), kind="stable"))


def _taken(trial: Trial, rows: Column) -> Rows:
    return trial.rows.where(rows).having(attack=trial.text)


def _shards(rows: Rows, originals: Rows) -> list[Rows]:
    """Rows cut where the clean images are in another record: then every record is read once."""
    record = originals["record"]
    cuts = np.flatnonzero(record[1:] != record[:-1]) + 1
    return [rows.where(part) for part in np.split(np.arange(rows.count), cuts) if len(part)]


def _write_images(
    archive: zipfile.ZipFile, name: str, shape: Sequence[int], shards: Sequence[Rows], store: Store
) -> None:
    """Write the images of rows as one array, shard by shard."""
    count = sum(rows.count for rows in shards)
    about = {"descr": "<f4", "fortran_order": False, "shape": (count, *shape)}
    with archive.open(_member(name), "w", force_zip64=True) as member:
        npy.write_array_header_1_0(member, about)
        for rows in shards:
            member.write(_images(rows, store).astype("<f4").tobytes())


def _member(name: str) -> zipfile.ZipInfo:
    """An array in the archive; without a date, so that equal results are equal files."""
    return zipfile.ZipInfo(f"{name}.npy")


def _images(rows: Rows, store: Store) -> Column:
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

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
from besiege.bench.image_pairs import by_record, originals_of, stored_pixels
from besiege.bench.plan import Plan
from besiege.bench.reading import gather
from besiege.bench.store import Store
from besiege.core.errors import InputError, UnknownNameError, near
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
    originals = originals_of(evidence, chosen)
    shape = plan.data.shape
    with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        _write_images(archive, "x", shape, by_record(chosen, originals), store)
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
        _write_images(archive, "clean", shape, by_record(originals, originals), store)


def chosen_images(store: Store, plan: Plan) -> tuple[Rows, Column, Column]:
    """The rows of `broken_images` of an evaluation, their images, and the clean images."""
    evidence = gather(store, plan).evidence
    rows = broken_images(evidence)
    clean = originals_of(evidence, rows)
    shards = zip(by_record(rows, clean), by_record(clean, clean), strict=True)
    parts = [(stored_pixels(mine, store), stored_pixels(theirs, store)) for mine, theirs in shards]
    nothing = np.zeros((0, *plan.data.shape), np.float32)
    images, originals = zip(*parts, strict=True) if parts else ([nothing], [nothing])
    return rows, np.concatenate(images), np.concatenate(originals)


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


def _write_images(
    archive: zipfile.ZipFile, name: str, shape: Sequence[int], shards: Sequence[Rows], store: Store
) -> None:
    """Write the images of rows as one array, shard by shard."""
    count = sum(rows.count for rows in shards)
    about = {"descr": "<f4", "fortran_order": False, "shape": (count, *shape)}
    with archive.open(_member(name), "w", force_zip64=True) as member:
        npy.write_array_header_1_0(member, about)
        for rows in shards:
            member.write(stored_pixels(rows, store).astype("<f4").tobytes())


def _member(name: str) -> zipfile.ZipInfo:
    """An array in the archive; without a date, so that equal results are equal files."""
    return zipfile.ZipInfo(f"{name}.npy")

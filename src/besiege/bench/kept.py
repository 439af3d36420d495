"""The outcomes of evaluations, cached beside their figures: ``figures/NAME.safetensors``.

Derived like all of that folder: a file is used only while code, plan and records are the same.
"""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from dataclasses import fields

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from besiege.bench.store import Store
from besiege.core.errors import StoreError
from besiege.core.files import read_file
from besiege.metrics.outcomes import Outcomes

FOLDER = "figures"


def keep(store: Store, name: str, found: Outcomes, stamp: str) -> None:
    """Write the outcomes of a complete evaluation; a read-only folder works without a cache."""
    # safetensors writes the memory of an array as it lies: that of a part of one is another's.
    arrays = {
        one.name: np.ascontiguousarray(getattr(found, one.name))
        for one in fields(Outcomes)
        if one.name != "attacks"
    }
    about = {"stamp": stamp, "attacks": json.dumps(found.attacks)}
    with suppress(OSError, StoreError):
        (store.folder / FOLDER).mkdir(exist_ok=True)
        store.write_file(f"{FOLDER}/{name}.safetensors", save(arrays, about))


def outcomes(store: Store, name: str, stamp: str) -> Outcomes | None:
    """The cached outcomes of an evaluation; None where the stamp differs or the file is damaged."""
    try:
        content = read_file(store.folder / FOLDER / f"{name}.safetensors")
        (size,) = struct.unpack("<Q", content[:8])
        about = json.loads(content[8 : 8 + size])["__metadata__"]
        if about["stamp"] != stamp:
            return None
        return Outcomes(attacks=tuple(json.loads(about["attacks"])), **load(content))
    except (OSError, ValueError, LookupError, TypeError, SafetensorError, struct.error):
        return None

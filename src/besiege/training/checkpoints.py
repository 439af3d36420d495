"""Checkpoints of trainings: all the state that resuming needs, in one file.

The file holds tensors and, in the header, JSON: nothing is unpickled. It is written under another
name, flushed and renamed, so that a reader finds a complete file, the new one or the one before.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as write_tensors
from torch import Tensor

from besiege.core import files
from besiege.core.errors import DataError, InputError

SCHEMA = 1


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training after an epoch.

    Attributes
    ----------
    identity : mapping
        Texts that identify model, recipe and data; they must be equal to resume.
    facts : mapping
        Numbers and texts: the history, and the optimiser's state except tensors.
    tensors : mapping
        Weights, averages, the optimiser's tensors, and the random state of the image order.
    """

    identity: Mapping[str, str]
    facts: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def write(self, path: Path) -> None:
        """Write the checkpoint, replacing the one before."""
        # Copies: safetensors refuses tensors that share memory, as tied weights do.
        tensors = {k: v.detach().cpu().clone().contiguous() for k, v in self.tensors.items()}
        header = {
            "schema": SCHEMA,
            "identity": dict(self.identity),
            "facts": dict(self.facts),
            "sha256": _digest(tensors),
        }
        replace_file(path, write_tensors(tensors, {"besiege": json.dumps(header)}))

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """The checkpoint in a file, verified."""
        damaged = f"{path} is damaged or not a checkpoint of besiege: remove it to start again"
        try:
            with safe_open(path, "pt") as file:
                header = json.loads((file.metadata() or {})["besiege"])
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            schema, sha256 = header["schema"], header["sha256"]
            checkpoint = cls(header["identity"], header["facts"], tensors)
        except (SafetensorError, KeyError, TypeError, ValueError):
            raise DataError(damaged) from None
        if schema != SCHEMA:
            raise DataError(
                f"{path} is a checkpoint of schema {schema}, and this version reads {SCHEMA}: "
                "resume with the version that wrote it, or remove it to start again"
            )
        if _digest(tensors) != sha256:
            raise DataError(damaged)
        return checkpoint

    def must_be(self, identity: Mapping[str, str], path: Path) -> None:
        """Raise an error if the checkpoint is of another training."""
        keys = [*self.identity, *(key for key in identity if key not in self.identity)]
        others = [
            f"{key} {_short(self.identity.get(key))}, not {_short(identity.get(key))}"
            for key in keys
            if self.identity.get(key) != identity.get(key)
        ]
        if others:
            raise InputError(
                f"the checkpoint {path} belongs to another training (it has {'; '.join(others)}): "
                "choose another path, or remove it to start again"
            )


def make_room(path: Path) -> None:
    """Create the folder of a file, without what killed processes left in it.

    Raises an error if the file could not be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise DataError(f"{path} cannot be written: {problem.strerror} ({path.parent})") from None
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise DataError(f"{path} cannot be written: choose a file in a writable folder")
    files.sweep([path.parent])  # a process that was killed while it wrote leaves a partial file


def replace_file(path: Path, content: bytes) -> None:
    """Write a complete file, or raise an error and keep the one before."""
    try:
        files.replace_file(path, content)
    except OSError as problem:
        raise DataError(
            f"{path} could not be written: {problem.strerror}; the file written before is still "
            "there, and running again resumes from it"
        ) from problem


def optimiser_state(optimiser: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The state of an optimiser: numbers by name, and tensors by name."""
    facts: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for number, kept in optimiser.state_dict()["state"].items():
        for name, value in kept.items():
            (tensors if isinstance(value, Tensor) else facts)[f"{number}.{name}"] = value
    return facts, tensors


def restore_optimiser(
    optimiser: torch.optim.Optimizer, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Restore what `optimiser_state` returned."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in (*facts.items(), *tensors.items()):
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _short(text: str | None) -> str:
    if text is None:
        return "none"
    return text if len(text) <= 60 else text[:57] + "..."

"""From text to a victim: shipped, public and own weights, and factories in files."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from torch import nn

from besiege.core.errors import BesiegeError, DataError, InputError, UnknownNameError, near
from besiege.core.text import from_file, read_arguments
from besiege.models.architectures import ARCHITECTURES
from besiege.models.classifier import Classifier
from besiege.models.public import PUBLIC

ZOO = Path(__file__).parent / "zoo"

_FORMS = (
    "a model is 'zoo:NAME', 'public:NAME', 'ARCH(mean=..., std=...):path/weights.safetensors' "
    "or 'path/to/file.py:factory'"
)
# What the text of a weights source may say about the victim; the rest goes to the architecture.
_ABOUT_THE_VICTIM = ("mean", "std", "box", "outputs", "grid")


def load(text: str) -> Classifier:
    """The victim that a text names.

    Parameters
    ----------
    text : str
        ``zoo:NAME`` (shipped with besiege), ``public:NAME`` (weights in the data root),
        ``ARCH(mean=..., std=...):path/weights.safetensors`` or ``path/to/file.py:factory``.

    Returns
    -------
    Classifier
        Whose name is the text.
    """
    scheme, _, name = text.partition(":")
    if scheme == "zoo":
        return _from_zoo(name)
    if scheme == "public":
        return _from_public(name)
    if re.fullmatch(r".+\.py:\w+", text):
        return _from_factory(text)
    if found := re.fullmatch(r"(\w+)(?:\((.*)\))?:(.+)", text):
        return _from_weights(found[1], found[2] or "", Path(found[3]), text)
    known = [f"zoo:{n}" for n in zoo_names()] + [f"public:{n}" for n in PUBLIC]
    raise UnknownNameError(f"'{text}' names no model: {near(text, known)} ({_FORMS})")


def zoo_names() -> list[str]:
    """Names of the models that come with besiege, in alphabetical order."""
    return sorted(p.stem for p in ZOO.glob("*.json"))


def save_zoo(module: nn.Module, card: Mapping[str, Any], folder: Path | str = ZOO) -> Path:
    """Write a model as ``NAME.safetensors`` with its card ``NAME.json``; returns the card's path.

    Parameters
    ----------
    module : nn.Module
        An instance of the architecture the card names.
    card : mapping
        ``name``, ``arch`` and, where they apply, ``arguments`` (of the architecture), ``mean`` and
        ``std``; then whatever else is known: recipe, command, seed, data digest, device,
        accuracies with intervals. The weights' digest is added as ``sha256``.
    folder : path
        Where to; the package's own zoo by default.
    """
    missing = [key for key in ("name", "arch") if not card.get(key)]
    if missing:
        raise InputError(f"the card lacks {' and '.join(missing)}: every zoo model states them")
    name = str(card["name"])
    if not re.fullmatch(r"[\w.-]+", name):
        raise InputError(f"the card's name is {name!r}: use letters, digits, '_', '-' and '.'")
    weights = write_tensors(
        {k: v.detach().cpu().contiguous() for k, v in module.state_dict().items()}
    )
    # The card must describe what is stored, and this is the moment it can still be mended.
    _built(card["arch"], card.get("arguments") or {}, weights, f"the card of '{name}'")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.safetensors"
    if path.exists() and path.read_bytes() != weights:
        raise DataError(
            f"{path.name} exists with other weights, and a zoo model's weights never change: "
            "choose another name, or remove the file if it was never published"
        )
    _replace(path, weights)
    full = {**card, "sha256": hashlib.sha256(weights).hexdigest()}
    target = folder / f"{name}.json"
    _replace(target, (json.dumps(full, indent=2) + "\n").encode())
    return target


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    os.replace(partial, path)


def _from_zoo(name: str) -> Classifier:
    if name not in zoo_names():
        raise UnknownNameError(f"the zoo has no model '{name}': {near(name, zoo_names())}")
    card = json.loads((ZOO / f"{name}.json").read_text())
    weights = _read(ZOO / f"{name}.safetensors", card["sha256"])
    module = _built(card["arch"], card.get("arguments") or {}, weights, f"zoo:{name}")
    return _victim(
        module,
        f"zoo:{name}",
        mean=card.get("mean"),
        std=card.get("std"),
        classes=card.get("classes"),
    )


def _from_public(name: str) -> Classifier:
    if name not in PUBLIC:
        raise UnknownNameError(f"no public model is called '{name}': {near(name, PUBLIC)}")
    entry = PUBLIC[name]
    root = os.environ.get("BESIEGE_DATA")
    if not root:
        raise DataError(
            f"public:{name} needs its weights: set BESIEGE_DATA to a data root that holds "
            f"weights/{name}.safetensors"
        )
    path = Path(root) / "weights" / f"{name}.safetensors"
    if not path.exists():
        raise DataError(
            f"public:{name} needs {path}, which does not exist: put the file there, or set "
            "BESIEGE_DATA to a data root that has it"
        )
    module = _built(entry.architecture, entry.arguments, _read(path, entry.sha256), path.name)
    return _victim(module, f"public:{name}", mean=entry.mean, std=entry.std, classes=entry.classes)


def _from_weights(architecture: str, arguments: str, path: Path, text: str) -> Classifier:
    if architecture not in ARCHITECTURES:
        raise UnknownNameError(
            f"'{text}' names no model: no architecture is called '{architecture}', "
            f"{near(architecture, ARCHITECTURES)} ({_FORMS})"
        )
    if path.suffix != ".safetensors":
        raise InputError(
            f"'{text}' names '{path.name}', but weights are read from .safetensors files alone "
            "(a pickled checkpoint can run code); convert it with safetensors.torch.save_file"
        )
    if not path.exists():
        raise DataError(f"'{text}' names {path}, which does not exist")
    try:
        given = read_arguments(arguments)
    except InputError as error:
        raise InputError(
            f"'({arguments})' in '{text}' cannot be read: {error}; write for example "
            "'resnet20(mean=(0.5,0.5,0.5), std=(63/255,62/255,67/255)):weights.safetensors'"
        ) from None
    about = {key: given.pop(key) for key in _ABOUT_THE_VICTIM if key in given}
    return _victim(_built(architecture, given, _read(path), path.name), text, **about)


def _from_factory(text: str) -> Classifier:
    factory, _ = from_file(text)
    if not callable(factory):
        raise InputError(f"'{text}' is a {type(factory).__name__}, not a factory of models")
    try:
        made: object = factory()
    except BesiegeError:
        raise
    except Exception as error:
        raise InputError(f"'{text}' failed: {type(error).__name__}: {error}") from error
    if isinstance(made, Classifier):
        return made
    if isinstance(made, nn.Module):
        return Classifier(made, name=text)
    raise InputError(
        f"'{text}' gave a {type(made).__name__}, but a factory returns a torch.nn.Module or a "
        "besiege.models.Classifier"
    )


def _victim(module: nn.Module, name: str, **about: Any) -> Classifier:
    return Classifier(module.eval(), name=name, **about)


def _read(path: Path, sha256: str | None = None) -> bytes:
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256:
        raise DataError(
            f"{path} is not the published file: its SHA-256 is {found[:12]}..., expected "
            f"{sha256[:12]}...; fetch it again"
        )
    return content


def _built(
    architecture: str, arguments: Mapping[str, Any], weights: bytes, where: str
) -> nn.Module:
    """The architecture with these weights; the caller's random state is left alone."""
    if architecture not in ARCHITECTURES:
        raise UnknownNameError(
            f"{where}: no architecture is called '{architecture}': "
            f"{near(architecture, ARCHITECTURES)}"
        )
    try:
        with torch.random.fork_rng(devices=[]):
            module = ARCHITECTURES[architecture](**arguments)
    except TypeError as error:
        raise InputError(f"{where}: {error}") from None
    try:
        module.load_state_dict(read_tensors(weights))
    except SafetensorError as error:
        raise DataError(f"{where} is not a safetensors file: {error}") from None
    except RuntimeError as error:
        raise DataError(f"{where} does not fit {architecture}: {error}") from None
    return module

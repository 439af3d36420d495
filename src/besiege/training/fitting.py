"""`fit`: trains an architecture with a recipe on a data set and writes its weights and card."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as write_tensors

from besiege.core.errors import DataError, InputError, UnknownNameError, near
from besiege.core.text import read_arguments
from besiege.data import load as load_data
from besiege.data.dataset import Data
from besiege.models.architectures import ARCHITECTURES
from besiege.models.classifier import Classifier
from besiege.models.sources import load as load_model
from besiege.training.checkpoints import make_room, replace_file
from besiege.training.epochs import Epoch
from besiege.training.loop import fresh, identify, train
from besiege.training.recipes import Recipe, recipe

# Arguments of a weights source that describe the Classifier, not the architecture.
_ABOUT = ("mean", "std", "box", "grid")
# Mean and standard deviation of the training images, per channel.
NORMALISATIONS = {"cifar10": ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616))}


def fit(
    how: str | Recipe,
    data: Any,
    arch: str,
    out: Path | str,
    *,
    seed: int = 0,
    device: torch.device | str | None = None,
    watch: Callable[[Epoch], None] | None = None,
    tick: Callable[[int, int], None] | None = None,
    resume: bool = True,
    half: bool = False,
    every: int = 1,
    compiled: bool | None = None,
    about: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Train a model and write its weights with a card: all that ``besiege train`` does.

    During training there is a checkpoint ``NAME.checkpoint`` beside the weights
    ``NAME.safetensors`` and the card ``NAME.json``. Run again after an interruption, it resumes
    from there; run again when done, it does nothing.

    Parameters
    ----------
    how : str or Recipe
        A recipe or its text; a data set may have its own variant of a named recipe.
    data : str, path, pair or Data
        Data as `besiege.data.load` takes it; for a named data set, its training images.
    arch : str
        An architecture of besiege such as ``preact_resnet18(width=32)``, built for the data with
        random initial weights; or any source of models, such as ``path/to/file.py:factory``.
    out : path
        The file of weights, ending in ``.safetensors``.
    seed : int
        Seed of initial weights, image order, augmentation and attack.
    device, watch, tick, every, compiled
        As for `train`; the default device is a GPU if there is one.
    resume : bool
        False ignores a checkpoint, and replaces the weights of another training.
    half : bool
        Write weights as float16, half as large; they load as float32.
    about : mapping, optional
        More entries for the card, such as the command.
    **changes
        Fields of the recipe and their values: ``epochs=30``, ``threat="linf:4/255"``.

    Returns
    -------
    Path
        The file of weights.

    Examples
    --------
    >>> import tempfile
    >>> out = Path(tempfile.mkdtemp()) / "mine.safetensors"
    >>> fit("natural", "digits", "digits_mlp", out, epochs=1).name
    'mine.safetensors'
    """
    target = weights_file(out)
    samples = data if isinstance(data, Data) else load_data(data, "train")
    plan = recipe(how, samples.name, **changes)
    victim, made = build(arch, samples, seed)
    identity = identify(victim, samples, plan, seed) | {"arch": arch}
    checkpoint = target.with_suffix(".checkpoint")
    make_room(target)
    if not resume:
        checkpoint.unlink(missing_ok=True)
    elif not checkpoint.exists() and made_already(target, identity):
        return target
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    history = train(
        victim,
        samples,
        plan,
        seed=seed,
        watch=watch,
        tick=tick,
        checkpoint=checkpoint,
        every=every,
        device=where,
        compiled=compiled,
    )
    facts = _facts(plan, samples, seed, torch.device(where), history)
    write(target, victim, made, {**facts, **(about or {}), "identity": identity}, half)
    checkpoint.unlink(missing_ok=True)
    return target


def weights_file(out: Path | str) -> Path:
    """The path of weights to write, validated."""
    target = Path(out)
    if target.suffix != ".safetensors":
        raise InputError(f"weights are written as .safetensors, but '{target}' ends differently")
    return target


def write(
    target: Path,
    victim: Classifier,
    made: Mapping[str, Any],
    facts: Mapping[str, Any],
    half: bool = False,
) -> Path:
    """Write the weights of a model and its card: `made` by `build`, then other facts.

    The card ends with the digest of the weights, so that a card of other weights is detected.
    """
    tensors = {k: v.detach().cpu().clone() for k, v in victim.module.state_dict().items()}
    if half:
        tensors = {k: v.half() if v.is_floating_point() else v for k, v in tensors.items()}
    weights = write_tensors({k: v.contiguous() for k, v in tensors.items()})
    card = {
        "name": target.stem,
        "source": _source(made, target),
        **made,
        **facts,
        "sha256": hashlib.sha256(weights).hexdigest(),
    }
    replace_file(target, weights)
    replace_file(target.with_suffix(".json"), (json.dumps(card, indent=2) + "\n").encode())
    return target


def build(arch: str, data: Data, seed: int = 0) -> tuple[Classifier, dict[str, Any]]:
    """A model for some data, and the card's entries on how it is built.

    Parameters
    ----------
    arch : str
        An architecture with arguments, or a source of models; see `fit`.
    data : Data
        Decides classes, channels, size and normalisation, unless `arch` does.
    seed : int
        Seed of the initial weights.
    """
    match = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", arch, re.DOTALL)
    if match is None:
        victim = fresh(lambda: load_model(arch), seed)
        return victim, {"arch": arch, "classes": data.classes}
    name = match[1]
    if name not in ARCHITECTURES:
        raise UnknownNameError(f"no architecture is called '{name}': {near(name, ARCHITECTURES)}")
    given = read_arguments(match[2] or "")
    usual = NORMALISATIONS.get(data.name, (None, None))
    mean, std = given.pop("mean", usual[0]), given.pop("std", usual[1])
    make = ARCHITECTURES[name]
    known = inspect.signature(make).parameters
    fits = {"classes": data.classes, "in_channels": data.shape[0], "size": data.shape[1]}
    # Record arguments derived from the data only where they differ from the defaults.
    decided = {k: v for k, v in fits.items() if k in known and known[k].default != v}
    arguments = {**decided, **given}
    try:
        module = fresh(lambda: make(**arguments), seed)
    except (TypeError, ValueError) as problem:
        raise InputError(f"'{arch}' cannot be built for {data!r}: {problem}") from None
    victim = Classifier(module, mean=mean, std=std, classes=data.classes, name=arch)
    about: dict[str, Any] = {"arch": name}
    if arguments:
        about["arguments"] = arguments
    about["classes"] = data.classes
    if mean is not None:
        about |= {"mean": mean, "std": std}
    return victim, about


def _source(made: Mapping[str, Any], weights: Path) -> str | None:
    """The text that `besiege.models.load` reads; None if besiege cannot build the network."""
    if made["arch"] not in ARCHITECTURES:
        return None
    given = {**made.get("arguments", {}), **{k: made[k] for k in _ABOUT if k in made}}
    arguments = ", ".join(f"{key}={value!r}" for key, value in given.items())
    return f"{made['arch']}{f'({arguments})' if arguments else ''}:{weights}"


def _facts(
    plan: Recipe, data: Data, seed: int, device: torch.device, history: list[Epoch]
) -> dict[str, Any]:
    """The card's entries on a training."""
    scores = [e.clean if e.robust is None else e.robust for e in history]
    kept = max(range(len(history)), key=lambda n: (scores[n] if scores[n] is not None else 0.0, n))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type.upper()
    return {
        "recipe": str(plan),
        "settings": {k: v for k, v in plan.settings().items() if k != "name"},
        "seed": seed,
        "data": f"{data.name} {data.split}, {len(data)} images, sha256 {data.digest}",
        "device": f"{name}, torch {torch.__version__.partition('+')[0]}",
        "seconds": round(sum(epoch.seconds for epoch in history), 1),
        "epoch": asdict(history[kept]),
    }


def made_already(weights: Path, identity: Mapping[str, str]) -> bool:
    """Whether weights and card of this training exist; those of another raise an error."""
    card = weights.with_suffix(".json")
    if not weights.exists() and not card.exists():
        return False
    try:
        facts = json.loads(card.read_text())
        same = hashlib.sha256(weights.read_bytes()).hexdigest() == facts["sha256"]
        if same and facts["identity"] == dict(identity):
            return True
    except (OSError, ValueError, KeyError, TypeError):
        pass  # one of the two is missing, or was not written by `write`
    raise DataError(
        f"{weights} exists and is not of this training: choose another name, or start again "
        "(resume=False), which replaces it"
    )

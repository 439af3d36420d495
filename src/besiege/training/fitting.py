"""`fit`: trains an architecture with a recipe on a data set and writes its weights and card."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as write_tensors

from besiege.core.dice import Dice
from besiege.core.errors import DataError, InputError, UnknownNameError, near
from besiege.core.text import read_arguments
from besiege.data import load as load_data
from besiege.data.dataset import Data
from besiege.defenses.layers import Layer
from besiege.models.architectures import ARCHITECTURES
from besiege.models.catalogue import CATALOGUE, zoo_card
from besiege.models.classifier import Classifier
from besiege.models.sources import load_network
from besiege.training.checkpoints import make_room, replace_file
from besiege.training.history import Epoch, collapsed, fall, kept
from besiege.training.loop import fresh, identify, train
from besiege.training.losses import CrossEntropy, Distil
from besiege.training.recipes import Recipe, must_read_back, recipe

# Arguments of a weights source that describe the Classifier, not the architecture.
_ABOUT = ("mean", "std", "box", "outputs", "grid")
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
    stage: Callable[[str, Path], None] | None = None,
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
        random initial weights; or any source of models, such as ``path/to/file.py:factory``, whose
        weights are the start: ``zoo:NAME`` is fine-tuned.
    out : path
        The file of weights, ending in ``.safetensors``.
    seed : int
        Seed of initial weights, image order, augmentation and attack.
    device, watch, tick, every, compiled
        As for `train`; the default device is a GPU if there is one.
    stage : callable, optional
        Called before each training of a distillation that needs a teacher, with 'teacher' or
        'student' and its file of weights.
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
    plan = asked = recipe(how, samples.name, **changes)
    must_read_back(plan)
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if plan.objective.needs_teacher and plan.objective.teacher is None:
        options = {"seed": seed, "device": where, "watch": watch, "resume": resume, "every": every}
        first, tick = _halves(tick)
        taught_by = teacher_file(target)
        if stage is not None:
            stage("teacher", taught_by)
        plan = _with_teacher(plan, samples, arch, taught_by, tick=first, **options)
        if stage is not None:
            stage("student", target)
    victim, made = build(arch, samples, seed, plan.layers)
    identity = identify(victim, samples, plan, seed) | {"arch": arch}
    identity |= {"start": victim.digest()} if "start" in made else {}
    checkpoint = target.with_suffix(".checkpoint")
    make_room(target)
    if not resume:
        checkpoint.unlink(missing_ok=True)
    elif not checkpoint.exists() and made_already(target, identity):
        return target
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
    facts = _facts(asked, samples, seed, torch.device(where), history)
    write(target, victim, made, {**facts, **(about or {}), "identity": identity}, half)
    checkpoint.unlink(missing_ok=True)
    return target


def teacher_file(student: Path) -> Path:
    """The weights of the teacher that is trained for a student, beside the student's."""
    return student.with_name(f"{student.stem}.teacher{student.suffix}")


def _with_teacher(plan: Recipe, data: Data, arch: str, out: Path, **options: Any) -> Recipe:
    """The recipe with a teacher, which is trained first."""
    objective = plan.objective
    assert isinstance(objective, Distil)
    usual = replace(plan, objective=CrossEntropy(temperature=objective.temperature))
    weights = fit(usual, data, arch, out, **options)
    source = json.loads(weights.with_suffix(".json").read_text())["source"]
    if source is None:
        raise InputError(
            f"the network of '{arch}' cannot be loaded from its weights again: train a teacher "
            "first, and write objective=distil('path/to/file.py:factory')"
        )
    return replace(plan, objective=replace(objective, teacher=str(source)))


Tick = Callable[[int, int], None]


def _halves(tick: Tick | None) -> tuple[Tick | None, Tick | None]:
    """The progress of a first and of a second training of the same length, as one."""
    if tick is None:
        return None, None
    return (lambda done, steps: tick(done, 2 * steps)), (
        lambda done, steps: tick(steps + done, 2 * steps)
    )


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
        "source": source_of(made, target),
        **made,
        **facts,
        "sha256": hashlib.sha256(weights).hexdigest(),
    }
    replace_file(target, weights)
    replace_file(target.with_suffix(".json"), (json.dumps(card, indent=2) + "\n").encode())
    return target


def build(
    arch: str, data: Data, seed: int = 0, layers: tuple[Layer, ...] = ()
) -> tuple[Classifier, dict[str, Any]]:
    """A model for some data, and the card's entries on how it is built.

    Parameters
    ----------
    arch : str
        An architecture with arguments, or a source of models; see `fit`.
    data : Data
        Decides classes, channels, size and normalisation, unless `arch` does.
    seed : int
        Seed of the initial weights.
    layers : tuple of Layer
        Layers in front of the model, which may change channels and size of the images.
    """
    behind = {"layers": "+".join(map(str, layers))} if layers else {}
    named = read_architecture(arch)
    if named is None:
        victim = fresh(lambda: load_network(arch), seed)
        return victim, _started(arch, victim, data) | behind
    name, given = named
    shape = _shape_behind(layers, data)
    classifies = CATALOGUE[name].makes == "logits"
    plain = shape == data.shape and classifies
    usual = NORMALISATIONS.get(data.name, (None, None)) if plain else (None, None)
    mean, std = given.pop("mean", usual[0]), given.pop("std", usual[1])
    make = ARCHITECTURES[name]
    known = inspect.signature(make).parameters
    fits = {"classes": data.classes, "in_channels": shape[0], "size": shape[1]}
    # Record arguments derived from the data only where they differ from the defaults.
    decided = {k: v for k, v in fits.items() if k in known and known[k].default != v}
    arguments = {**decided, **given}
    try:
        module = fresh(lambda: make(**arguments), seed)
    except (TypeError, ValueError) as problem:
        raise InputError(f"'{arch}' cannot be built for {data!r}: {problem}") from None
    classes = data.classes if classifies else None
    victim = Classifier(module, mean=mean, std=std, classes=classes, name=arch)
    about: dict[str, Any] = {"arch": name}
    if arguments:
        about["arguments"] = arguments
    if classifies:
        about["classes"] = data.classes
    if mean is not None:
        about |= {"mean": mean, "std": std}
    return victim, about | behind


def read_architecture(arch: str) -> tuple[str, dict[str, Any]] | None:
    """The name and the arguments of an architecture; None for a source of models."""
    match = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", arch, re.DOTALL)
    if match is None:
        return None
    name = match[1]
    if name not in ARCHITECTURES:
        raise UnknownNameError(f"no architecture is called '{name}': {near(name, ARCHITECTURES)}")
    return name, read_arguments(match[2] or "")


def _shape_behind(layers: tuple[Layer, ...], data: Data) -> tuple[int, ...]:
    """The shape of the images that a model behind the layers takes."""
    x, dice = data.images[:1], Dice.throw(0, data.ids[:1])
    for layer in layers:
        x = layer(x, (0.0, 1.0), dice)
    return tuple(x.shape[1:])


def _started(arch: str, victim: Classifier, data: Data) -> dict[str, Any]:
    """The card's entries on a model that a source gave, whose training goes on."""
    about: dict[str, Any] = {"arch": arch, "classes": data.classes}
    scheme, _, name = arch.partition(":")
    weights = re.fullmatch(r"(\w+)(?:\((.*)\))?:(?!.*\.py:).+", arch, re.DOTALL)
    if scheme == "zoo":
        card = zoo_card(name)
        about |= {key: card[key] for key in ("arch", "arguments") if key in card}
    elif weights is not None and weights[1] in ARCHITECTURES:
        given = read_arguments(weights[2] or "")
        arguments = {k: v for k, v in given.items() if k not in _ABOUT}
        about |= {"arch": weights[1], **({"arguments": arguments} if arguments else {})}
    if about["arch"] != arch:
        about["start"] = arch
    if victim.mean is not None:
        about |= {"mean": victim.mean, "std": victim.std}
    # Only what is not usual: a card of a model without any stays as it is.
    usual = {"box": (0.0, 1.0), "outputs": "logits", "grid": None}
    mine = {"box": victim.box, "outputs": victim.outputs, "grid": victim.grid}
    about |= {name: value for name, value in mine.items() if value != usual[name]}
    return about


def source_of(made: Mapping[str, Any], weights: Path) -> str | None:
    """The text that `besiege.defenses.load` reads; None if besiege cannot build the network.

    `made` are the entries of a card on how a model is built, or the whole card.
    """
    if made["arch"] not in ARCHITECTURES:
        return None
    given = {**made.get("arguments", {}), **{k: made[k] for k in _ABOUT if k in made}}
    arguments = ", ".join(f"{key}={value!r}" for key, value in given.items())
    layers = f"+{made['layers']}" if "layers" in made else ""
    return f"{made['arch']}{f'({arguments})' if arguments else ''}:{weights}{layers}"


def _facts(
    plan: Recipe, data: Data, seed: int, device: torch.device, history: list[Epoch]
) -> dict[str, Any]:
    """The card's entries on a training."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type.upper()
    return {
        "recipe": str(plan),
        "settings": {k: v for k, v in plan.settings().items() if k != "name"},
        "seed": seed,
        "data": f"{data.name} {data.split}, {len(data)} images, sha256 {data.digest}",
        "device": f"{name}, torch {torch.__version__.partition('+')[0]}",
        "seconds": round(sum(epoch.seconds for epoch in history), 1),
        "epoch": asdict(kept(history, plan.guard)),
        **({"ended": _ended(plan, history)} if collapsed(history, plan.guard) else {}),
    }


def _ended(plan: Recipe, history: list[Epoch]) -> str:
    """How the guard ended a training."""
    last, stays = history[-1], kept(history, plan.guard)
    chosen = ", the best on held-out images" if plan.held_out else ""
    return (
        f"The guard ended the training after epoch {last.number} of {plan.epochs}: the accuracy "
        f"under PGD-5 on training images fell by {100 * fall(history):.1f} points from its best. "
        f"The weights are those of epoch {stays.number}{chosen}."
    )


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

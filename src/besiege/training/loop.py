"""`train`: the one training loop, for natural and adversarial recipes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from besiege.core.errors import InputError, VictimError
from besiege.core.identity import plain
from besiege.core.samples import in_box
from besiege.core.threat import Access
from besiege.core.victim import Victim
from besiege.data.dataset import Data
from besiege.defenses.defended import Defended, load
from besiege.defenses.layers import Layer
from besiege.models.classifier import Classifier
from besiege.training.checking import classes_of, has_gradient, must_fit, must_take, written
from besiege.training.checkpoints import Checkpoint, make_room
from besiege.training.epochs import Training, lay_out
from besiege.training.history import Epoch
from besiege.training.inner import networks
from besiege.training.recipes import Recipe, must_read_back, recipe

T = TypeVar("T")


def fresh(make: Callable[[], T], seed: int = 0) -> T:
    """A module with initial weights drawn by a seed; the global random state does not change."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def train(
    model: nn.Module | Classifier | Defended,
    data: Data,
    how: str | Recipe,
    *,
    seed: int = 0,
    watch: Callable[[Epoch], None] | None = None,
    tick: Callable[[int, int], None] | None = None,
    checkpoint: Path | str | None = None,
    every: int = 1,
    device: torch.device | str | None = None,
    compiled: bool | None = None,
    in_box: bool = False,
) -> list[Epoch]:
    """Train a model in place.

    The attacks that measure models also make the adversarial images; the last iterate of every
    image is used. The same seed gives the same weights on the same
    machine; the global random state does not change.

    Parameters
    ----------
    model : nn.Module, Classifier or Defended
        The model; a `Classifier` brings its normalisation, a `Defended` the layers in front of it.
    data : Data
        Training data.
    how : str or Recipe
        A recipe or its text, such as ``pgd-at(epochs=20)``.
    seed : int
        Seed of the image order, the augmentation and the attack.
    watch : callable, optional
        Called after every epoch.
    tick : callable, optional
        Called after every step with the steps done and the total number of steps.
    checkpoint : path, optional
        A file for the state after the last epoch. If it exists, training resumes from it, and on a
        CPU ends with bitwise the weights of an uninterrupted run. It is kept after training.
    every : int
        Number of epochs between checkpoints.
    device : optional
        Where to train; the model is moved there. By default where the model is.
    compiled : bool, optional
        Whether to compile the model; by default on a GPU, unless the training is short.
    in_box : bool
        Whether the images are in the model's box already. By default they are in [0, 1], as those
        of data sets are, and scaled to the box.

    Returns
    -------
    list of Epoch
        All epochs, including those before an interruption.
    """
    plan = recipe(how, data.name)
    if every < 1:
        raise InputError(f"every is {every!r}, but it counts the epochs between checkpoints")
    victim, layers = _taken_apart(model, plan)
    if device is not None:
        victim.module.to(device)
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None:
        must_read_back(plan)
        make_room(path)
    identity = {} if path is None else identify(model, data, plan, seed)
    data = data if in_box else boxed(data, victim.box)
    must_fit(victim, data, plan, layers)
    sources = [_source(text, plan, victim, layers, data) for text in plan.sources]
    teacher = _teacher(plan, victim, layers, data)
    guide = None if plan.objective.guide is None else _guide(plan.objective.guide, victim, data)
    with _as_it_was(victim.module):
        work = Training(
            victim,
            data,
            plan,
            seed,
            compiled,
            layers=layers,
            sources=sources,
            teacher=teacher,
            guide=guide,
        )
        if path is not None and path.exists():
            state = Checkpoint.read(path)
            state.must_be(identity, path)
            work.restore(state)
        while not work.done:
            work.epoch(tick)
            number = len(work.history)
            if path is not None and (number % every == 0 or work.done):
                work.checkpoint(identity).write(path)
            if watch is not None:
                watch(work.history[-1])
        work.finish()
    return work.history


def boxed(data: Data, box: tuple[float, float]) -> Data:
    """Data with pixels in [0, 1] as a model takes them: in its box."""
    return replace(data, images=in_box(data.images, box))


def _taken_apart(
    model: nn.Module | Classifier | Defended, plan: Recipe
) -> tuple[Classifier, tuple[Layer, ...]]:
    """The model that is trained, and the layers in front of it: its own, then the recipe's."""
    own: tuple[Layer, ...] = ()
    victim: Victim = Classifier.of(model)
    if isinstance(victim, Defended):
        own, victim = victim.layers, victim.bare
    if not isinstance(victim, Classifier):
        raise InputError(
            f"a {type(victim).__name__} cannot be trained: give a torch.nn.Module, a Classifier, "
            "or a Defended around one"
        )
    if own and plan.layers and own != plan.layers:
        raise InputError(
            f"the model stands behind {written(own)} and the recipe trains behind "
            f"{written(plan.layers)}: give the model without layers, or layers=() in the recipe"
        )
    return victim, own or plan.layers


def _other(
    text: str, role: str, victim: Classifier, layers: tuple[Layer, ...], data: Data
) -> Victim:
    """A model that is not trained, on the victim's device and checked against it."""
    other = load(text, victim.device)
    try:
        classes = classes_of(other, data)
    except (VictimError, InputError) as problem:
        shape = "x".join(map(str, data.images.shape[1:]))
        raise InputError(
            f"the {role} {text} does not take the {shape} images of {data.name}: choose one that "
            f"was trained on such images ({problem})"
        ) from problem
    if classes != victim.classes:
        raise InputError(
            f"the {role} {text} has {classes} classes, and the model in training {victim.classes}: "
            "choose one that was trained on the same classes"
        )
    if other.box != victim.box:
        raise InputError(f"the {role} {text} takes pixels in {other.box}, the model {victim.box}")
    front = Defended(victim, *layers) if layers else victim
    if other.digest() == front.digest():
        raise InputError(f"the {role} {text} is the model in training itself: choose another one")
    other.classes = classes
    for network in networks(other):
        # It never changes: neither its weights nor, in training mode, its running statistics.
        network.eval().requires_grad_(False)
    return other


def _source(
    text: str, plan: Recipe, victim: Classifier, layers: tuple[Layer, ...], data: Data
) -> Victim:
    """A static model, checked against the attacks that craft images on it."""
    source = _other(text, "static model", victim, layers, data)
    for attack in filter(None, (plan.attack, plan.early)):
        must_take(source, attack)
        follows = attack.access is Access.GRADIENT
        if attack.access > source.access or (follows and not has_gradient(source, data)):
            raise InputError(
                f"the attack '{attack}' of the recipe needs {attack.access} access, and the static "
                f"model {text} has none: choose another one"
            )
    return source


def _teacher(
    plan: Recipe, victim: Classifier, layers: tuple[Layer, ...], data: Data
) -> Victim | None:
    if not plan.objective.needs_teacher:
        return None
    text = plan.objective.teacher
    if text is None:
        raise InputError(
            f"the objective '{plan.objective}' needs a teacher: write distil('zoo:NAME') or "
            "distil('ARCH:FILE'); besiege train makes one itself"
        )
    return _other(text, "teacher", victim, layers, data)


def _guide(text: str, victim: Classifier, data: Data) -> Victim:
    """The model that guides a denoiser, checked on some images."""
    guide = load(text, victim.device)
    if guide.box != victim.box:
        raise InputError(f"the guide {text} takes pixels in {guide.box}, the network {victim.box}")
    classes_of(guide, data)
    return guide


def identify(
    model: nn.Module | Classifier | Defended, data: Data, plan: Recipe, seed: int
) -> dict[str, str]:
    """The identity of a training: all that decides its result, so neither device nor speed."""
    victim, layers = _taken_apart(model, plan)
    shapes = {k: [str(v.dtype), list(v.shape)] for k, v in victim.module.state_dict().items()}
    about = [victim.mean, victim.std, victim.box, victim.outputs, shapes]
    about += [] if victim.sizing is None else [str(victim.sizing)]
    digest = hashlib.sha256(json.dumps(about).encode()).hexdigest()
    slots = (plan.objective, plan.radius, plan.update, plan.attack, plan.early)
    # An empty slot counts, as it did in the identities of all that was trained before.
    found = ([None] if slot is None else _from_outside(slot) for slot in slots)
    own = [plain(one) for parts in found for one in parts]
    own += [layer.identity() for layer in layers]
    others = [*plan.sources, *filter(None, (plan.objective.teacher, plan.objective.guide))]
    return {
        "recipe": str(plan),
        "settings": json.dumps(plan.settings(), sort_keys=True),
        "data": f"{data.name} {data.split}, sha256 {data.digest}",
        "model": f"{type(victim.module).__name__}, sha256 {digest}",
        "seed": str(seed),
        # Only where there are any: identities of earlier versions stay as they are.
        **({"layers": written(layers)} if layers else {}),
        **({"pixels": f"scaled to {victim.box}"} if victim.box != (0.0, 1.0) else {}),
        # Parts of another package by their code, and networks inside layers by their weights.
        **({"parts": hashlib.sha256("\n".join(own).encode()).hexdigest()} if own else {}),
        **({"other models": " ".join(load(text).digest() for text in others)} if others else {}),
    }


def _from_outside(value: object) -> Iterator[object]:
    """What is not of besiege in a slot: its value, or parts of it such as an attack in another."""
    # A function says itself where it is from, any other value by its class.
    home = str(getattr(value if callable(value) else type(value), "__module__", ""))
    if home == "builtins":  # numbers and texts, which the text of the recipe has
        for one in value if isinstance(value, (tuple, list)) else ():
            yield from _from_outside(one)
    elif not home.startswith("besiege."):
        yield value
    elif is_dataclass(value):
        yield from _from_outside([getattr(value, f.name) for f in fields(value)])


@contextmanager
def _as_it_was(module: nn.Module) -> Iterator[None]:
    """Restore the modes and the memory layout of a module afterwards, and drop its gradients."""
    modes = [(part, part.training) for part in module.modules()]
    usual = all(parameter.is_contiguous() for parameter in module.parameters())
    try:
        yield
    finally:
        if usual:
            lay_out(module, torch.contiguous_format)
        for parameter in module.parameters():
            parameter.grad = None
        for part, mode in modes:
            part.training = mode

"""`train`: the one training loop, for natural and adversarial recipes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from besiege.core.errors import InputError
from besiege.core.oracle import Oracle
from besiege.data.dataset import Data
from besiege.models.classifier import Classifier
from besiege.training.checkpoints import Checkpoint, make_room
from besiege.training.epochs import Epoch, Training, lay_out
from besiege.training.recipes import Recipe, recipe

T = TypeVar("T")


def fresh(make: Callable[[], T], seed: int = 0) -> T:
    """A module with initial weights drawn by a seed; the global random state does not change."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def train(
    model: nn.Module | Classifier,
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
) -> list[Epoch]:
    """Train a model in place.

    The attacks that measure models also make the adversarial images, with the model in eval mode;
    the last iterate of every image is used. The same seed gives the same weights on the same
    machine; the global random state does not change.

    Parameters
    ----------
    model : nn.Module or Classifier
        The model; a `Classifier` brings its normalisation.
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

    Returns
    -------
    list of Epoch
        All epochs, including those before an interruption.
    """
    plan = recipe(how)
    if len(data) == 0:
        raise InputError("the training data are empty")
    if plan.held_out >= len(data):
        raise InputError(
            f"the recipe holds out {plan.held_out} images of {len(data)}: no images are left to "
            "train on, so choose a smaller held_out"
        )
    if every < 1:
        raise InputError(f"every is {every!r}, but it counts the epochs between checkpoints")
    victim = Classifier.of(model)
    if device is not None:
        victim.module.to(device)
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None:
        make_room(path)
    _must_fit(victim, data)
    identity = {} if path is None else identify(victim, data, plan, seed)
    with _as_it_was(victim.module):
        work = Training(victim, data, plan, seed, compiled)
        if path is not None and path.exists():
            state = Checkpoint.read(path)
            state.must_be(identity, path)
            work.restore(state)
        while len(work.history) < plan.epochs:
            work.epoch(tick)
            number = len(work.history)
            if path is not None and (number % every == 0 or number == plan.epochs):
                work.checkpoint(identity).write(path)
            if watch is not None:
                watch(work.history[-1])
        work.finish()
    return work.history


def _must_fit(victim: Classifier, data: Data) -> None:
    """Refuse images that the model cannot take and labels without a class, before any work."""
    some = data.images[:8].to(victim.device)
    with victim.held():
        classes = Oracle(victim).logits(some).shape[1]
    low, high = int(data.labels.min()), int(data.labels.max())
    if low < 0 or high >= classes:
        raise InputError(
            f"the labels of {data.name} go from {low} to {high}, but the model has {classes} "
            f"classes: it needs labels from 0 to {classes - 1}"
        )


def identify(victim: Classifier, data: Data, plan: Recipe, seed: int) -> dict[str, str]:
    """The identity of a training: all that decides its result, so neither device nor speed."""
    shapes = {k: [str(v.dtype), list(v.shape)] for k, v in victim.module.state_dict().items()}
    about = [victim.mean, victim.std, victim.box, victim.outputs, shapes]
    about += [] if victim.sizing is None else [str(victim.sizing)]
    digest = hashlib.sha256(json.dumps(about).encode()).hexdigest()
    return {
        "recipe": str(plan),
        "settings": json.dumps(plan.settings(), sort_keys=True),
        "data": f"{data.name} {data.split}, sha256 {data.digest}",
        "model": f"{type(victim.module).__name__}, sha256 {digest}",
        "seed": str(seed),
    }


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

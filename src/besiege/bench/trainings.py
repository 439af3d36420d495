"""Trainings of a benchmark: read and checked, then done before its evaluations are planned."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shutil import rmtree

import torch

from besiege.bench.context import Context
from besiege.bench.model_spec import model_spec
from besiege.bench.shards import Read, boxed, read_data
from besiege.bench.spec import Machine, Request, Trained
from besiege.bench.store import SCHEMA, Store, key_of
from besiege.bench.training_plan import WEIGHTS, TrainingPlan
from besiege.core.errors import InputError
from besiege.core.victim import Victim
from besiege.data.dataset import Data
from besiege.defenses.defended import Defended
from besiege.training.checking import must_fit
from besiege.training.fitting import build, source_of
from besiege.training.loop import boxed as in_box
from besiege.training.loop import identify
from besiege.training.recipes import Recipe, recipe

FOLDER = "trainings"
"""The folder of checkpoints, one folder for each training that is under way."""


@dataclass(frozen=True)
class Training:
    """A training with its live objects.

    Attributes
    ----------
    plan : TrainingPlan
        The training as data.
    recipe, data
        How it is trained, and on which images.
    victim : Victim
        The untrained model, behind the layers of the recipe. It stands in for the trained one where
        attacks are checked and passes are timed.
    """

    plan: TrainingPlan
    recipe: Recipe
    data: Data
    victim: Victim

    @cached_property
    def name(self) -> str:
        """The name of the model."""
        return self.plan.model.name

    def context(self, store: Store, how: Machine) -> Context:
        """The live objects of its task."""
        first = boxed(self.data.take([0]), self.victim, scaled=False)
        return Context(
            *(store, {self.plan.name: self.victim}, {}, {}, {}, first, None, how),
            trainings={self.plan.name: self},
        )


def read_training(name: str, given: Trained, how: Machine, read: Read) -> Training:
    """A training of a benchmark, checked as far as that needs no training."""
    assert given.data is not None, "expanding a benchmark fills it in"
    asked = Request.of(model=name, data=given.data, threat="linf", split="train")
    data, _ = read_data(asked, None, None, read)
    plan = recipe(given.train, data.name)
    bare, made = build(given.arch, data, given.seed, plan.layers)
    if source_of(made, Path(WEIGHTS)) is None:
        raise InputError(
            f"the weights of '{given.arch}' cannot be loaded again: name an architecture of besiege"
        )
    must_fit(bare, in_box(data, bare.box), plan)
    identity = {
        "kind": "train",
        "schema": SCHEMA,
        **identify(bare, data, plan, given.seed),
        "arch": given.arch,
        **({"start": bare.digest()} if "start" in made else {}),
    }
    key = key_of(identity)
    where = how.device or ("cuda" if torch.cuda.is_available() else "cpu")
    victim: Victim = (Defended(bare, *plan.layers) if plan.layers else bare).to(where)
    # Models that start with the same weights are different models once they are trained.
    victim.digest = lambda: key  # type: ignore[method-assign]  # of this object only
    steps = 0 if plan.attack is None else plan.attack.passes(data.shape, data.classes)
    about = TrainingPlan(
        model=model_spec(victim, asked, victim.classes or data.classes),
        given=given,
        identity=identity,
        # A backward pass costs about as much as two forward passes.
        passes=3 * plan.epochs * (len(data) - plan.held_out) * (1 + steps),
    )
    return Training(about, plan, data, victim)


def workplace(store: Store, key: str) -> Path:
    """The folder of the checkpoint of a training."""
    return store.folder / FOLDER / key


def clear(store: Store, trainings: Sequence[Training]) -> None:
    """Remove what trainings that are done needed meanwhile."""
    for one in trainings:
        if store.sound(one.plan.name) is not None:
            rmtree(workplace(store, one.plan.name), ignore_errors=True)
    with suppress(OSError):  # others are under way, or failed
        (store.folder / FOLDER).rmdir()

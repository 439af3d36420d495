"""A training as data: the plan of a model that a benchmark trains before it is evaluated."""

from __future__ import annotations

import json
from typing import Any, Self

from besiege.bench.spec import ModelSpec, Shard, Trained, Value
from besiege.bench.store import Store
from besiege.bench.task import Stage, Task

WEIGHTS, CARD = "weights.safetensors", "weights.json"
"""The files of its record."""


def trained_text(store: Store, key: str) -> str | None:
    """The text of a trained model with the path of its weights; None until it is trained.

    Requests name the model only, so that a run whose folder was moved is still the same run.
    """
    if store.sound(key) is None:
        return None
    found = store.with_files(key, [CARD])
    assert found is not None, "a sound record is there"
    source = str(json.loads(found[1][CARD])["source"])
    return source.replace(f":{WEIGHTS}", f":{store.records / key / WEIGHTS}", 1)


class TrainingPlan(Value):
    """A model that a benchmark trains: one task, whose record holds the weights.

    Attributes
    ----------
    model : ModelSpec
        The model under its name in the benchmark; its digest is the key of the task until there
        are weights.
    given : Trained
        Recipe, architecture, data and seed, as a worker reads them.
    identity : dict
        All that decides the weights.
    passes : int
        Estimated forward passes of one image.
    """

    model: ModelSpec
    given: Trained
    identity: dict[str, Any]
    passes: int

    @property
    def task(self) -> Task:
        """The training."""
        return Task("train", self.identity)

    @property
    def name(self) -> str:
        """The key of its task."""
        return self.task.key

    # As a `besiege.bench.plan.Staged`.

    @property
    def title(self) -> str:
        return f"training of {self.model.name}"

    @property
    def given_up(self) -> str:
        return f"the training of the model '{self.model.name}' failed"

    @property
    def chained(self) -> bool:
        return False

    @property
    def shards(self) -> tuple[Shard, ...]:
        return (Shard(digest=self.name, count=self.passes),)

    def stages(self) -> list[Stage]:
        """The training as the only stage."""
        return [Stage("train", ((self.task,),), (self.passes,))]

    def decided(self, store: Store) -> Self:
        """The plan itself: nothing follows from a training before there is a model."""
        return self

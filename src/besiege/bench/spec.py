"""The values an evaluation is written down as: the request, the model, the data, the attacks.

``run.json`` holds them; an alias is the name that a field has there. They contain everything the
keys of the records are made of, so that a reader of a run knows which records belong to it without
a model and without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from besiege.core.errors import InputError
from besiege.core.text import quoted


class Value(BaseModel):
    """A frozen value that refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Shard(Value):
    """A fixed part of the samples."""

    digest: str
    count: int


class AttackSpec(Value):
    """An attack and the terms it runs on.

    ``spelled`` is the attack with all its parts, defaults included; ``plain`` says that it is one
    ascent of a loss, so that its trace can be read as one.
    """

    text: str
    described: str = Field(validation_alias="told", serialization_alias="told")
    spelled: dict[str, Any]
    threat: str
    keep: str
    leave: str
    queries: int | None
    steps: int | None
    restarts: int
    plain: bool
    one_step: bool
    passes: int
    """About how many forward passes it takes for a sample it does not break."""
    access: Literal["gradient", "score", "decision"] = "gradient"
    """The access it needs; the first releases had gradient attacks only and did not write it."""
    source: str | None = None
    """The digest of the substitute it is crafted on, where that is not the victim."""
    advice: str | None = None
    """The digest of the substitute whose gradients it uses besides the victim's answers."""
    starts: str | None = None
    """The digest of the images it may start from."""


class Request(Value):
    """What a user asks for: filled in by the command line, `besiege.evaluate` and ``--dry-run``.

    Everything is text or a number, so that it can be written down and asked again; objects that
    exist only in memory are passed beside it (`besiege.bench.request.Objects`). `resolve`
    completes it: attacks, threat and shard are then spelled out.
    """

    model: str
    data: str
    threat: str
    attacks: tuple[str, ...] | str | None = None
    suite: str | None = None
    goal: str | None = None
    access: str | None = None
    queries: int | None = None
    curve: Literal["short", "full", "none"] = "short"
    count: int | None = None
    seed: int = 0
    split: str = "test"
    shard: int | None = None
    substitute: tuple[str, ...] = ()
    """Models whose gradients stand in for the victim's; several form one ensemble."""
    fuse: Literal["logits", "probabilities", "losses"] = "logits"
    """What such an ensemble averages."""
    resize: str | None = None
    crop: str | None = None
    channels: int | None = None
    layout: str | None = None
    command: str = ""
    """The command or call that reproduces it."""
    textual: bool = True
    """Whether model and data are named by texts, which can be read again."""

    @classmethod
    def of(cls, **fields: Any) -> Request:
        """A request of these fields; an error says which one is wrong."""
        try:
            return cls(**fields)
        except ValidationError as problem:
            wrong = problem.errors()[0]
            name = str(wrong["loc"][0])
            raise InputError(
                f"{name} is {quoted(fields.get(name))}: {wrong['msg'].lower()}"
            ) from None


class ModelSpec(Value):
    """The victim: its digest, and what reports say of it."""

    name: str
    digest: str
    kind: str
    classes: int
    parameters: int | None
    box: tuple[float, float]
    stochastic: bool
    draws: int
    """How many answers of a stochastic victim each image is judged by."""
    undefended: bool = False
    """Whether it is known to have been trained without any defense, and has no layers."""


class DataSpec(Value):
    """The samples: which ones, and of which data set."""

    name: str
    split: str
    count: int
    total: int
    seed: int | None
    digest: str
    class_names: tuple[str, ...]
    shape: tuple[int, ...]
    scaled: bool
    """Whether pixels in [0, 1] are scaled to the victim's box."""
    standard: float | None
    """The budget usual for these data in the threat's norm, where there is one."""


class Curve(Value):
    """The search for the smallest perturbation that gives accuracy against the budget."""

    attack: AttackSpec = Field(validation_alias="weapon", serialization_alias="weapon")
    shards: tuple[Shard, ...]


class Searches(Value):
    """The searches that a curve can be made with: that of the strongest attack is run.

    ``attacks`` has one entry per attack of the plan: its search, or why there is none.
    """

    attacks: tuple[AttackSpec | str, ...]
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class Machine:
    """Where and how an evaluation is computed; it changes no result.

    Attributes
    ----------
    device : str, optional
        Where the model computes.
    batch : int, optional
        Rows per call of the model.
    compile : bool
        Whether the copies that attacks search on are compiled, on a GPU.
    """

    device: str | None = None
    batch: int | None = None
    compile: bool = False

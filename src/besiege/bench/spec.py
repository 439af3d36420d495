"""The values of ``run.json``: the request, the model, the data, the attacks.

An alias is the name of a field there. The keys of the records follow from these values only, so a
reader of a run knows which records belong to it without a model and without torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from besiege.attacks.suites import suite_name
from besiege.core.errors import InputError
from besiege.core.text import MOST, quoted

_OPTION = r"\s*(?:resize|crop|channels|layout)\s*=\s*\w+\s*"
_DATA = re.compile(rf"(?P<source>.*?)\s*\((?P<options>{_OPTION}(?:,{_OPTION})*)\)\s*", re.DOTALL)
"""The text of data with options."""
Seed = Field(default=0, ge=-MOST - 1, le=MOST)


class Value(BaseModel):
    """A frozen value that refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Shard(Value):
    """A fixed part of the samples."""

    digest: str
    count: int


class AttackSpec(Value):
    """An attack and the terms it runs on.

    ``spelled`` is the attack with all its parts, defaults included; ``plain`` says whether it is an
    ascent of one loss, whose trace rules can use.
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
    last: bool = False
    """Whether only its last iterate is examined, so that steps of successes say nothing."""
    passes: int
    """Approximate number of forward passes for a sample that it does not break."""
    access: Literal["gradient", "score", "decision"] = "gradient"
    """The access it needs; the first releases had gradient attacks only and did not write it."""
    source: str | None = None
    """The digest of the substitute it is crafted on, if any."""
    advice: str | None = None
    """The digest of the substitute whose gradients it uses besides the victim's answers."""
    starts: str | None = None
    """The digest of the images it may start from."""
    written: str | None = None
    """The text with the names of presets, such as ``pgd@madry``, where the user wrote one."""

    @property
    def title(self) -> str:
        """The text that tables show."""
        return self.written or self.text


class Target(Value):
    """Another model that judges the images of an evaluation.

    ``model`` is its digest without the layer that adapts images to its size.
    """

    name: str
    digest: str
    model: str


class Request(Value):
    """A user's request, from the command line, `besiege.evaluate` or ``--dry-run``.

    Every field is a text or a number, so that it can be stored and repeated; objects that exist
    only in memory are passed separately (`besiege.bench.request.Objects`). `resolve` completes it:
    attacks, threat and shard are then spelled out. The text of the data may have options:

    >>> photos = Request(model="zoo:NAME", data="photos(resize=256, crop=224)", threat="l2:0.5")
    >>> photos.data, photos.resize, photos.crop
    ('photos', '256', '224')
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
    """Models whose gradients replace the victim's; several form one ensemble."""
    fuse: Literal["logits", "probabilities", "losses"] = "logits"
    """Outputs that such an ensemble averages."""
    across: tuple[str, ...] = ()
    """Other models that judge the images crafted on this one, too."""
    beside: tuple[str, ...] = ()
    """Other models whose calibration images are left out, too: those of the same table."""
    resize: str | None = None
    crop: str | None = None
    channels: int | None = None
    layout: str | None = None
    examine: Literal["full", "short", "none"] = "none"
    """How the model and its evaluation are examined; earlier releases did not."""
    active_test: int | None = None
    """Samples of the active test, where it is requested by name; None runs it as a part of the
    examination."""
    clever: str | None = None
    """How CLEVER scores are sampled, such as ``clever(batches=100)``; without it none are."""
    certify: str | None = None
    """The method that certifies the samples; none by default."""
    certify_seconds: float = 10.0
    """The time limit for each sample of a method that takes as long as it may."""
    apart: str = ""
    """What tells it from another evaluation of the same benchmark that differs in `EXAMINING` only;
    empty where there is none, and in all runs of earlier releases."""
    command: str = ""
    """The command or call that reproduces it."""
    textual: bool = True
    """Whether texts name model and data, so that the request can be repeated."""

    @property
    def examined(self) -> bool:
        """Whether the model and its evaluation are examined."""
        return self.examine != "none"

    @model_validator(mode="before")
    @classmethod
    def _with_options(cls, given: Any) -> Any:
        """Options in the text of the data, such as ``photos(resize=256)``, are fields here."""
        text = given.get("data") if isinstance(given, dict) else None
        if not isinstance(text, str) or os.path.exists(text):
            return given
        found = _DATA.fullmatch(text)
        if found is None:
            return given
        options = dict(part.split("=") for part in re.sub(r"\s", "", found["options"]).split(","))
        for name, value in options.items():
            if given.get(name) is not None and str(given[name]) != value:
                raise InputError(f"{name} is '{given[name]}', but the data are '{text}': give one")
        return {**given, "data": found["source"], **options}

    @field_validator("suite")
    @classmethod
    def _named(cls, suite: str | None) -> str | None:
        """One name for every suite: ``autoattack`` finds the run folder of ``standard``."""
        return None if suite is None else suite_name(suite)

    @classmethod
    def of(cls, **fields: Any) -> Request:
        """A request with these fields; the error of a wrong one names it."""
        try:
            return cls(**fields)
        except ValidationError as problem:
            wrong = problem.errors()[0]
            name = str(wrong["loc"][0])
            raise InputError(
                f"{name} is {quoted(fields.get(name))}: {wrong['msg'].lower()}"
            ) from None


class Trained(Value):
    """A model of a benchmark that is trained before it is evaluated.

    Attributes
    ----------
    train : str
        The recipe, such as ``trades(epochs=20)``.
    arch : str
        The architecture, as in `besiege.training.fit`.
    data : str, optional
        The data, of which the training images are used; by default those of the benchmark.
    seed : int
        Seed of the initial weights, the order and every random number.
    """

    train: str
    arch: str
    data: str | None = None
    seed: int = Seed

    @property
    def text(self) -> str:
        """What is trained, in words."""
        data = "" if self.data is None else f" on {self.data}"
        seed = f", seed {self.seed}" if self.seed else ""
        return f"{self.arch} trained by {self.train}{data}{seed}"


def _form(given: object) -> str:
    return "table" if isinstance(given, (Mapping, Trained)) else "text"


Model = Annotated[
    Annotated[str, Tag("text")] | Annotated[Trained, Tag("table")], Discriminator(_form)
]
"""A model of a benchmark: a text that `besiege.evaluate` takes, or a training."""


ACTIVE = 50
"""Samples of an active test that is requested by name, unless a number is given."""
EXAMINING = ("examine", "active_test", "clever", "certify", "certify_seconds")
"""The fields of a request that say what is examined, estimated and proved besides its evaluation,
which changes no verdict: attacks are not run on what is proved."""


class ModelSpec(Value):
    """The victim: its digest, and its description in reports."""

    name: str
    digest: str
    kind: str
    classes: int
    parameters: int | None
    box: tuple[float, float]
    stochastic: bool
    draws: int
    """Number of draws with which each image is judged; 1 for a deterministic victim."""
    undefended: bool = False
    """Whether it is known to be trained without a defense, and has no layers."""
    surrogates: tuple[str, ...] = ()
    """Its layers whose gradient is that of a surrogate; earlier releases did not write them."""
    pooled: int = 1
    """Draws that one of its answers pools."""
    passes: int = 1
    """Forward passes of its networks for one answer."""
    rejects: bool = False
    """Whether it may reject images."""
    rounds: bool = False
    """Whether a layer does not tell pixel values apart that the attack `beam` searches."""
    nominal_rejections: float | None = None
    """The share of clean images that its threshold was set to reject, if it is known."""
    calibrated_on: int = 0
    """The number of images that the threshold was set on."""
    calibrated_here: int = 0
    """How many of these are evaluated here."""


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
    withheld: int | None = None
    """How many images were left out because detectors were calibrated on them; None where no such
    detector is known. Earlier releases did not write it."""
    standard: float | None
    """The usual budget for these data in the threat's norm, if there is one."""


class Curve(Value):
    """The search for the smallest perturbation that gives accuracy against the budget."""

    attack: AttackSpec = Field(validation_alias="weapon", serialization_alias="weapon")
    shards: tuple[Shard, ...]


class Guard(Value):
    """An attack without gradients that tests whether gradient-based attacks missed something.

    It runs on the samples that withstood all attacks, as many as a share of their passes pays for.
    """

    attack: AttackSpec
    share: float
    """The share of the passes of all attacks that it may take."""
    least: int
    """The smallest number of samples per shard if nothing of it is broken, at any cost."""
    most: int
    """The largest number of samples per shard."""


class Replay(Value):
    """Images that were made elsewhere, which are judged like those of an attack.

    For every shard ``images`` has the digest of its images, empty without any, and ``counts`` their
    number. ``through`` is the layer that they pass before they are judged, if any, and ``layer``
    what decides the images it makes.
    """

    attack: AttackSpec
    images: tuple[str, ...]
    counts: tuple[int, ...]
    through: str = ""
    layer: str = ""

    @property
    def content(self) -> tuple[tuple[str, ...], str]:
        """What is judged, as a key: equal images through the same layer are the same replay."""
        return self.images, self.layer

    def named_apart(self, texts: Collection[str]) -> Replay:
        """The same images under a text that is none of these."""
        text, number = self.attack.text, 1
        while text in texts:
            number += 1
            text = f"{self.attack.text.removesuffix(')')}, {number})"
        return self.model_copy(update={"attack": self.attack.model_copy(update={"text": text})})


class Searches(Value):
    """The searches for a curve, of which that of the strongest attack is run.

    ``attacks`` has one element per attack of the plan: its search, or why there is none.
    """

    attacks: tuple[AttackSpec | str, ...]
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class Machine:
    """Where and how an evaluation is computed; it changes no result.

    Attributes
    ----------
    device : str, optional
        Device of the model.
    batch : int, optional
        Rows per call of the model.
    compile : bool, optional
        Whether to compile the copies that attacks search on, on a GPU; by default where the plan
        is long enough to pay for it.
    threads : int, optional
        CPU threads of every worker, 1 by default; without workers the caller sets them.
    """

    device: str | None = None
    batch: int | None = None
    compile: bool | None = None
    threads: int | None = None

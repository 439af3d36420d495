"""What was asked, as values that are written down: a run, its evaluations, their attacks.

``run.json`` holds them; an alias is the name that a field has there. They name everything the keys
of the records are made of, so that whoever reads a run knows which records belong to it without a
model, and without torch.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from besiege.bench.store import Store, key_of
from besiege.core.errors import StoreError
from besiege.core.files import read_file

SCHEMA = 1
FILE = "run.json"


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
    climb of a loss, so that its trace can be read as one.
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
    """About how many answers it takes for a sample it does not break."""
    access: Literal["gradient", "score", "decision"] = "gradient"
    """What it asks of the victim; runs of before there were others do not say."""
    source: str | None = None
    """The digest of the substitute it is crafted on, where it is not the victim."""
    advice: str | None = None
    """The digest of the substitute whose gradients it takes besides."""
    starts: str | None = None
    """The digest of the images it may begin at."""


class Request(Value):
    """What the user asked for, in the words that ask for it again."""

    model: str
    data: str
    split: str
    threat: str
    attacks: tuple[str, ...]
    suite: str | None
    queries: int | None
    curve: Literal["short", "full", "none"]
    count: int | None
    seed: int
    shard: int
    command: str
    substitute: tuple[str, ...] = ()
    """Models that stand in for the victim's gradients; several are one ensemble."""
    fuse: Literal["logits", "probabilities", "losses"] = "logits"
    """What such an ensemble takes the mean of."""
    textual: bool
    """Whether model and data were named by texts, which may be asked again."""


class ModelSpec(Value):
    """The victim: who it is and what reports say of it."""

    name: str
    digest: str
    kind: str
    classes: int
    parameters: int | None
    box: tuple[float, float]
    stochastic: bool
    draws: int
    """How often a victim that answers by chance is asked about each image."""
    undefended: bool = False
    """Whether it is known to have been trained without any defense, and has no layers."""


class DataSpec(Value):
    """The samples: which they are, of what."""

    name: str
    split: str
    count: int
    total: int
    seed: int | None
    digest: str
    class_names: tuple[str, ...]
    shape: tuple[int, ...]
    scaled: bool
    """Whether pixels in [0, 1] are brought to the victim's box."""
    standard: float | None
    """The budget usual for these data in the threat's norm, where there is one."""


class Curve(Value):
    """The search for the smallest change that gives accuracy against the budget."""

    attack: AttackSpec = Field(validation_alias="weapon", serialization_alias="weapon")
    shards: tuple[Shard, ...]


class Plan(Value):
    """One evaluation: one victim, one set of samples, one threat."""

    request: Request = Field(validation_alias="asked", serialization_alias="asked")
    model: ModelSpec
    data: DataSpec
    threat: str
    chained: bool
    """Whether each attack runs on what the ones before left, as in a suite."""
    attacks: tuple[AttackSpec, ...] = Field(
        validation_alias="weapons", serialization_alias="weapons"
    )
    shards: tuple[Shard, ...]
    curve: Curve | None = None
    no_curve: str | None = None
    """Why there is no curve of accuracy against the budget, where there will be none."""
    changed: bool = Field(default=False, exclude=True)
    """Whether its text is not what was written: found when it is read, and not written."""

    @property
    def damage(self) -> tuple[str, ...]:
        """What is wrong with its text, for whoever lists what is damaged."""
        what = f"{self.model.name} against {self.threat}"
        said = f"what {FILE} says of {what} was changed after it was written"
        return (said,) if self.changed else ()

    @property
    def awaits_curve(self) -> bool:
        """Whether a curve is still to be chosen: it is that of the strongest attack."""
        return self.curve is None and self.no_curve is None

    @property
    def name(self) -> str:
        """What tells it from the other evaluations of the run."""
        return key_of(
            {
                "model": self.model.digest,
                "shards": [shard.digest for shard in self.shards],
                "attacks": [
                    [w.spelled, w.threat, w.queries, *filter(None, (w.source, w.advice, w.starts))]
                    for w in self.attacks
                ],
                "chained": self.chained,
                "curve": self.request.curve,
                "seed": self.request.seed,
            }
        )[:16]

    @property
    def words(self) -> tuple[object, ...] | None:
        """In which words it was asked for, where these can be asked again."""
        a = self.request
        if not a.textual:
            return None
        place = (a.model, a.data, a.split, a.count, a.seed, a.shard)
        knowledge = (a.substitute, a.fuse)
        return (*place, a.threat, a.attacks, a.suite, a.queries, a.curve, knowledge)


class Run(Value):
    """All that was asked of one run folder."""

    schema_number: int = SCHEMA
    created: str
    versions: dict[str, str]
    plans: tuple[Plan, ...] = ()

    def with_plan(self, plan: Plan) -> Run:
        """The run with this evaluation.

        One of the same name gives way, and so does one that was asked in the same words: a file
        has changed since then, and the words mean something else now.
        """
        plans = list(self.plans)
        same = [
            number
            for number, old in enumerate(plans)
            if old.name == plan.name or (old.words is not None and old.words == plan.words)
        ]
        for number in reversed(same):
            del plans[number]
        plans.insert(same[0] if same else len(plans), plan)
        return self.model_copy(update={"plans": tuple(plans)})

    def plan(self, name: str) -> Plan | None:
        """The evaluation of a name."""
        return next((plan for plan in self.plans if plan.name == name), None)


def read_run(store: Store) -> Run | None:
    """The run of a folder, None where nothing was asked yet.

    A plan that does not have the digest it was written with is `changed`. Plans of releases that
    wrote none are taken as they are.
    """
    path = store.folder / FILE
    try:
        content = json.loads(read_file(path))
        if content.get("schema_number") != SCHEMA:
            raise StoreError(
                f"{path} has the schema {content.get('schema_number')!r}, but this release reads "
                f"{SCHEMA}: it was written by another release"
            )
        for plan in content["plans"]:
            digest = plan.pop("digest", None)
            plan["changed"] = digest is not None and digest != _digest(content, plan)
        return Run.model_validate(content)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as problem:
        raise StoreError(f"{path} cannot be read ({problem.strerror})") from None
    except (ValueError, AttributeError, LookupError, TypeError, RecursionError) as problem:
        raise StoreError(
            f"{path} cannot be read ({type(problem).__name__}): move it away and run the "
            "evaluation again; its records are used again"
        ) from None


def write_run(store: Store, run: Run) -> None:
    """Replace the run of a folder in one move; every plan carries a digest.

    A plan that was changed stays one that was: only asking for it again replaces it.
    """
    # As a reader will find it: what is not JSON is found now.
    content = json.loads(json.dumps(run.model_dump(mode="json", by_alias=True), allow_nan=False))
    for plan, written in zip(run.plans, content["plans"], strict=True):
        written["digest"] = _CHANGED if plan.changed else _digest(content, written)
    store.write_file(FILE, json.dumps(content, indent=1).encode())


_CHANGED = "changed after it was written"


def _digest(run: dict[str, Any], plan: dict[str, Any]) -> str:
    """SHA-256 of a plan as it stands in the file, and of what the file says of the whole run."""
    about = {name: value for name, value in run.items() if name != "plans"}
    return key_of({**about, "plan": plan})

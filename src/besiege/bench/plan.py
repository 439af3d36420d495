"""A plan: one evaluation as data, and its tasks in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, Protocol, Self

from pydantic import Field

from besiege.bench.kinds import KINDS, kinds
from besiege.bench.reading import gather
from besiege.bench.spec import (
    EXAMINING,
    AttackSpec,
    Curve,
    DataSpec,
    Guard,
    ModelSpec,
    Replay,
    Request,
    Searches,
    Shard,
    Target,
    Value,
)
from besiege.bench.store import Store, key_of
from besiege.bench.task import Stage, Task
from besiege.core.threat import Threat


class Staged(Protocol):
    """What is done task by task: an evaluation, or the training of a model before it.

    ``title`` names it where progress shows several, and ``given_up`` says why nothing follows from
    its first stage if all tasks of that failed.
    """

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def given_up(self) -> str: ...
    @property
    def model(self) -> ModelSpec: ...
    @property
    def chained(self) -> bool: ...
    @property
    def shards(self) -> tuple[Shard, ...]: ...
    def stages(self) -> list[Stage]: ...
    def decided(self, store: Store) -> Self: ...


_DERIVED = ("name", "series")
"""What follows from the fields of a plan, and is asked for with each other plan of a run."""


class Plan(Value):
    """One evaluation: one victim, one set of samples, one threat."""

    request: Request = Field(validation_alias="asked", serialization_alias="asked")
    model: ModelSpec
    data: DataSpec
    threat: str
    chained: bool
    """Whether each attack runs on the samples that withstood those before it, as in a suite."""
    attacks: tuple[AttackSpec, ...] = Field(
        validation_alias="weapons", serialization_alias="weapons"
    )
    shards: tuple[Shard, ...]
    curve: Curve | None = None
    no_curve: str | None = None
    """Why there is no curve of accuracy against the budget, where there will be none."""
    searches: Searches | None = None
    """The searches from which the curve is chosen once the attacks are judged."""
    guards: tuple[Guard, ...] = ()
    """Attacks without gradients, on a few of the samples that withstood all attacks."""
    guarded: Literal["some", "all"] | None = None
    """Whether the guards broke none of these few, or run on all such samples; None until known."""
    replays: tuple[Replay, ...] = ()
    """Images made elsewhere, which were added to the evaluation; they are no part of its name."""
    across: tuple[Target, ...] = ()
    """Other models that judge the images crafted on this one."""
    made: str | None = None
    """When it was requested; earlier releases did not write it."""
    commit: str | None = None
    """The commit of the user's repository at that time, if there was one."""
    changed: bool = Field(default=False, exclude=True)
    """Whether its text in ``run.json`` was changed; detected on reading, never written."""

    @property
    def damage(self) -> tuple[str, ...]:
        """A sentence about a changed text; empty otherwise."""
        return (
            f"what run.json says of {self.title} was changed after it was written",
        ) * self.changed

    @property
    def title(self) -> str:
        """What is evaluated, in words."""
        return f"{self.model.name} against {self.threat}"

    @property
    def given_up(self) -> str:
        """Why nothing is left to do if the model answers no clean image."""
        return "the model failed on all clean images"

    @property
    def undecided(self) -> bool:
        """Whether more tasks may follow from the verdicts: those of guards and of the curve."""
        awaits_curve = self.curve is None and self.no_curve is None
        return awaits_curve or (bool(self.guards) and self.guarded is None)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copied = super().model_copy(update=update, deep=deep)
        for derived in _DERIVED:  # pydantic copies what was cached before the update
            copied.__dict__.pop(derived, None)
        return copied

    @cached_property
    def name(self) -> str:
        """A digest that distinguishes it from the other evaluations of the run."""
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
                # Other images are kept for other models.
                **({"across": [one.digest for one in self.across]} if self.across else {}),
                **({"apart": self.request.apart} if self.request.apart else {}),
            }
        )[:16]

    @property
    def besides(self) -> tuple[object, ...]:
        """What is computed and shown besides what the name says."""
        threat = str(replace(Threat.parse(self.threat), written=None))
        return threat, *(getattr(self.request, name) for name in EXAMINING)

    def named_apart(self, plans: Iterable[Plan]) -> str:
        """What must be written into its request so that its name differs from those of others.

        Empty where nothing need be: then its name stays that of the same request in any run.
        """
        others = [plan for plan in plans if plan.name == self.name]
        same = not others or any(plan.besides == self.besides for plan in others)
        return "" if same else key_of({"besides": list(self.besides)})[:8]

    @cached_property
    def series(self) -> tuple[Request, str]:
        """The request without its command. Plans of one series are its answers over time.

        A file that the request names, or the model behind its name, changed between them. Data in
        memory are told apart by their content: their names say little. Equal budgets, and the
        number of all samples, may be written in several ways.
        """
        threat = str(replace(Threat.parse(self.request.threat), written=None))
        count = None if self.data.count >= self.data.total else self.request.count
        request = self.request.model_copy(
            update={
                **{name: Request.model_fields[name].default for name in EXAMINING},
                "command": "",
                "threat": threat,
                "count": count,
            }
        )
        return request, "" if request.textual else self.data.digest

    @property
    def judged(self) -> tuple[AttackSpec, ...]:
        """The attacks and the images made elsewhere, which together decide robust accuracy."""
        return (*self.attacks, *(replay.attack for replay in self.replays))

    def replaying(self, replays: Sequence[Replay]) -> Plan:
        """The plan with these images made elsewhere, too; those it has stay, and come first."""
        known = {replay.content: replay for replay in self.replays}
        for replay in replays:
            if replay.content not in known:
                # Other images may have come from a file of the same name.
                texts = {one.attack.text for one in known.values()}
                known[replay.content] = replay.named_apart(texts)
        return self.model_copy(update={"replays": tuple(known.values())})

    def called(self, replays: Iterable[Replay]) -> list[str]:
        """What tables call these images of the plan, which may have been named apart."""
        titles = {one.content: one.attack.title for one in self.replays}
        return [titles[one.content] for one in replays]

    def stages(self) -> list[Stage]:
        """All tasks known so far, in stages; each task follows those it needs.

        The curve comes last: it is added when all others are over, and moves none of them.
        """
        listed = [stage for kind in kinds() for stage in kind.stages(self)]
        return sorted(listed, key=lambda stage: stage.curve)

    def stages_of(self, kind: str) -> list[Stage]:
        """The stages of one kind of task."""
        return list(KINDS.get(kind).stages(self))

    def tasks(self) -> Iterator[Task]:
        """The same as one list."""
        return (task for stage in self.stages() for tasks in stage.parts for task in tasks)

    def decided(self, store: Store) -> Self:
        """The plan with the tasks that follow from verdicts, once every known task is over."""
        if not self.undecided or not self._is_over(store):
            return self
        if self.guards and self.guarded is None:
            # Guards that broke nothing add no task: then the curve is decided at once.
            return self.model_copy(update={"guarded": self._guarded(store)}).decided(store)
        return self._with_curve(store)

    def _guarded(self, store: Store) -> str:
        """Whether a guard broke one of the few samples it was tried on: then it runs on all."""
        records = [
            store.sound(tasks[-1].key)
            for stage in self.stages()
            if stage.guard
            for tasks in stage.parts
        ]
        broken = sum(int(one.totals.get("broken", 0)) for one in records if one is not None)
        return "all" if broken else "some"

    def _with_curve(self, store: Store) -> Self:
        """The plan with the curve of the strongest attack, or with the reason why there is none."""
        if self.curve is not None or self.no_curve is not None or self.searches is None:
            return self
        best = gather(store, self).evidence.strongest(transfer=False)
        if best is None:
            return self
        chosen = self.searches.attacks[[spec.title for spec in self.attacks].index(best.text)]
        if isinstance(chosen, str):
            return self.model_copy(update={"no_curve": chosen})
        return self.model_copy(update={"curve": Curve(attack=chosen, shards=self.searches.shards)})

    def _is_over(self, store: Store) -> bool:
        """Whether all tasks are done, failed, or need one that failed."""
        hopeless: set[str] = set()
        for task in self.tasks():
            if store.failed(task.key) or not hopeless.isdisjoint(task.needs):
                hopeless.add(task.key)
            elif not is_done(task, store):
                return False
        return True


def needed_again(tasks: Sequence[Task], store: Store) -> set[str]:
    """Keys of records without their images that tasks which are not done need, directly or not."""
    if not any(store.released(task.key) for task in tasks if task.kind == "craft"):
        return set()
    needed: set[str] = set()
    for task in reversed(tasks):
        if task.key in needed or not is_done(task, store):
            needed |= set(task.needs)
    return {key for key in needed if store.released(key)}


def is_done(task: Task, store: Store) -> bool:
    """Whether a task has a sound record that was computed from the existing records."""
    record = store.sound(task.key)
    if record is None:
        return False
    needed = [store.sound(key) for key in task.needs]
    present = [one for one in needed if one is not None]
    if len(present) < len(needed):
        return False
    return KINDS.get(task.kind).is_of(record, present)

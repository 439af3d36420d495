"""Estimates, while an evaluation runs, how much of its work is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from besiege.bench.kinds import KINDS
from besiege.bench.plan import Staged
from besiege.bench.store import Record
from besiege.bench.task import Stage as PlannedStage
from besiege.bench.task import Task
from besiege.core.errors import Finding


@dataclass(frozen=True)
class Stage:
    """The progress of one attack.

    Attributes
    ----------
    attack : str
        The text of the attack.
    before, left : int
        Unbroken samples when it began, and now: by verdicts where these exist, by the attack's own
        claims until then.
    share : float
        The share of its work that is done, 1 at its end.
    seconds : float
        Its time, earlier runs included.
    failed : int
        Shards on which it failed, or which need an attack that failed.
    kept : bool
        Whether all its records were there before this run.
    """

    attack: str
    before: int
    left: int
    share: float
    seconds: float
    failed: int = 0
    kept: bool = False


@dataclass(frozen=True)
class Event:
    """The progress of the work, in estimated forward passes, and what runs now.

    The total falls as samples are broken. ``stage`` describes the running attack, and ``findings``
    are new findings about the victim. ``title`` names the evaluation where there are several.
    ``kept`` says that it tells of records that were there before this run.
    """

    done: float
    total: float
    text: str
    stage: Stage | None = None
    findings: tuple[Finding, ...] = ()
    title: str = ""
    kept: bool = False


Watch = Callable[[Event], None]
Part = tuple[int, int]
"""The number of a stage, and of a shard of it."""
WORDS = {
    "train": "training",
    "clean": "clean images",
    "examine": "examination of the model",
    "again": "examination after the attacks",
    "active": "active test",
}
"""What stages that are no attacks are called."""


class WorkEstimate:
    """Estimates the work of a plan, whose parts may end in any order.

    A clean sample takes one forward pass. An attack takes about as many passes for every sample as
    for one that it does not break; in a suite, only samples that withstood earlier attacks count.
    A part is given by the numbers of its stage and its shard.
    """

    def __init__(self, plan: Staged) -> None:
        # Samples of a stochastic victim that are broken in some draws are attacked again.
        self._removes = plan.chained and not plan.model.stochastic
        self._repeats = plan.chained and plan.model.stochastic
        self._standing = [shard.count for shard in plan.shards]
        self._broken: list[set[int]] = [set() for _ in plan.shards]
        """Samples that were broken before and are attacked again, by their ids."""
        self._unbroken: dict[Part, int] = {}
        """Samples of these parts that were not broken before."""
        self._attacked: dict[Part, int] = {}
        """Samples of the finished parts of attacks that were not broken before."""
        self._spent: dict[Part, float] = {}
        self._running: dict[Part, float] = {}
        self._reported: set[tuple[str, str]] = set()
        self._counts: dict[int, _Counts] = {}
        self.stages = plan.stages()
        self._each = [
            sum(KINDS.get(task.kind).estimate(task, stage) for task in stage.parts[0])
            for stage in self.stages
        ]

    @property
    def done(self) -> float:
        """Estimated work that is done, in forward passes."""
        return sum(self._spent.values()) + sum(self._running.values())

    @property
    def total(self) -> float:
        """Estimated total work, in forward passes."""
        left = sum(
            self._weight((number, part)) - self._running.get((number, part), 0.0)
            for number, stage in enumerate(self.stages)
            for part in range(len(stage.parts))
            if (number, part) not in self._spent
        )
        return max(1.0, self.done + left)

    def passes(self, task: Task, at: Part) -> float:
        """The estimated work of one task of a part, in forward passes."""
        stage = self.stages[at[0]]
        return KINDS.get(task.kind).estimate(task, stage) * self._worked_on(at)

    def _weight(self, at: Part) -> float:
        return self._each[at[0]] * self._worked_on(at)

    def _worked_on(self, at: Part) -> int:
        number, part = at
        stage = self.stages[number]
        return self._samples(at) if _is_attack(stage) else stage.counts[part]

    def _samples(self, at: Part) -> int:
        """The samples of an attack's part that are not broken when it begins."""
        return self._attacked.get(at, self._standing[at[1]])

    def repeats(self, at: Part) -> bool:
        """Whether a part attacks samples again that were broken before."""
        return self._repeats and _is_attack(self.stages[at[0]])

    def finished(
        self,
        at: Part,
        records: Sequence[Record],
        kept: bool = False,
        broken_ids: Iterable[int] = (),
    ) -> Event:
        """The event that a part is over; tasks without a sound record failed or were blocked.

        `kept` says that its records were there before this run, `broken_ids` which samples the
        attack broke: it counts those that it was the first to break.
        """
        number, part = at
        stage, counts = self.stages[number], self._counts.setdefault(number, _Counts())
        self._spent[at] = self._weight(at)
        self._running.pop(at, None)
        counts.seconds += sum(float(r.provenance.get("seconds", 0.0)) for r in records)
        failed = len(records) < len(stage.parts[part])
        counts.failed += failed
        counts.kept &= kept and not failed
        if _is_attack(stage):
            broken = 0 if failed else int(records[-1].totals["broken"])
            self._attacked[at] = self._standing[part]
            self._unbroken[at] = self._standing[part] - len(self._broken[part])
            if self._repeats:
                firsts = set(broken_ids) - self._broken[part]
                self._broken[part] |= firsts
                broken = len(firsts)
            counts.broken += broken
            if self._removes:
                self._standing[part] -= broken
        elif stage.name == "clean":
            self._standing[part] = 0 if failed else int(records[-1].totals["correct"])
        seen = {(f.id, f.seen): f for r in records for f in r.findings} if not number else {}
        new = tuple(f for about, f in seen.items() if about not in self._reported)
        self._reported |= set(seen)
        return replace(self._event(number, 0, 0.0, new), kept=kept and not failed)

    def during(self, parts: Sequence[Part], share: float, claimed: int, seconds: float) -> Event:
        """The event that a share of parts of a stage is done, with the successes claimed in all."""
        number = parts[0][0]
        stage = self.stages[number]
        wrong = 0
        if _is_attack(stage):  # the curve has other shards
            known = (self._standing[part] - len(self._broken[part]) for _, part in parts)
            wrong = sum(stage.counts[part] for _, part in parts) - sum(known)
        # The first attack of a suite also runs on misclassified samples, and claims them; on a
        # stochastic victim, all attacks do.
        first = stage is next((s for s in self.stages if s.attack is not None), None)
        broken = max(0, claimed - wrong) if first or not self._removes else claimed
        self._running |= {at: 0.99 * share * self._weight(at) for at in parts}
        return self._event(number, broken, seconds)

    def stopped(self, at: Part) -> None:
        """A part that was running is not any more, and nothing of it is done."""
        self._running.pop(at, None)

    def _event(
        self, number: int, broken: int, seconds: float, findings: tuple[Finding, ...] = ()
    ) -> Event:
        stage = self.stages[number]
        text = WORDS.get(stage.name, stage.name)
        shown = self._shown(number, broken, seconds) if _is_attack(stage) else None
        return Event(self.done, self.total, text, shown, findings)

    def _shown(self, number: int, broken: int, seconds: float) -> Stage:
        stage, counts = self.stages[number], self._counts.get(number, _Counts())
        parts = [(number, part) for part in range(len(stage.parts))]
        open_ = [at for at in parts if at not in self._spent]
        whole, left = (sum(map(self._weight, some)) for some in (parts, open_))
        left -= sum(self._running.get(at, 0.0) for at in open_)
        before = sum(
            self._unbroken.get(at, self._samples(at) - len(self._broken[at[1]])) for at in parts
        )
        return Stage(
            stage.name,
            before,
            max(0, before - counts.broken - broken),  # claims of a stochastic victim may fail
            1 - left / whole if open_ and whole else float(not open_),
            counts.seconds + seconds,
            counts.failed,
            counts.kept and not open_,
        )


@dataclass
class _Counts:
    """What is known of the finished parts of a stage."""

    broken: int = 0
    failed: int = 0
    seconds: float = 0.0
    kept: bool = True


def _is_attack(stage: PlannedStage) -> bool:
    """Whether a stage is an attack on all samples, and no search for the curve."""
    return stage.attack is not None and not (stage.curve or stage.partial)

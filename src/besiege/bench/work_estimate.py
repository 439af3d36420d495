"""Estimates, while an evaluation runs, how much of its work is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from besiege.bench.kinds import KINDS
from besiege.bench.plan import Plan
from besiege.bench.store import Record
from besiege.bench.task import Stage as PlannedStage
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
    """

    done: float
    total: float
    text: str
    stage: Stage | None = None
    findings: tuple[Finding, ...] = ()
    title: str = ""


Watch = Callable[[Event], None]
_WORDS = {
    "clean": "clean images",
    "examine": "examination of the model",
    "again": "examination after the attacks",
    "active": "active test",
}
"""What progress calls stages that are no attacks."""


class WorkEstimate:
    """Estimates the work of a plan, part by part in the order of its stages.

    A clean sample takes one forward pass. An attack takes about as many passes for every sample as
    for one that it does not break; in a suite, only samples that withstood earlier attacks count.
    """

    def __init__(self, plan: Plan) -> None:
        self._chained = plan.chained
        self._standing = [shard.count for shard in plan.shards]
        self._spent: dict[tuple[int, int], float] = {}
        self._reported: set[tuple[str, str]] = set()
        self.number = -1
        self._weights: list[float] = []
        self._before = self._broken = self._failed = 0
        self._seconds = 0.0
        self._kept = True
        self.extend(plan)

    def extend(self, plan: Plan) -> None:
        """Continue with a plan that has more stages."""
        self.stages = plan.stages()
        self._each = [
            sum(KINDS.get(task.kind).estimate(task, stage) for task in stage.parts[0])
            for stage in self.stages
        ]

    @property
    def done(self) -> float:
        """Estimated work that is done, in forward passes."""
        return sum(self._spent.values())

    @property
    def total(self) -> float:
        """Estimated total work, in forward passes."""
        left = sum(
            self._weight(number, part)
            for number, stage in enumerate(self.stages)
            for part in range(len(stage.parts))
            if (number, part) not in self._spent
        )
        return max(1.0, self.done + left)

    def _weight(self, number: int, part: int) -> float:
        stage = self.stages[number]
        samples = self._standing if _is_attack(stage) else stage.counts
        return self._each[number] * samples[part]

    def begin(self, number: int) -> None:
        """Begin a stage."""
        if number == self.number:
            return
        self.number = number
        self._before, self._broken, self._failed = sum(self._standing), 0, 0
        self._seconds, self._kept = 0.0, True
        parts = range(len(self.stages[number].parts))
        self._weights = [self._weight(number, part) for part in parts]

    def finished(self, part: int, records: Sequence[Record], kept: bool = False) -> Event:
        """The event that a part is over; tasks without a sound record failed or were blocked.

        `kept` says that its records were there before this run.
        """
        stage = self.stages[self.number]
        self._spent[self.number, part] = self._weights[part]
        self._seconds += sum(float(r.provenance.get("seconds", 0.0)) for r in records)
        failed = len(records) < len(stage.parts[part])
        self._failed += failed
        self._kept &= kept and not failed
        if _is_attack(stage):
            broken = 0 if failed else int(records[-1].totals["broken"])
            self._broken += broken
            if self._chained:
                self._standing[part] -= broken
        elif stage.name == "clean":
            self._standing[part] = 0 if failed else int(records[-1].totals["correct"])
        seen = {(f.id, f.seen): f for r in records for f in r.findings} if not self.number else {}
        new = tuple(f for about, f in seen.items() if about not in self._reported)
        self._reported |= set(seen)
        return self._event(0.0, 0, 0.0, new)

    def during(self, part: int, share: float, claimed: int, seconds: float) -> Event:
        """The event that a share of a part is done, with the attack's claimed successes."""
        stage = self.stages[self.number]
        wrong = stage.counts[part] - self._standing[part] if _is_attack(stage) else 0
        # The first attack of a suite also runs on misclassified samples, and claims them.
        first = stage is next(s for s in self.stages if s.attack is not None)
        broken = max(0, claimed - wrong) if first or not self._chained else claimed
        return self._event(0.99 * share * self._weights[part], broken, seconds)

    def _event(
        self, more: float, broken: int, seconds: float, findings: tuple[Finding, ...] = ()
    ) -> Event:
        stage = self.stages[self.number]
        text = _WORDS.get(stage.name, stage.name)
        shown = self._shown(stage, more, broken, seconds) if _is_attack(stage) else None
        return Event(self.done + more, self.total, text, shown, findings)

    def _shown(self, stage: PlannedStage, more: float, broken: int, seconds: float) -> Stage:
        open_ = [p for p in range(len(stage.parts)) if (self.number, p) not in self._spent]
        whole, left = sum(self._weights), sum(self._weights[p] for p in open_) - more
        return Stage(
            stage.name,
            self._before,
            self._before - self._broken - broken,
            1 - left / whole if open_ and whole else float(not open_),
            self._seconds + seconds,
            self._failed,
            self._kept and not open_,
        )


def _is_attack(stage: PlannedStage) -> bool:
    """Whether a stage is one of the attacks, neither a guard nor a search for the curve."""
    return stage.attack is not None and not (stage.curve or stage.guard)

"""How much of an evaluation is done: counted over the stages of its plan while it runs."""

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
    """How far one attack is.

    Attributes
    ----------
    attack : str
        Its text.
    before, left : int
        Samples that stood when it began, and that stand now: by verdicts where these exist, by
        the attack's own claims until then.
    share : float
        The share of its work that is done, 1 at its end.
    seconds : float
        The time it has taken, earlier runs included.
    failed : int
        Shards on which it failed, or which wait for an attack that failed.
    """

    attack: str
    before: int
    left: int
    share: float
    seconds: float
    failed: int = 0


@dataclass(frozen=True)
class Event:
    """How far the work is, in estimated forward passes, and what runs now.

    The total falls as samples are broken. ``stage`` says more of the attack that runs, and
    ``findings`` are new findings about the victim.
    """

    done: float
    total: float
    text: str
    stage: Stage | None = None
    findings: tuple[Finding, ...] = ()


Watch = Callable[[Event], None]


class WorkEstimate:
    """Estimates the work of a plan, part by part in the order of its stages.

    A sample takes one forward pass when clean, and of every attack about as many as the attack
    takes where it does not succeed; in a chain only for the attacks it is left for.
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
        self.extend(plan)

    def extend(self, plan: Plan) -> None:
        """Go on with a plan that has more stages now."""
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
        """The next stage begins."""
        if number == self.number:
            return
        self.number = number
        self._before, self._broken, self._failed = sum(self._standing), 0, 0
        self._seconds = 0.0
        parts = range(len(self.stages[number].parts))
        self._weights = [self._weight(number, part) for part in parts]

    def finished(self, part: int, records: Sequence[Record]) -> Event:
        """A part of the stage is over; a task without a sound record failed, or had to wait."""
        stage = self.stages[self.number]
        self._spent[self.number, part] = self._weights[part]
        self._seconds += sum(float(r.provenance.get("seconds", 0.0)) for r in records)
        failed = len(records) < len(stage.parts[part])
        self._failed += failed
        if _is_attack(stage):
            broken = 0 if failed else int(records[-1].totals["broken"])
            self._broken += broken
            if self._chained:
                self._standing[part] -= broken
        elif stage.name == "clean":
            self._standing[part] = 0 if failed else int(records[-1].totals["correct"])
        found = {(f.id, f.seen): f for r in records for f in r.findings} if not self.number else {}
        new = tuple(f for about, f in found.items() if about not in self._reported)
        self._reported |= set(found)
        return self._event(part, 0.0, 0, 0.0, new)

    def during(self, part: int, share: float, claimed: int, seconds: float) -> Event:
        """A share of a part is done, and the attack claims to have broken so many samples."""
        stage = self.stages[self.number]
        wrong = stage.counts[part] - self._standing[part] if _is_attack(stage) else 0
        # The first attack of a chain is run on misclassified samples too, and claims them.
        first = stage is next(s for s in self.stages if s.attack is not None)
        broken = max(0, claimed - wrong) if first or not self._chained else claimed
        return self._event(part, 0.99 * share * self._weights[part], broken, seconds)

    def _event(
        self, part: int, more: float, broken: int, seconds: float, found: tuple[Finding, ...] = ()
    ) -> Event:
        stage = self.stages[self.number]
        text = "clean images" if stage.name == "clean" else stage.name
        shown = self._shown(stage, more, broken, seconds) if _is_attack(stage) else None
        return Event(self.done + more, self.total, text, shown, found)

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
        )


def _is_attack(stage: PlannedStage) -> bool:
    """Whether a stage is one of the attacks, not a search for the curve."""
    return stage.attack is not None and not stage.curve

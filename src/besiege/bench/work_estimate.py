"""How far an evaluation is, counted while it runs: what stands, what is done, what is to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from besiege.bench.spec import AttackSpec, Plan
from besiege.core.errors import Finding


@dataclass(frozen=True)
class Stage:
    """How far one attack is.

    Attributes
    ----------
    attack : str
        Which.
    before, left : int
        Samples that stood when it began, and that stand now: by verdicts where they are there,
        by the attack's own word until then.
    share : float
        How much of its work is done, 1 at its end.
    seconds : float
        What it has taken, in earlier runs too.
    failed : int
        Parts of the samples on which it failed, or waits for an attack that did.
    """

    attack: str
    before: int
    left: int
    share: float
    seconds: float
    failed: int = 0


@dataclass(frozen=True)
class Event:
    """How far the work is: so much of about so much, counted in forwards, and with what.

    The total falls as samples do. ``stage`` says more of the attack that runs, and ``findings``
    is what has just been found out about the victim.
    """

    done: float
    total: float
    text: str
    stage: Stage | None = None
    findings: tuple[Finding, ...] = ()


Watch = Callable[[Event], None]


def _cost(spec: AttackSpec) -> int:
    """What an attack takes for a sample it does not break: a gradient is a forward and two more."""
    return spec.passes * (3 if spec.access == "gradient" else 1)


class WorkEstimate:
    """Counts the work of a plan as it is done.

    A sample takes one answer when clean, and of every attack about as many as the attack takes
    where it does not succeed; in a chain only of those attacks that it is left for.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.done = 0.0
        self._standing = [shard.count for shard in plan.shards]
        self._unseen = [shard.count for shard in plan.shards]
        self._open = [[True] * len(plan.shards) for _ in plan.attacks]
        self._searching = [True] * (0 if plan.curve is None else len(plan.curve.shards))
        self._weights: list[float] = []
        self._attack = -1
        self._before = self._broken = self._failed = 0
        self._seconds = 0.0
        self._told: set[tuple[str, str]] = set()

    @property
    def total(self) -> float:
        """What is done, and what there is to do as far as can be seen."""
        attacks = zip(self.plan.attacks, self._open, strict=True)
        todo = sum(
            _cost(spec) * standing
            for spec, waiting in attacks
            for standing, waits in zip(self._standing, waiting, strict=True)
            if waits
        )
        todo += sum(self._search(n) for n, waits in enumerate(self._searching) if waits)
        return max(1.0, self.done + sum(self._unseen) + todo)

    def extend(self, plan: Plan) -> None:
        """Go on with a plan that has a curve now."""
        self.plan = plan
        self._searching = [True] * (0 if plan.curve is None else len(plan.curve.shards))

    def _search(self, shard: int) -> int:
        assert self.plan.curve is not None
        return _cost(self.plan.curve.attack) * self.plan.curve.shards[shard].count

    def seen(self, shard: int, right: int, findings: Sequence[Finding]) -> Event:
        """The clean images of a shard were looked at."""
        self.done += self._unseen[shard]
        self._unseen[shard] = 0
        self._standing[shard] = right
        new = tuple(f for f in findings if (f.id, f.seen) not in self._told)
        self._told |= {(f.id, f.seen) for f in new}
        return Event(self.done, self.total, "clean images", findings=new)

    def begin(self) -> None:
        """The next attack begins."""
        self._attack += 1
        self._before, self._broken, self._failed = sum(self._standing), 0, 0
        self._seconds = 0.0
        each = _cost(self.plan.attacks[self._attack])
        self._weights = [float(each * standing) for standing in self._standing]

    def judged(self, shard: int, broken: int | None, seconds: float) -> Event:
        """An attack was judged on a shard; `broken` is None where it could not be."""
        self.done += self._weights[shard]
        self._open[self._attack][shard] = False
        self._seconds += seconds
        self._broken += broken or 0
        self._failed += broken is None
        if self.plan.chained:
            self._standing[shard] -= broken or 0
        return self._event(0.0, 0, 0.0)

    def during(self, shard: int, share: float, claimed: int, seconds: float) -> Event:
        """An attack has done a share of a shard, and says that it broke so many of it."""
        wrong = self.plan.shards[shard].count - self._standing[shard]
        # The first attack of a chain is sent what was wrong when clean, and calls it broken.
        fresh = self._attack == 0 or not self.plan.chained
        broken = max(0, claimed - wrong) if fresh else claimed
        return self._event(0.99 * share * self._weights[shard], broken, seconds)

    def _event(self, more: float, broken: int, seconds: float) -> Event:
        open_ = self._open[self._attack]
        whole = sum(self._weights)
        left = sum(w for w, waits in zip(self._weights, open_, strict=True) if waits) - more
        text = self.plan.attacks[self._attack].text
        stage = Stage(
            text,
            self._before,
            self._before - self._broken - broken,
            1 - left / whole if any(open_) and whole else float(not any(open_)),
            self._seconds + seconds,
            self._failed,
        )
        return Event(self.done + more, self.total, text, stage)

    def searched(self, shard: int) -> Event:
        """The smallest changes of a shard were looked for."""
        self.done += self._search(shard)
        self._searching[shard] = False
        return self.searching(shard, 0.0)

    def searching(self, shard: int, share: float) -> Event:
        """A share of that is done."""
        assert self.plan.curve is not None
        more = 0.99 * share * self._search(shard)
        return Event(self.done + more, self.total, self.plan.curve.attack.text)

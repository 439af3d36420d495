"""The judged rows of a run folder, without a model and without torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from besiege.bench.columns import CLEAN, CRAFTED, JUDGED, no_rows
from besiege.bench.plan import Task, attack_tasks, clean_tasks, curve_tasks
from besiege.bench.spec import AttackSpec, Plan
from besiege.bench.store import DamagedError, Record, Store, judges
from besiege.core.errors import Finding
from besiege.core.threat import Access, Goal, Threat
from besiege.metrics import warnings
from besiege.metrics.evidence import Evidence, Trial
from besiege.metrics.rows import Rows


@dataclass(frozen=True)
class Gathered:
    """The evidence of one evaluation, and what is missing of it."""

    plan: Plan
    evidence: Evidence
    seconds: dict[str, float]
    failures: dict[str, str]
    missing: dict[str, int]
    damaged: tuple[str, ...]
    findings: tuple[Finding, ...]
    judged: int

    @property
    def complete(self) -> bool:
        lacking = self.missing or self.failures or self.damaged
        return not (lacking or self.plan.awaits_curve)


def gather(store: Store, plan: Plan) -> Gathered:
    """The judged rows of an evaluation; what is not there or damaged is said, not guessed."""
    collector = _Collector(store)
    clean = collector.clean(clean_tasks(plan))
    trials = [
        collector.trial(spec, pairs, plan)
        for spec, pairs in zip(plan.attacks, attack_tasks(plan), strict=True)
    ]
    curve = None
    if plan.curve is not None:
        curve = collector.trial(plan.curve.attack, curve_tasks(plan), plan)
    threat = Threat.parse(plan.threat)
    if threat.eps is None and not plan.chained:
        curve = trials[0]  # every attack searches: the smallest change of all of them counts
    evidence = Evidence(
        clean,
        trials,
        plan.chained,
        str(threat.norm),
        None if threat.eps is None else float(threat.eps),
        plan.model.box,
        int(np.prod(plan.data.shape)),
        plan.model.classes,
        curve,
        plan.data.standard,
        undefended=is_free(plan, threat) and plan.model.undefended,
    )
    return Gathered(
        plan,
        evidence,
        collector.seconds,
        collector.failures,
        collector.missing,
        (*collector.damaged, *plan.damage),
        tuple(dict.fromkeys(collector.findings)),
        collector.judged,
    )


def is_free(plan: Plan, threat: Threat) -> bool:
    """Whether nothing held the attacks back: any error counts, gradients, any number of answers."""
    allowed = threat.goal is Goal.UNTARGETED and threat.access is Access.GRADIENT
    return allowed and plan.request.queries is None


def losses_in(spelled: object) -> Iterator[str]:
    """The names of all losses in an attack that is spelled out; of divided logits with that."""
    for name, value in _entries(spelled):
        if name == "loss" and isinstance(value, dict):
            by = value.get("divide", 1)
            yield str(value.get("name")) + ("" if by == 1 else f"/{by:g}")


def targets_in(spelled: object) -> int | None:
    """How many wrong classes an attack that is spelled out means to try, where it says so."""
    found = [value for name, value in _entries(spelled) if name == "targets"]
    found += [value for name, value in _entries(spelled) if name == "each_target.count"]
    return max((value for value in found if isinstance(value, int)), default=None)


def probe_in(spelled: object) -> float | None:
    """The smallest step over which an attack that is spelled out compares scores, if it does."""
    found = [value for name, value in _entries(spelled) if name == "sigma"]
    return min((value for value in found if isinstance(value, float)), default=None)


def _entries(spelled: object) -> Iterator[tuple[str, object]]:
    """All parameters of an attack and its parts; the count of each_target by its full name."""
    if isinstance(spelled, dict):
        for name, value in spelled.items():
            counts = name == "count" and spelled.get("name") == "each_target"
            yield "each_target.count" if counts else name, value
            yield from _entries(value)
    elif isinstance(spelled, list):
        for part in spelled:
            yield from _entries(part)


class _Collector:
    """Reads records one after the other and keeps account of what could not be read."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.seconds: dict[str, float] = {}
        self.failures: dict[str, str] = {}
        self.missing: dict[str, int] = {}
        self.damaged: list[str] = []
        self.findings: list[Finding] = []
        self.judged = 0

    def clean(self, tasks: Sequence[Task]) -> Rows:
        sound = [task for task in tasks if self._sound("clean", task)]
        return self._rows(sound) if sound else no_rows(CLEAN)

    def trial(self, spec: AttackSpec, pairs: Sequence[tuple[Task, Task]], plan: Plan) -> Trial:
        name = spec.text
        whole = [pair for pair in pairs if self._both(name, *pair)]
        rows = no_rows(CRAFTED, JUDGED)
        if whole:
            crafted = self._rows([craft for craft, _ in whole])
            judged = self._rows([judge for _, judge in whole])
            # The place of a row is that of its image, which lies with what was crafted.
            rows = Rows({**judged, **crafted})
        rows = rows.having(chance=plan.model.stochastic)
        series = {k: v for k, v in spec.spelled.items() if k not in ("steps", "restarts")}
        return Trial(
            name,
            rows,
            spec.steps,
            spec.restarts,
            spec.plain,
            spec.one_step,
            json.dumps(series, sort_keys=True) if spec.plain else "",
            spec.access if spec.source is None else "transfer",
            frozenset(losses_in(spec.spelled)),
            targets_in(spec.spelled),
            probe_in(spec.spelled),
        )

    def _rows(self, tasks: Sequence[Task]) -> Rows:
        return self.store.rows([task.key for task in tasks])

    def _both(self, name: str, craft: Task, judge: Task) -> bool:
        """Whether both records are there, and the second judges what the first holds."""
        crafted, judged = self._sound(name, craft), self._sound(name, judge)
        if crafted is None or judged is None:
            return False
        if judges(judged, crafted):
            return True
        self.damaged.append(f"the record {judge.key[:12]} judges images that are no longer there")
        return False

    def _sound(self, name: str, task: Task) -> Record | None:
        try:
            record = self.store.read(task.key, files=("rows.parquet",))
        except DamagedError as problem:
            self.damaged.append(str(problem))
            record = None
        if record is None:
            if name not in self.failures:
                self.missing[name] = self.missing.get(name, 0) + 1
            return None
        self.seconds[name] = self.seconds.get(name, 0.0) + float(
            record.provenance.get("seconds", 0.0)
        )
        self.findings += [f for f in record.findings if f.id not in warnings.RECOUNTED]
        self.judged += int(record.totals.get("judged", 0))
        if record.failure is not None:
            self.failures[name] = f"{record.failure['type']}: {record.failure['message']}"
            return None
        return record

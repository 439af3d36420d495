"""The judged rows of a run folder, without a model and without torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from besiege.bench.plan import Task, attack_tasks, clean_tasks, curve_tasks
from besiege.bench.spec import Plan, Run, Weapon
from besiege.bench.store import DamagedError, Store
from besiege.core.errors import Finding
from besiege.core.threat import Threat
from besiege.metrics import warnings
from besiege.metrics.curves import distances
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
        return not (self.missing or self.failures or self.damaged)


def gather(store: Store, plan: Plan, run: Run | None = None) -> Gathered:
    """The judged rows of an evaluation; what is not there or damaged is said, not guessed."""
    collector = _Collector(store)
    clean = collector.clean(clean_tasks(plan))
    trials = [
        collector.trial(weapon, pairs, plan)
        for weapon, pairs in zip(plan.weapons, attack_tasks(plan), strict=True)
    ]
    curve = None
    if plan.curve is not None:
        curve = collector.trial(plan.curve.weapon, curve_tasks(plan), plan)
    threat = Threat.parse(plan.threat)
    trials = [trial for trial in trials if len(trial.rows)]
    if threat.eps is None and trials and not plan.chained:
        # Every attack searches for the smallest change: the curve is that of the best of them.
        curve = min(trials, key=lambda t: float(np.mean(_closeness(t, str(threat.norm)))))
    evidence = Evidence(
        clean,
        trials,
        plan.chained,
        str(threat.norm),
        None if threat.eps is None else float(threat.eps),
        plan.model.box,
        int(np.prod(plan.data.shape)),
        plan.model.classes,
        curve if curve is not None and len(curve.rows) else None,
        plan.data.standard,
        {} if run is None else _elsewhere(store, plan, run, threat),
    )
    return Gathered(
        plan,
        evidence,
        collector.seconds,
        collector.failures,
        collector.missing,
        tuple(collector.damaged),
        tuple(dict.fromkeys(collector.findings)),
        collector.judged,
    )


def _closeness(trial: Trial, norm: str) -> NDArray[np.float64]:
    """Distances with the infinite ones counted as the largest found."""
    found = distances(trial.rows, norm)
    finite = found[np.isfinite(found)]
    return np.where(np.isfinite(found), found, 2 * finite.max(initial=1.0))


def _elsewhere(store: Store, plan: Plan, run: Run, threat: Threat) -> dict[float, dict[str, float]]:
    """The same attacks on the same victim and samples at other budgets of the same threat."""
    found: dict[float, dict[str, float]] = {}
    for other in run.plans:
        their = Threat.parse(other.threat)
        if (
            other.name == plan.name
            or threat.eps is None
            or their.eps is None
            or other.chained
            or (their.norm, their.goal, their.access) != (threat.norm, threat.goal, threat.access)
            or other.model.digest != plan.model.digest
            or other.shards != plan.shards
        ):
            continue
        evidence = gather(store, other).evidence
        found[float(their.eps)] = {t.text: evidence.accuracy(t) for t in evidence.trials}
    return found


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
        return self._rows([task for task in tasks if self._sound("clean", task)])

    def trial(self, weapon: Weapon, pairs: Sequence[tuple[Task, Task]], plan: Plan) -> Trial:
        name = weapon.text
        whole = [pair for pair in pairs if all(self._sound(name, task) for task in pair)]
        crafted = self._rows([craft for craft, _ in whole])
        judged = self._rows([judge for _, judge in whole])
        chance = np.full(judged.count, plan.model.stochastic)
        # The place of a row is that of its image, which lies with what was crafted.
        rows = Rows({**judged, **crafted, "chance": chance})
        series = {k: v for k, v in weapon.spelled.items() if k not in ("steps", "restarts")}
        return Trial(
            name,
            rows if whole else Rows({}),
            weapon.steps,
            weapon.restarts,
            weapon.plain,
            weapon.one_step,
            json.dumps(series, sort_keys=True) if weapon.plain else "",
        )

    def _rows(self, tasks: Sequence[Task]) -> Rows:
        return self.store.rows([task.key for task in tasks])

    def _sound(self, name: str, task: Task) -> bool:
        try:
            record = self.store.read(task.key, files=("rows.parquet",))
        except DamagedError as problem:
            self.damaged.append(str(problem))
            record = None
        if record is not None:
            self.seconds[name] = self.seconds.get(name, 0.0) + float(
                record.provenance.get("seconds", 0.0)
            )
            self.findings += [f for f in record.findings if f.id not in warnings.RECOUNTED]
            self.judged += int(record.totals.get("judged", 0))
            if record.failure is None:
                return True
            self.failures[name] = f"{record.failure['type']}: {record.failure['message']}"
        elif task.kind != "judge" or name not in self.failures:
            self.missing[name] = self.missing.get(name, 0) + 1
        return False

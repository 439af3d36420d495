"""Reads the judged rows of a run folder, without a model and without torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from besiege.bench.columns import no_rows
from besiege.bench.kinds import KINDS
from besiege.bench.parquet import unpacked
from besiege.bench.store import ROWS, DamagedError, Record, Store
from besiege.bench.task import Stage, Task
from besiege.core.attack_registry import OBLIVIOUS
from besiege.core.errors import Finding
from besiege.core.threat import Access, Goal, Norm, Threat
from besiege.metrics import warnings
from besiege.metrics.distances import BEST, IN_ALL
from besiege.metrics.evidence import Calibrated, Evidence, Origin, Trial
from besiege.metrics.rows import Column, Rows

if TYPE_CHECKING:
    from besiege.bench.plan import Plan


AT_RANDOM = "noise"
"""The attack whose points do not depend on the model."""


@dataclass(frozen=True)
class Gathered:
    """The evidence of one evaluation, and its missing and damaged records.

    ``missing`` has the number of shards without all their records, by stage.
    """

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
        return not (lacking or self.plan.undecided)


def gather(store: Store, plan: Plan) -> Gathered:
    """The judged rows of an evaluation; missing and damaged records are reported."""
    collector = _Collector(store)
    clean, curve = no_rows(KINDS.get("clean").columns), None
    trials: list[Trial] = []
    others: dict[str, Rows] = {}
    for stage in plan.stages():
        rows = collector.rows(stage)
        if stage.name == "clean":
            clean = rows
        elif stage.attack is None:
            others[stage.name] = rows
        elif stage.curve:
            curve = _trial(stage, rows, plan)
        elif stage.guard and trials[-1].guard and trials[-1].text == stage.name:
            # The rest of the samples, after the few that a guard was tried on first.
            joined = Rows.joined([trials[-1].rows, _trial(stage, rows, plan).rows])
            trials[-1] = replace(trials[-1], rows=joined)
        else:
            trials.append(_trial(stage, rows, plan))
    threat = Threat.parse(plan.threat)
    if threat.eps is None and not plan.chained:
        curve = trials[0]  # every attack searches: the smallest perturbation of all counts
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
        # The usual budget is that of images in [0, 1].
        None if plan.data.standard is None else plan.data.standard * _width(plan, threat),
        undefended=is_free(plan, threat) and plan.model.undefended,
        # Without a count all samples are there, except for those of the target class.
        total=(
            plan.data.count
            if plan.request.count is None
            else plan.data.total - (plan.data.withheld or 0)
        ),
        withheld=plan.data.withheld or 0,
        others=others,
        stochastic=plan.model.stochastic,
        surrogates=plan.model.surrogates,
        pooled=plan.model.pooled,
        rejects=plan.model.rejects and "rejected" in clean,
        calibration=_calibrated(plan),
    )
    return Gathered(
        plan,
        evidence,
        collector.seconds,
        collector.failures,
        collector.missing,
        (*collector.damaged, *plan.damage),
        tuple(
            dict.fromkeys([*_left_out(plan, collector.findings), *_unrepeatable(collector.lacking)])
        ),
        collector.judged,
    )


def _left_out(plan: Plan, findings: Sequence[Finding]) -> Iterator[Finding]:
    """The findings of the records, with W51: images that were left out of the data.

    Only earlier releases wrote it into records, whose plans do not say how many there were.
    """
    about = plan.data
    yield from (one for one in findings if one.id != "W51" or about.withheld is None)
    if about.withheld:
        images = "1 image" if about.withheld == 1 else f"{about.withheld:,} images"
        yield Finding(
            "W51",
            f"{images} of {about.name} ({about.split}), on which a detector was calibrated, "
            f"{'is' if about.withheld == 1 else 'are'} left out.",
            "Models that are evaluated in one command, or in one cell of a benchmark, leave out "
            "the same images. Compare with these; other evaluations may be of other images.",
            "note",
        )


def _calibrated(plan: Plan) -> Calibrated | None:
    """How the threshold of a victim that may reject images was set, if it is known."""
    model = plan.model
    if model.nominal_rejections is None:
        return None
    return Calibrated(model.nominal_rejections, model.calibrated_on, model.calibrated_here)


def _unrepeatable(lacking: Mapping[str, int]) -> Iterator[Finding]:
    """W36: records from which an evaluation cannot be repeated."""
    for what, count in lacking.items():
        yield Finding(
            "W36",
            f"{count} records do not say {what}.",
            "Nobody can repeat them, so their figures must not be quoted: evaluate into another "
            "folder.",
            "stop",
        )


def _unsaid(record: Record, kind: str) -> Iterator[str]:
    """What a record should say so that it can be repeated, but does not."""
    if not isinstance(record.identity.get("seed"), int):
        yield "their seed"
    if not record.provenance.get("versions"):
        yield "which version of the code made them"
    if kind == "craft" and not record.identity.get("attack"):
        yield "the parameters of their attack"


def _width(plan: Plan, threat: Threat) -> float:
    """The width of the victim's box, in which budgets are measured; counts do not grow with it."""
    low, high = plan.model.box
    return 1.0 if threat.norm is Norm.L0 else high - low


def is_free(plan: Plan, threat: Threat) -> bool:
    """Whether the threat restricts only the budget: untargeted, with gradients, no query limit."""
    allowed = threat.goal is Goal.UNTARGETED and threat.access is Access.GRADIENT
    return allowed and plan.request.queries is None


def losses_in(spelled: object) -> Iterator[str]:
    """The names of all losses in a spelled-out attack, as ``name/divisor`` for divided logits."""
    for name, value in _entries(spelled):
        if name == "loss" and isinstance(value, dict):
            by = value.get("divide", 1)
            yield str(value.get("name")) + ("" if by == 1 else f"/{by:g}")


def targets_in(spelled: object) -> int | None:
    """The number of wrong classes that a spelled-out attack is set to try, if it names one."""
    named = [v for name, v in _entries(spelled) if name in ("targets", "each_target.count")]
    return max((value for value in named if isinstance(value, int)), default=None)


def probe_in(spelled: object) -> float | None:
    """The smallest distance over which a spelled-out attack compares scores, if it does."""
    sigmas = [value for name, value in _entries(spelled) if name == "sigma"]
    return min((value for value in sigmas if isinstance(value, float)), default=None)


def steps_in(spelled: object) -> int | None:
    """The largest number of steps that a spelled-out attack, or a part of it, takes."""
    named = [value for name, value in _entries(spelled) if name == "steps"]
    return max((value for value in named if isinstance(value, int)), default=None)


def draws_in(spelled: object) -> int:
    """Over how many draws of a stochastic model a spelled-out attack, or a part, averages."""
    if isinstance(spelled, list):
        return max(map(draws_in, spelled), default=1)
    if not isinstance(spelled, dict):
        return 1
    inside = max(map(draws_in, spelled.values()), default=1)
    return inside * int(spelled["count"]) if spelled.get("name") == "averaged" else inside


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


def _trial(stage: Stage, rows: Rows, plan: Plan) -> Trial:
    spec = stage.attack
    assert spec is not None
    elsewhere = None
    if spec.source is not None:
        # The first records of transfers do not say which images the substitute misclassified.
        elsewhere = rows["claimed"].astype(bool) if rows["forwards"].any() else None
        rows = _transferred(rows)
    series = {k: v for k, v in spec.spelled.items() if k not in ("steps", "restarts")}
    return Trial(
        stage.name,
        rows.having(chance=plan.model.stochastic),
        spec.steps,
        spec.restarts,
        spec.plain,
        spec.one_step,
        spec.last,
        json.dumps(series, sort_keys=True) if spec.plain else "",
        spec.access if spec.source is None else "transfer",
        frozenset(losses_in(spec.spelled)),
        targets_in(spec.spelled),
        probe_in(spec.spelled),
        stage.guard,
        spec.spelled["name"] == AT_RANDOM,
        elsewhere,
        stage.given,
        draws_in(spec.spelled),
        spec.spelled["name"] == OBLIVIOUS,
        Origin(**spec.spelled["origin"]) if stage.given and "origin" in spec.spelled else None,
        steps_in(spec.spelled),
    )


def _transferred(rows: Rows) -> Rows:
    """Rows crafted on a substitute as an attack on the victim, with one query per image.

    Records of earlier releases are stored in that form: they have no forward passes.
    """
    if not rows["forwards"].any():
        return rows
    nothing, once = np.zeros(rows.count, np.int64), np.ones(rows.count, np.int64)
    kept = {name: column for name, column in rows.items() if not name.startswith(BEST)}
    kept.pop(IN_ALL, None)
    passes = rows["forwards"] + rows["backwards"]
    return Rows(kept).having(
        claimed=nothing.astype(bool),
        first_step=nothing,
        first_query=once,
        forwards=nothing,
        backwards=nothing,
        queries=once,
        aside=passes,
    )


class _Collector:
    """Reads records one after the other, and collects missing and damaged ones."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.seconds: dict[str, float] = {}
        self.failures: dict[str, str] = {}
        self.missing: dict[str, int] = {}
        self.damaged: list[str] = []
        self.findings: list[Finding] = []
        self.judged = 0
        self.lacking: dict[str, int] = {}
        """What records do not say, and how many of them."""
        self.known: dict[str, Record] = {}
        """Those that were read: tasks of later stages need some."""

    def rows(self, stage: Stage) -> Rows:
        """The rows of the complete parts, with the columns of all their tasks."""
        files: dict[str, bytes] = {}
        whole = [tasks for tasks in stage.parts if self._is_whole(stage.name, tasks, files)]
        kinds = [KINDS.get(task.kind).columns for task in stage.parts[0]]
        if not whole:
            return no_rows(*kinds)
        merged: dict[str, Column] = {}
        # Of columns with the same name the first task's count: `record` and `row` must name the
        # image, which is stored with the craft task.
        for tasks in reversed(list(zip(*whole, strict=True))):
            merged |= unpacked([(task.key, files[task.key]) for task in tasks if task.key in files])
        return Rows(merged)

    def _is_whole(self, name: str, tasks: Sequence[Task], files: dict[str, bytes]) -> bool:
        """Whether all records exist, each computed from the existing ones before it.

        The files of their rows are added to `files`: each is read once.
        """
        records = {task.key: self._sound(name, task, files) for task in tasks}
        if None in records.values() and name not in self.failures:
            self.missing[name] = self.missing.get(name, 0) + 1
        for task in tasks:
            record, needed = records[task.key], [self.known.get(key) for key in task.needs]
            if record is None:
                return False
            present = [one for one in needed if one is not None]
            whole = 0 < len(present) == len(needed)
            if whole and not KINDS.get(task.kind).is_of(record, present):
                what = "follows verdicts" if task.kind == "craft" else "judges images"
                self.damaged.append(f"the record {task.key[:12]} {what} that are no longer there")
                return False
        return True

    def _sound(self, name: str, task: Task, files: dict[str, bytes]) -> Record | None:
        try:
            record, content = self.store.with_files(task.key, (ROWS,)) or (None, {})
        except DamagedError as problem:
            self.damaged.append(str(problem))
            record, content = None, {}
        if ROWS in content:
            files[task.key] = content[ROWS]
        if record is None:
            return None
        self.seconds[name] = self.seconds.get(name, 0.0) + float(
            record.provenance.get("seconds", 0.0)
        )
        self.findings += [f for f in record.findings if f.id not in warnings.RECOUNTED]
        self.judged += int(record.totals.get("judged", 0))
        if record.failure is not None:
            self.failures[name] = f"{record.failure['type']}: {record.failure['message']}"
            return None
        self.known[task.key] = record
        for what in _unsaid(record, task.kind):
            self.lacking[what] = self.lacking.get(what, 0) + 1
        # The names of the columns stand in the file as they are.
        if "sample" in KINDS.get(task.kind).columns and b"sample" not in content.get(ROWS, b""):
            what = "which samples they are about"
            self.lacking[what] = self.lacking.get(what, 0) + 1
            return None
        return record

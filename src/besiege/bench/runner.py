"""Doing tasks: each ends as a record, and one that is there already is not done again."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np
import torch

import besiege
from besiege.attacks.attack import parse
from besiege.bench.columns import CRAFTED, JUDGED, empty
from besiege.bench.knowledge import Knowledge
from besiege.bench.model_spec import unread
from besiege.bench.plan import Task, attack_tasks, clean_tasks, curve_tasks
from besiege.bench.shards import boxed
from besiege.bench.spec import Plan
from besiege.bench.store import DamagedError, Record, Store, judges
from besiege.bench.tables import TaskResult, of_crafted, of_sight, of_verdicts, rows_of, stored
from besiege.bench.work_estimate import Event, Watch, WorkEstimate
from besiege.core import record as core_record
from besiege.core.errors import EndpointError, InputError, StoreError, ThreatError, VictimError
from besiege.core.samples import Samples
from besiege.core.threat import Threat
from besiege.core.victim import Victim
from besiege.data.dataset import Data
from besiege.evaluation.crafting import craft
from besiege.evaluation.judging import judge, predict_clean
from besiege.evaluation.preflight import preflight
from besiege.models.black_box import accounted


class Runner:
    """The victim, the samples and the store: all it takes to do the tasks of one evaluation.

    Parameters
    ----------
    store : Store
        Where records go.
    victim : Victim
        Who is attacked.
    plan : Plan
        What is to be done.
    attacks : mapping
        The attack of every text; those that are not text-only cannot be read back from it.
    shards, curve : sequence of callables
        The samples of every shard, made when they are needed.
    batch : int, optional
        Rows per call of the victim; changes no result.
    compiled : bool
        Whether the copy that attacks search on is compiled, on a GPU.
    watch : callable, optional
        Told how far the work is.
    knowledge : Knowledge, optional
        What attacks may use besides the victim.
    """

    def __init__(
        self,
        store: Store,
        victim: Victim,
        plan: Plan,
        attacks: dict[str, Any],
        shards: Sequence[Callable[[], Data]],
        curve: Sequence[Callable[[], Data]] = (),
        batch: int | None = None,
        compiled: bool = False,
        watch: Watch | None = None,
        knowledge: Knowledge | None = None,
    ) -> None:
        self.store = store
        self.victim = victim
        self.plan = plan
        self.attacks = attacks
        self.shards = shards
        self.curve = curve
        self.batch = batch
        self.compiled = compiled
        self.watch = watch
        self.knowledge = knowledge or Knowledge()
        self.redone: list[str] = []
        """Records that were damaged and have been done again."""
        self._held: tuple[object, Samples] | None = None
        self._untold: Exception | None = None
        """What went wrong in telling, which is no failure of an attack."""
        self._estimate = WorkEstimate(plan)

    def clean(self) -> None:
        """See how the victim takes the clean images; without any, there is nothing to attack."""
        tasks = clean_tasks(self.plan)
        made = []
        for task in tasks:
            record = self._do(task, self._look)
            made.append(record)
            right = int(record.totals.get("correct", 0))
            self._tell(self._estimate.seen(task.shard, right, record.findings))
        failures = [record.failure for record in made if record.failure is not None]
        if len(failures) == len(tasks):
            raise VictimError(f"the model answered no clean image: {failures[0]['message']}")

    def attack(self) -> None:
        """Craft and judge with every attack, shard by shard."""
        for pairs in attack_tasks(self.plan):
            self._estimate.begin()
            for crafting, judging in pairs:
                records = self._pair(crafting, judging)
                broken = records[-1].totals["broken"] if len(records) == 2 else None
                seconds = sum(float(r.provenance.get("seconds", 0.0)) for r in records)
                self._tell(self._estimate.judged(crafting.shard, broken, seconds))

    def search(self) -> None:
        """Look for the smallest changes, for the curve."""
        for crafting, judging in curve_tasks(self.plan):
            self._pair(crafting, judging)
            self._tell(self._estimate.searched(crafting.shard))

    def extend(self, plan: Plan, curve: Sequence[Callable[[], Data]]) -> None:
        """Go on with a plan that has a curve now."""
        self._estimate.extend(plan)
        self.plan, self.curve = plan, curve

    def _pair(self, crafting: Task, judging: Task) -> list[Record]:
        """Craft and judge; the records of what worked, two where both did."""
        # In a chain an attack waits for the verdicts before it: what stands is not known yet
        # where one of them failed.
        if not all(self._is_sound(key) for key in crafting.identity["after"]):
            return []
        crafted = self._do(crafting, self._craft)
        if crafted.failure is not None:
            return []
        judged = self._do(judging, self._judge, crafted)
        return [crafted] if judged.failure is not None else [crafted, judged]

    def _is_sound(self, key: str) -> bool:
        record = self.store.read(key)
        return record is not None and record.failure is None

    def _do(
        self, task: Task, work: Callable[[Task], TaskResult], crafted: Record | None = None
    ) -> Record:
        """Do a task, unless a sound record of it is there; `crafted` is what it judges."""
        found = self._found(task, crafted)
        if found is not None and found.failure is None:
            return found
        begin, started = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
        failure = None
        made = TaskResult({}, None, {}, ())
        try:
            with accounted(self.victim, task.kind):
                made = work(task)
        except (StoreError, InputError, ThreatError, EndpointError):
            raise  # not the attack's fault
        except (Exception, SystemExit) as problem:
            if problem is self._untold:
                raise
            # An attack that fails is a result of its own; it must not cost the other attacks.
            failure = {"type": type(problem).__name__, "message": str(problem)[:2000]}
        provenance = {
            "started": started,
            "seconds": time.perf_counter() - begin,
            **self._provenance(),
        }
        if crafted is not None:
            provenance["judged"] = dict(crafted.files)
        record = Record(task.identity, made.totals, tuple(made.findings), provenance, failure)
        self.store.commit(record, None if failure else made.rows, made.images)
        return self.store.read(task.key) or record

    def _found(self, task: Task, crafted: Record | None) -> Record | None:
        """The record of a task, if it is there and sound; one that is not is set aside."""
        try:
            found = self.store.read(task.key, whole=True)
        except DamagedError as problem:
            self.redone.append(str(problem))
            self.store.set_aside(task.key)
            return None
        if found is not None and crafted is not None and not judges(found, crafted):
            self.redone.append(f"the record {task.key[:12]} judged images of another time")
            self.store.set_aside(task.key)
            return None
        return found

    def _look(self, task: Task) -> TaskResult:
        samples = self._samples(task)
        first = []
        if task.shard == 0:
            first = unread(self.victim) + preflight(self.victim, samples)
        sight = predict_clean(self.victim, samples, seed=self.plan.request.seed)
        return of_sight(samples, sight, self.victim.stochastic, first)

    def _craft(self, task: Task) -> TaskResult:
        spec = task.attack
        assert spec is not None
        samples = self._standing(task, self._samples(task))
        if not len(samples):
            return TaskResult(empty(CRAFTED), None, {"rows": 0}, ())
        attack = self.attacks[spec.text] if spec.text in self.attacks else parse(spec.text)
        elsewhere = self.knowledge.crafts(attack)
        crafted = craft(
            self.knowledge.substitute if elsewhere else self.victim,  # type: ignore[arg-type]  # there
            attack,
            samples,
            Threat.parse(spec.threat),
            seed=self.plan.request.seed,
            keep=spec.keep,  # type: ignore[arg-type]  # checked when the plan was made
            leave=spec.leave,  # type: ignore[arg-type]
            queries=spec.queries,
            twin=elsewhere or self._twin,
            batch=self.batch,
            watch=self._during(task),
            starts=self._starts if self.knowledge.uses_starts(attack) else None,
            substitute=self.knowledge.substitute if self.knowledge.advises(attack) else None,
        )
        return of_crafted(samples, crafted, spec, elsewhere)

    def _judge(self, task: Task) -> TaskResult:
        spec = task.attack
        assert spec is not None
        key = task.identity["crafted"]
        rows = self.store.rows([key])
        whole = self._samples(task)
        samples = whole.at(rows_of(whole.ids, rows["sample"]))
        if not len(samples):
            return TaskResult(empty(JUDGED), None, {"rows": 0, "correct": 0, "broken": 0}, ())
        threat = Threat.parse(spec.threat)
        crafted = stored(rows, samples, self.store.images(key), threat, self.victim.device)
        verdicts = judge(self.victim, crafted, samples, threat, seed=self.plan.request.seed)
        return of_verdicts(samples, verdicts, self.victim.stochastic)

    @cached_property
    def _starts(self) -> Samples:
        """Images at which attacks that see decisions alone may begin."""
        assert self.knowledge.starts is not None
        return boxed(self.knowledge.starts, self.victim, self.plan.data.scaled)

    @cached_property
    def _twin(self) -> Victim | None:
        """The accelerated copy that attacks search on, made once; around the first samples, so
        that a run which goes on makes the same.
        """
        first = boxed(self.shards[0](), self.victim, self.plan.data.scaled)
        compiled = self.compiled and self.victim.device.type == "cuda"
        return self.victim.twin(first, Threat.parse(self.plan.threat), compiled=compiled)

    def _searched(self) -> str:
        """What attacks searched on, as far as it has been made."""
        twin = self.__dict__.get("_twin")
        if twin is None:
            return "the model"
        return "a compiled twin" if self.compiled and twin.captures is not None else "a twin"

    def _samples(self, task: Task) -> Samples:
        """The samples of a task's shard; the last shard is kept, since craft and judge share it."""
        name = (task.curve, task.shard)
        if self._held is None or self._held[0] != name:
            data = (self.curve if task.curve else self.shards)[task.shard]()
            samples = boxed(data, self.victim, self.plan.data.scaled)
            self._held = (name, samples.to(self.victim.device))
        return self._held[1]

    def _standing(self, task: Task, samples: Samples) -> Samples:
        """The samples that the attacks before left standing, by their verdicts."""
        stands = torch.ones(len(samples), dtype=torch.bool, device=samples.ids.device)
        for key in task.identity["after"]:
            rows = self.store.rows([key])
            # By chance a broken sample may still stand in some draws, and every draw counts.
            over = rows["share"] >= 1 if self.victim.stochastic else rows["success"]
            fallen = rows["sample"][over | (~rows["correct"] & (not self.victim.stochastic))]
            stands[rows_of(samples.ids, fallen)] = False
        return samples.at(stands.nonzero()[:, 0])

    def _tell(self, event: Event) -> None:
        if self.watch is not None:
            self.watch(event)

    def _during(self, task: Task) -> Callable[[core_record.Record], None] | None:
        """Progress inside a task: by samples broken or by answers, whichever is further."""
        watch, spec = self.watch, task.attack
        if watch is None or spec is None:
            return None
        begin, last = time.monotonic(), 0.0

        def tell(record: core_record.Record) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last < 0.2:  # counting costs a little, and nobody reads faster
                return
            last = now
            # Who asks may ask about many images at once.
            done = record.asked if spec.access == "gradient" else record.meter.queries
            share = min(1.0, float(done.max()) / spec.passes)
            claimed = int(record.success.sum())
            if spec.keep == "first":  # broken samples are done
                share = max(share, claimed / len(record.success))
            if task.curve:
                event = self._estimate.searching(task.shard, share)
            else:
                event = self._estimate.during(task.shard, share, claimed, now - begin)
            try:
                watch(event)
            except Exception as problem:
                self._untold = problem
                raise

        return tell

    def _provenance(self) -> dict[str, Any]:
        return {
            "device": str(self.victim.device),
            "threads": torch.get_num_threads(),
            "batch": self.batch,
            "searched": self._searched(),
            "versions": versions(),
        }


def versions() -> dict[str, str]:
    """What the figures were made with."""
    return {
        "besiege": besiege.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__.partition("+")[0],
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
    }

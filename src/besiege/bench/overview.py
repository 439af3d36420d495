"""How far a run is: counted from the index alone, also while it is going on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from besiege.bench.index import Line, lines
from besiege.bench.plan import Task, attack_tasks, clean_tasks, curve_tasks
from besiege.bench.spec import Plan, Run, read_run
from besiege.bench.store import Store
from besiege.core.errors import StoreError


@dataclass(frozen=True)
class Progress:
    """How far one attack of one evaluation is: shards done, samples, broken ones, seconds."""

    attack: str
    done: int
    shards: int
    samples: int
    right: int
    broken: int
    seconds: float
    failures: tuple[str, ...]


@dataclass(frozen=True)
class Status:
    """How far one evaluation is."""

    plan: Plan
    attacks: tuple[Progress, ...]
    damaged: tuple[str, ...]

    @property
    def complete(self) -> bool:
        done = all(p.done == p.shards for p in self.attacks)
        return done and not self.damaged and not self.plan.awaits_curve


def open_run(folder: Path | str) -> tuple[Store, Run]:
    """The store and the run of a folder, or an error that says where there is none."""
    store = Store(folder)
    run = read_run(store)
    if run is None:
        what = "is no run folder" if store.folder.exists() else "does not exist"
        raise StoreError(
            f"{store.folder} {what}: a run folder is what besiege evaluate --out writes, and holds "
            "a run.json"
        )
    return store, run


def status(folder: Path | str) -> list[Status]:
    """How far a run is; may be asked while it is going on."""
    store, run = open_run(folder)
    known = lines(store)
    told = []
    for plan in run.plans:
        stages = [("clean", [(task, task) for task in clean_tasks(plan)])]
        specs = zip(plan.attacks, attack_tasks(plan), strict=True)
        stages += [(spec.text, pairs) for spec, pairs in specs]
        if plan.curve is not None:
            stages.append((plan.curve.attack.text, curve_tasks(plan)))
        damaged = [
            line.damaged
            for _, pairs in stages
            for pair in pairs
            for task in pair
            if (line := known.get(task.key)) is not None and line.damaged
        ]
        attacks = tuple(_progress(name, pairs, known) for name, pairs in stages)
        told.append(Status(plan, attacks, (*damaged, *plan.damage)))
    return told


def _progress(name: str, pairs: Sequence[tuple[Task, Task]], known: Mapping[str, Line]) -> Progress:
    totals: list[dict[str, Any]] = []
    failures: list[str] = []
    seconds = 0.0
    for craft, judge in pairs:
        for key in dict.fromkeys((craft.key, judge.key)):
            line = known.get(key)
            if line is None:
                continue
            seconds += line.seconds
            if line.failure:
                failures.append(line.failure)
            elif key == judge.key and not line.damaged and craft.key in known:
                totals.append(line.totals)
    return Progress(
        name,
        len(totals),
        len(pairs),
        sum(t["rows"] for t in totals),
        sum(t["correct"] for t in totals),
        sum(t.get("broken", 0) for t in totals),
        seconds,
        tuple(dict.fromkeys(failures)),
    )

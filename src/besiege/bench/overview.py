"""The progress of a run, counted from the index only, also while it is running."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from besiege.bench.index import Line, lines
from besiege.bench.plan import Plan
from besiege.bench.run import FILE, Run, read_run
from besiege.bench.store import Store
from besiege.bench.task import Stage
from besiege.core.errors import StoreError, near


@dataclass(frozen=True)
class Progress:
    """The progress of one stage: shards done, samples, correct ones, broken ones, seconds."""

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
    """The progress of one evaluation."""

    plan: Plan
    attacks: tuple[Progress, ...]
    damaged: tuple[str, ...]

    @property
    def complete(self) -> bool:
        done = all(p.done == p.shards for p in self.attacks)
        return done and not self.damaged and not self.plan.undecided


@dataclass(frozen=True)
class Trained:
    """The progress of the training of a model: done, failed with a message, or neither yet."""

    model: str
    recipe: str
    arch: str
    done: bool
    failure: str | None
    seconds: float
    record: str
    """The folder of the weights and their card, in the run folder."""


def open_run(folder: Path | str) -> tuple[Store, Run]:
    """The store and the run of a folder, or an error if it is no run folder."""
    store = Store(folder)
    run = read_run(store)
    if run is None:
        raise _no_run(store.folder)
    return store, run


def _no_run(folder: Path) -> StoreError:
    """The error for a path that is no run folder, with what may have been meant."""
    if folder.is_file() and (folder.parent / FILE).is_file():
        return StoreError(f"{folder} is a file of a run: name its folder, {folder.parent}")
    inside = _runs_in(folder)
    if inside:
        some = ", ".join(str(folder / name) for name in inside[:3])
        more = f" and {len(inside) - 3} more" if len(inside) > 3 else ""
        return StoreError(f"{folder} is no run folder, but holds some: name one ({some}{more})")
    if ":" in folder.name and not folder.exists():  # it looks like a model
        return StoreError(
            f"{folder} is no run folder: evaluate models first, with besiege evaluate MODEL "
            "[MODEL ...] --out RUN, and name that folder"
        )
    what = "is no run folder" if folder.exists() else "does not exist"
    meant = near(folder.name, _runs_in(folder.parent))
    hint = f"{meant} Name" if meant.startswith("did you mean") else "name"
    return StoreError(
        f"{folder} {what}: {hint} a folder that besiege evaluate --out has written, with a {FILE}"
    )


def _runs_in(folder: Path) -> list[str]:
    """The names of the run folders in a folder, the first hundred entries of which are tried."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in islice(entries, 100) if entry.is_dir())
    except OSError:
        return []
    return [name for name in names if (folder / name / FILE).is_file()]


def status(folder: Path | str) -> list[Status]:
    """The progress of the current evaluations of a run, also while it is running."""
    store, run = open_run(folder)
    known = lines(store)
    found = []
    for plan in run.current:
        stages = plan.stages()
        damaged = [
            line.damaged
            for stage in stages
            for tasks in stage.parts
            for task in tasks
            if (line := known.get(task.key)) is not None and line.damaged
        ]
        progress = tuple(_progress(stage, known) for stage in stages)
        found.append(Status(plan, progress, (*damaged, *plan.damage)))
    return found


def trained(folder: Path | str) -> list[Trained]:
    """The progress of the trainings of a benchmark, also while it is running."""
    store, run = open_run(folder)
    known = lines(store) if run.trainings else {}
    found = []
    for plan in run.trainings:
        line = known.get(plan.name)
        failure = None if line is None else line.failure or line.damaged
        done = line is not None and failure is None
        seconds = 0.0 if line is None else line.seconds
        about = plan.given.train, plan.given.arch, done, failure, seconds
        found.append(Trained(plan.model.name, *about, f"records/{plan.name}"))
    return found


def _progress(stage: Stage, known: Mapping[str, Line]) -> Progress:
    totals: list[dict[str, Any]] = []
    failures: list[str] = []
    seconds = 0.0
    for tasks in stage.parts:
        there = [line for task in tasks if (line := known.get(task.key)) is not None]
        seconds += sum(line.seconds for line in there)
        failures += [line.failure for line in there if line.failure]
        last = known.get(tasks[-1].key)
        if len(there) == len(tasks) and last is not None and not (last.failure or last.damaged):
            totals.append(last.totals)
    return Progress(
        stage.name,
        len(totals),
        len(stage.parts),
        sum(t["rows"] for t in totals),
        sum(t.get("correct", 0) for t in totals),
        sum(t.get("broken", 0) for t in totals),
        seconds,
        tuple(dict.fromkeys(failures)),
    )

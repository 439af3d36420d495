"""Joins run folders: of machines that share no disk, or of runs that were made apart."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from besiege.bench.benchmark_files import must_continue
from besiege.bench.file_names import FOLDER as NAMES
from besiege.bench.folder import run_folder
from besiege.bench.overview import open_run
from besiege.bench.plan import Plan
from besiege.bench.run import Run, changed, read_run, update_run
from besiege.bench.store import DamagedError, Store
from besiege.core.errors import StoreError
from besiege.core.files import read_file


@dataclass(frozen=True)
class Merged:
    """What was joined from one folder.

    Attributes
    ----------
    folder : path
        The folder it came from.
    records, known : int
        Records that were copied, and those that were there already.
    failures : int
        Failures that were left out: their tasks can be done again.
    plans : int
        Evaluations that were added.
    damaged : tuple of str
        What was left out because it is damaged or no record, in words.
    """

    folder: Path
    records: int
    known: int
    failures: int
    plans: int
    damaged: tuple[str, ...]


def merge(out: Path | str, others: Sequence[Path | str]) -> list[Merged]:
    """Join run folders into one, which is made if there is none; the others stay as they are.

    Records are compared with their digests, and only sound ones are copied. All folders are opened
    before anything is written.

    Parameters
    ----------
    out : path
        The folder that receives records and evaluations.
    others : sequence of path
        Run folders.

    Returns
    -------
    list of Merged
        What was joined from each.
    """
    store = Store(run_folder(out))
    opened = [open_run(other) for other in others]
    for other, _ in opened:
        if os.path.realpath(other.folder) == os.path.realpath(store.folder):
            raise StoreError(f"{other.folder} cannot be merged into itself: name another folder")
    run = read_run(store)  # errors before anything is written
    for _, other_run in opened:
        run = joined_runs(run, other_run)
    with store.writing():
        return [_joined(store, other, run) for other, run in opened]


def _joined(store: Store, other: Store, run: Run) -> Merged:
    records = known = failures = 0
    damaged = [sentence for plan in run.plans for sentence in plan.damage]
    for key in sorted(other.present()):
        try:
            record = other.read(key, whole=True)
        except DamagedError as problem:
            damaged.append(str(problem))
            continue
        if record is None or record.failure is not None:
            failures += 1
        elif store.sound(key) is not None:
            known += 1
        else:
            store.place(key, other.files(key))
            records += 1
    _join_names(store, other)
    before: set[str] = set()

    def add(mine: Run | None) -> Run:
        before.update(() if mine is None else (plan.name for plan in mine.plans))
        return joined_runs(mine, run)

    after = update_run(store, add)
    added = len({plan.name for plan in after.plans} - before)
    return Merged(other.folder, records, known, failures, added, tuple(damaged))


def joined_runs(mine: Run | None, other: Run) -> Run:
    """The evaluations of two runs; the newer one of a request is its current one.

    Evaluations whose text was changed after it was written are left out.
    """
    theirs = [plan for plan in other.plans if not plan.changed]
    run = other.model_copy(update={"plans": ()}) if mine is None else _declared(mine, other)
    if other.benchmark is not None:
        theirs = [_as_here(run, plan) for plan in theirs]
    for plan in theirs:
        same = [old for old in run.plans if old.series == plan.series]
        names = [old.name for old in same]
        place = names.index(plan.name) if plan.name in names else len(same)
        if place < len(same):  # the same evaluation: images may have been added, or it came back
            there = same[place]
            date = max(there, plan, key=_made)
            whole = not (there.undecided or there.changed)
            known = there.replaying(plan.replays) if whole else plan
            plan = known.model_copy(update={"made": date.made, "commit": date.commit})
        newer = [
            old
            for number, old in enumerate(same)
            if number != place and (_made(old), number) > (_made(plan), place)
        ]
        run = run.with_plan(plan)
        for old in newer:  # in their order: the newest is the last one again
            run = run.with_plan(old)
    return run


def _declared(mine: Run, other: Run) -> Run:
    """The first run with the benchmark of both; one may have more models or cells."""
    if other.benchmark is None:
        return mine
    whole, part = sorted((mine, other), key=lambda run: len(run.entries), reverse=True)
    if part.benchmark is not None and whole.benchmark is not None:
        must_continue(part.benchmark, whole.benchmark, "one of the folders")
        _must_be_the_same(mine, other)
    entries = {one.key: one for one in (*part.entries, *whole.entries)}
    trainings = {one.name: one for one in (*part.trainings, *whole.trainings)}
    return mine.model_copy(
        update={
            "benchmark": whole.benchmark or part.benchmark,
            "entries": tuple(entries.values()),
            "unfit": whole.unfit,
            "trainings": tuple(trainings.values()),
        }
    )


def _must_be_the_same(mine: Run, other: Run) -> None:
    """Refuse other models, data or attacks under the names of one benchmark."""
    here = {entry.key: mine.plan(entry.plan) for entry in mine.entries}
    for entry in other.entries:
        old, new = here.get(entry.key), other.plan(entry.plan)
        if old is None or new is None or old.changed or new.changed:
            continue
        if what := changed(entry, old, new):
            raise StoreError(
                f"{what} differs between the folders, and results of both would stand in one "
                "table: compare them with besiege compare RUN OTHER"
            )


def _as_here(run: Run, plan: Plan) -> Plan:
    """A plan of a benchmark, requested as here: paths of its files may differ between machines."""
    here = run.plan(plan.name)
    if here is None or here.besides != plan.besides:
        return plan
    return plan.model_copy(update={"request": here.request})


def _made(plan: Plan) -> str:
    return plan.made or ""


def _join_names(store: Store, other: Store) -> None:
    """Copy the names of files of samples that are not known yet."""
    for path in sorted((other.folder / NAMES).glob("*.parquet")):
        target = f"{NAMES}/{path.name}"
        if not (store.folder / target).exists():
            (store.folder / NAMES).mkdir(exist_ok=True)
            store.write_file(target, read_file(path))

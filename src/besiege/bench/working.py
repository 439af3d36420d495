"""Doing tasks: their work, and what surrounds it in a folder that several processes share."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import numpy as np
import torch

import besiege
from besiege.bench.claims import Claims
from besiege.bench.context import Context, Told
from besiege.bench.folder import telling
from besiege.bench.kinds import KINDS
from besiege.bench.plan import is_done
from besiege.bench.store import DamagedError, Record, Store
from besiege.bench.task import Task, TaskResult
from besiege.core import record as core_record
from besiege.core.errors import EndpointError, InputError, StoreError, ThreatError
from besiege.core.owner import this
from besiege.metrics.rows import Column
from besiege.models.black_box import accounted

JOURNAL = "journal"
"""The folder of the journals, one for each process: a line for every task that it finished."""

Ended = Literal["made", "kept", "held"]
"""How an attempt at a task ended: done, done before, or claimed by another process."""


@dataclass(frozen=True)
class Finished:
    """The record of a task, its rows and its other files."""

    record: Record
    rows: Mapping[str, Column] | None
    files: Mapping[str, bytes]


def work(tasks: Sequence[Task], context: Context) -> Iterator[Finished]:
    """Do tasks of one stage; an attack that raises an error gives the record of a failure.

    Tasks that cannot be done together are done one by one: only those fail that fail alone, too.
    """
    begin, started = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
    failure, made, kind = None, [TaskResult({}, {})], tasks[0].kind
    victim = context.subject(tasks[0])
    try:
        with accounted(context.victim(victim), kind):
            made = KINDS.get(kind).run_together(tasks, context)
    except (StoreError, InputError, ThreatError, EndpointError):
        raise  # not a failure of the attack
    except (Exception, SystemExit) as problem:
        if problem is context.unwatched:
            raise
        # A failed attack is recorded, and the other attacks still run.
        failure = {"type": type(problem).__name__, "message": str(problem)[:2000]}
    if failure and len(tasks) > 1:
        for task in tasks:
            yield from work([task], context)
        return
    context.must_be_unchanged(tasks[0])
    provenance = {
        "started": started,
        "device": str(context.victim(victim).device),
        "threads": torch.get_num_threads(),
        "batch": context.how.batch,
        "searched": context.searched(victim),
        "versions": versions(),
        **({"together": len(tasks)} if len(tasks) > 1 else {}),
    }
    seconds, rows = time.perf_counter() - begin, [int(one.totals.get("rows", 0)) for one in made]
    for task, one, count in zip(tasks, made, rows, strict=True):
        share = count / sum(rows) if sum(rows) else 1 / len(rows)
        besides = {**provenance, "seconds": seconds * share, **one.provenance}
        record = Record(task.identity, one.totals, tuple(one.findings), besides, failure)
        yield Finished(record, None if failure else one.rows, one.files)


def attempt(
    tasks: Sequence[Task], context: Context, claims: Claims, again: Container[str] = ()
) -> dict[str, Ended]:
    """Do tasks of one stage and store their records; how it ended, by their keys.

    Tasks that another process does now, or has done, are left out. Those in `again` are done again
    if their images were let go.
    """
    ended: dict[str, Ended] = dict.fromkeys((task.key for task in tasks), "held")
    with ExitStack() as claimed:
        left = []
        for task in tasks:
            if not claims.take(task.key):
                continue
            claimed.callback(claims.release, task.key)
            if is_kept(task, context.store, task.key in again):
                ended[task.key] = "kept"
            else:
                make_room(task, context.store)
                left.append(task)
        for done in work(left, context) if left else ():
            context.store.commit(done.record, done.rows, done.files)
            note(context.store, done.record)
            ended[done.record.key] = "made"
    return ended


def is_kept(task: Task, store: Store, again: bool) -> bool:
    """Whether the record of a task stays; with `again`, only one that still has its images."""
    return is_done(task, store) and not (again and store.released(task.key))


def make_room(task: Task, store: Store) -> None:
    """Set a damaged or outdated record of a task aside, and remove one without its images."""
    try:
        record = store.read(task.key, whole=True)
    except DamagedError:
        store.set_aside(task.key)
        return
    if record is None or record.failure is not None:
        return
    if store.released(task.key):
        store.discard(task.key)
    else:  # computed from records that are gone
        store.set_aside(task.key)


def note(store: Store, record: Record) -> None:
    """Write down in the journal of this process that it finished a task."""
    line = {"key": record.key, "seconds": round(float(record.provenance["seconds"]), 3)}
    if record.failure is not None:
        line["failed"] = record.failure["type"]
    folder = store.folder / JOURNAL
    with telling(store.folder):
        folder.mkdir(exist_ok=True)
        path, flags = folder / f"{this()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND
        file = os.open(path, flags, 0o666)
        try:
            os.write(file, json.dumps(line).encode() + b"\n")  # at once: a line is never half
        finally:
            os.close(file)


def reporting(
    access: str, keep: str, passes: float, tell: Told
) -> Callable[[core_record.Record], None]:
    """A callback for progress inside a task of an attack: by broken samples or by queries."""
    begin, last = time.monotonic(), 0.0

    def report(record: core_record.Record) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < 0.2:  # counting has a cost, so it is done a few times a second
            return
        last = now
        # Black-box attacks may send many images in one request.
        done = record.asked if access == "gradient" else record.meter.queries
        share = min(1.0, float(done.max()) / passes)
        claimed = int(record.success.sum())
        if keep == "first":  # broken samples are done
            share = max(share, claimed / len(record.success))
        tell(share, claimed, now - begin)

    return report


def versions() -> dict[str, str]:
    """The versions of the software in use."""
    return {
        "besiege": besiege.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__.partition("+")[0],
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
    }

"""Workers: the same records as one process, whatever dies meanwhile."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bench.records import content, finished
from tests.children import forked
from torch import nn

import besiege
from besiege.bench.coordinating import Coordinator, Planned, _error
from besiege.bench.engines import Job, Outcome
from besiege.bench.engines.local import Local
from besiege.bench.frontier import Frontier
from besiege.bench.overview import open_run, status
from besiege.bench.spec import Machine, Request
from besiege.bench.store import Store
from besiege.bench.work_estimate import Event
from besiege.bench.worker import refusal
from besiege.core.errors import BesiegeError, InputError, StoreError
from besiege.core.owner import Owner, this

ASK: dict[str, Any] = {
    "threat": ["linf:0.1", "l2:0.5"],
    "attacks": ["fgsm", "pgd(steps=3)"],
    "count": 16,
    "shard": 4,
    "examine": "none",  # a worker knows nothing of what tests have replaced
    "seed": 3,
}


def siege(folder: Path, **more: Any) -> besiege.Evaluations:
    return besiege.evaluate(["zoo:digits-natural"], "digits", out=folder, **ASK, **more)


def claimed(folder: Path) -> list[Owner]:
    """The processes that do a task now, this one apart."""
    owners = []
    for path in (folder / "claims").glob("*"):
        with suppress(OSError):
            owners.append(Owner.parse(path.read_text().partition("\n")[0]))
    return [one for one in owners if one is not None and one != this() and one.gone is False]


def clean(folder: Path) -> bool:
    """Whether nothing unfinished was left."""
    return not list((folder / "claims").iterdir()) and not list(folder.rglob(".partial*"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone") / "run"
    torch.set_num_threads(1)
    siege(folder)
    return folder


def test_workers_give_the_same_records_though_one_is_killed(alone: Path, tmp_path: Path) -> None:
    folder, killed, events = tmp_path / "run", list[int](), list[Event]()

    def watch(event: Event) -> None:
        events.append(event)
        if not killed and event.done > 0.2 * event.total and (busy := claimed(folder)):
            os.kill(busy[0].pid, signal.SIGKILL)
            killed.append(busy[0].pid)

    found = siege(folder, workers=2, watch=watch)
    assert killed and all(one.complete for one in found)
    assert content(folder) == content(alone)
    done = finished(folder)
    assert str(this()) not in done and len(done) >= 2, "this process only coordinates"
    assert set(Counter(key for keys in done.values() for key in keys).values()) == {1}
    assert clean(folder) and not (folder / "damaged").exists()
    assert events[-1].done == events[-1].total > events[0].done
    assert {event.title[:6] for event in events} == {"1 of 2", "2 of 2"}
    again = besiege.open(alone)
    assert isinstance(again, besiege.Evaluations)
    assert [one.robust for one in found] == [one.robust for one in again]


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    child = forked(lambda: siege(folder, workers=2))
    try:
        while len(busy := claimed(folder)) < 2:
            time.sleep(0.01)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    while not all(one.gone for one in busy):
        time.sleep(0.01)
    assert siege(folder)[0].complete and clean(folder)


def test_an_interrupt_ends_the_workers(tmp_path: Path) -> None:
    folder, busy = tmp_path / "run", list[Owner]()

    def interrupt(event: Event) -> None:
        if not busy and (some := claimed(folder)):
            busy.extend(some)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        siege(folder, workers=2, watch=interrupt)
    assert busy and all(one.gone for one in busy)
    assert not list(folder.rglob(".partial*"))


def test_an_idle_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    engine = Local(Store(tmp_path / "run"), Machine(), 1)
    try:
        first = engine._workers[0]
        while not first.begun:
            engine.completed(0.1)
        os.kill(first._process.pid, signal.SIGKILL)
        while engine._workers[0] is first:
            assert engine.completed(0.1) == []
        engine.submit(0, {"plan": "x", "request": {}, "task": {**TASK, "needs": []}, "key": "x"})
        outcomes: list[tuple[int, Outcome]] = []
        while not outcomes:
            outcomes = engine.completed(0.1)
        assert outcomes[0][1]["state"] == "refused" and "model" in outcomes[0][1]["message"]
    finally:
        engine.close()
    assert engine._workers[0].ended and not (tmp_path / "run" / "records").exists()


TASK = {"kind": "clean", "identity": {"victim": "none"}, "shard": 0}


def test_workers_that_cannot_start_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("besiege.bench.engines.local._START", "raise SystemExit('no torch here')")
    engine = Local(Store(tmp_path / "run"), Machine(), 1)
    try:
        with pytest.raises(BesiegeError, match=r"cannot be started.*exit code 1\nno torch here"):
            while True:
                engine.completed(0.1)
    finally:
        engine.close()


class Deadly:
    """An engine whose workers die of some tasks, and do nothing for the others."""

    slots = range(2)

    def __init__(self, deadly: set[str]) -> None:
        self.deadly = deadly
        self.submitted: list[tuple[int, Job]] = []
        self.order: list[str] = []

    def submit(self, slot: int, job: Job) -> None:
        self.submitted.append((slot, job))
        self.order.append(job["key"])

    def completed(self, timeout: float) -> list[tuple[int, Outcome]]:
        found = []
        for slot, job in self.submitted:
            assert job["key"] in self.deadly
            found.append((slot, {"key": job["key"], "state": "died", "message": "signal 9"}))
        self.submitted = []
        return found

    def close(self) -> None:
        pass


def test_a_task_that_kills_three_workers_is_a_failure(evaluated: Path) -> None:
    store, run = open_run(evaluated)
    (plan,) = run.plans
    (crafted,) = [task for task in plan.tasks() if task.kind == "craft"]
    for task in plan.tasks():
        if task.kind != "clean":
            store.set_aside(task.key)
    store = Store(evaluated)
    engine = Deadly({crafted.key})
    request = Request(model="m", data="d", threat="linf:0.1")
    with store.writing():
        Coordinator(store, [Planned(Frontier(plan, store), request)], engine).run()
    assert engine.order == [crafted.key] * 3
    failed = store.read(crafted.key)
    assert failed is not None and failed.failure is not None
    assert failed.failure["message"] == "3 workers died while they did it, the last with signal 9"
    assert "3 workers died" in status(evaluated)[0].attacks[1].failures[0]
    assert not status(evaluated)[0].complete


def test_errors_of_a_worker_are_raised_here() -> None:
    try:
        try:
            raise OSError(28, "No space left on device")
        except OSError as full:
            raise StoreError("the disk is full") from full
    except StoreError as problem:
        again = _error(refusal("key", problem))
    assert type(again) is StoreError and str(again) == "the disk is full"
    assert isinstance(again.__cause__, OSError) and again.__cause__.errno == 28
    unexpected = _error(refusal("key", ZeroDivisionError("x")))
    assert isinstance(unexpected, RuntimeError) and "ZeroDivisionError: x" in str(unexpected)


def test_what_workers_cannot_read_is_refused(tmp_path: Path) -> None:
    def some(model: Any, data: Any = "digits", **more: Any) -> None:
        more = {"threat": "linf:0.1", "attacks": "fgsm", "count": 8, "workers": 1, **more}
        besiege.evaluate(model, data, out=tmp_path / "run", **more)

    net = besiege.models.load("zoo:digits-natural")
    natural = "zoo:digits-natural"
    x, y = torch.rand(4, 1, 8, 8), torch.arange(4)
    with pytest.raises(InputError, match="the model of"):
        some(net)
    with pytest.raises(InputError, match="the data of"):
        some(natural, (x, y))
    with pytest.raises(InputError, match="a substitute of"):
        some(natural, substitute=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    with pytest.raises(InputError, match="workers is 0"):
        some(natural, workers=0)
    assert not (tmp_path / "run").exists()


POISON = """
import os, signal, sys
import besiege, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = besiege.models.load("zoo:digits-natural").module

    def forward(self, x):
        if len(x) > 8 and torch.is_grad_enabled() and sys.argv[0] == "-c":
            print("no memory", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return self.net(x)

def make():
    return Net()
"""


@pytest.mark.slow
def test_a_model_that_kills_its_workers_is_reported(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(POISON)
    found = besiege.evaluate(
        f"{tmp_path}/net.py:make",
        "digits",
        threat="linf:0.1",
        attacks="pgd(steps=2)",
        count=20,
        curve=False,
        examine="none",
        out=tmp_path / "run",
        workers=1,
    )
    assert not found.complete and found.robust is None
    (warning,) = [one for one in found.warnings if one.id == "FAILED"]
    assert "3 workers died" in warning.seen and "no memory" in warning.seen
    assert clean(tmp_path / "run")


MANY = [
    *("zoo:digits-natural", "zoo:digits-pgd-at", "zoo:digits-natural+bits(depth=3)"),
    *("--data", "digits", "--threat", "linf:0.1", "--threat", "l2:0.7"),
    *("--attacks", "fgsm, bim, pgd(steps=20), mim, minimal(pgd(steps=15))"),
    *("--count", "60", "--shard", "15", "--examine", "none", "--no-page"),
]


def command(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "besiege", "evaluate", *MANY, "--out", str(folder), *more]
    with (folder.parent / f"{folder.name}.log").open("ab") as log:
        return subprocess.Popen(words, stdout=log, stderr=log)


def victims(folder: Path, coordinator: int, chance: random.Random) -> Iterator[Owner]:
    """Workers to kill: any one, one before it renames a record, and one after that."""
    while True:
        how = chance.choice(("any", "before", "after"))
        last = time.monotonic() + 5
        while time.monotonic() < last:
            if how == "before":
                names = [path.name for path in (folder / "records").glob(".partial-*")]
                owners = [Owner.parse(name.split("-")[1]) for name in names]
            elif how == "after":
                keys = os.listdir(folder / "claims") if (folder / "claims").exists() else []
                there = [key for key in keys if (folder / "records" / key).exists()]
                owners = [one for key in there for one in _owner(folder / "claims" / key)]
            else:
                time.sleep(chance.uniform(0.0, 0.5))
                owners = list(claimed(folder))
            found = [one for one in owners if one is not None and one.gone is False]
            if found:
                yield chance.choice(found)
                break


def _owner(path: Path) -> list[Owner | None]:
    try:
        return [Owner.parse(path.read_text().partition("\n")[0])]
    except OSError:
        return []


@pytest.mark.slow
def test_killed_again_and_again(tmp_path: Path) -> None:
    """20 workers and 5 coordinators are killed, some before and after a rename."""
    reference, folder, chance = tmp_path / "whole", tmp_path / "run", random.Random(0)
    assert command(reference, "--workers", "1").wait() in (0, 4)
    workers, coordinators, seen = 0, 0, set[Owner]()
    while coordinators < 5 or workers < 20:
        running = command(folder, "--workers", "2")
        target = min(workers + chance.choice((3, 4, 5)), 20)
        for victim in victims(folder, running.pid, chance):
            if running.poll() is not None or workers >= target:
                break
            with suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGKILL)
                workers += 1
                seen.add(victim)
        if running.poll() is not None:  # it was done: begin again elsewhere
            assert content(folder) == content(reference)
            folder = folder.with_name(folder.name + "x")
        elif coordinators < 5:
            seen |= set(claimed(folder))
            running.kill()
            running.wait()
            coordinators += 1
        else:
            running.wait()
    assert command(folder, "--workers", "2").wait() in (0, 4)
    while not all(one.gone for one in seen):
        time.sleep(0.01)
    assert content(folder) == content(reference)
    keys = Counter(key for keys in finished(folder).values() for key in keys)
    assert set(keys.values()) == {1} and clean(folder) and not (folder / "damaged").exists()

"""A worker: does tasks that are sent to it as data, and keeps the models that it used last."""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import torch

from besiege.bench.claims import Claims
from besiege.bench.context import Context, Telling, Watching, context_of
from besiege.bench.engines import Job, Outcome
from besiege.bench.plan import Staged
from besiege.bench.planning import plan_of
from besiege.bench.request import resolve
from besiege.bench.shards import Read
from besiege.bench.spec import Machine, Request, Trained
from besiege.bench.store import Store
from besiege.bench.task import Task
from besiege.bench.training_plan import trained_text
from besiege.bench.trainings import read_training
from besiege.bench.working import attempt, reporting
from besiege.core import record as core_record
from besiege.core.allocating import keep_freed
from besiege.core.errors import BesiegeError, ChangedError

KEPT = 4
"""Evaluations whose models and samples are kept."""


class Worker:
    """Does jobs in a run folder.

    Parameters
    ----------
    folder : path
        The run folder.
    how : Machine
        Where and how it computes.
    """

    def __init__(self, folder: Path | str, how: Machine) -> None:
        self.store = Store(folder)
        self._how = how
        self._claims: Claims | None = None
        self._contexts: OrderedDict[str, Context] = OrderedDict()
        self._read = Read()
        keep_freed()
        if how.threads is not None:
            torch.set_num_threads(how.threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._claims is not None:
            self._claims.__exit__(kind, problem, trace)

    def do(self, job: Job, tell: Callable[[Outcome], None] | None = None) -> Outcome:
        """Do a job; `tell` is called with what is done of it meanwhile."""
        task = task_of(job)
        try:
            if self._claims is None:  # now: the folder is made when the input is known to be right
                self._claims = Claims(self.store).__enter__()
            context = self.context(job)
            context.telling, context.watching = _telling(job, tell), _watching(job, tell)
            again = {task.key} if job["again"] else ()
            ended = attempt([task], context, self._claims, again)
            return {"key": task.key, "state": ended[task.key]}
        except Exception as problem:
            return refusal(task.key, problem)

    def context(self, job: Job) -> Context:
        """The live objects of a job, checked to be those of its plan."""
        name = job["plan"]
        if name not in self._contexts:
            self._contexts[name] = self._made(job)
        self._contexts.move_to_end(name)
        while len(self._contexts) > KEPT:
            self._contexts.popitem(last=False)
            self._read = Read()
        return self._contexts[name]

    def _made(self, job: Job) -> Context:
        plan: Staged
        if job["task"]["kind"] == "train":
            given = Trained(**job["request"])
            training = read_training(job["model"], given, self._how, self._read)
            plan, context = training.plan, training.context(self.store, self._how)
        else:
            for model, key in job["trained"].items():
                self._read.trained[model] = trained_text(self.store, key) or model
            resolved = resolve(Request(**job["request"]), None, self._how.device, self._read)
            plan = planned = plan_of(resolved)
            context = context_of(self.store, resolved, planned, self._how)
        if plan.name != job["plan"]:
            raise ChangedError(
                f"a worker reads another model, other data or other attacks than those of the plan "
                f"of '{plan.title}': a file changed meanwhile, or it differs between machines. Run "
                "the same command again"
            )
        return context


def task_of(job: Job) -> Task:
    """The task of a job."""
    about = job["task"]
    return Task(about["kind"], about["identity"], tuple(about["needs"]), about["shard"])


def refusal(key: str, problem: Exception) -> Outcome:
    """The outcome of a job that cannot be done, for a reason that is no failure of its attack."""
    known = next((one for one in type(problem).__mro__ if one.__module__ == _ERRORS), None)
    cause = problem.__cause__
    return {
        "key": key,
        "state": "refused",
        "type": "" if known is None else known.__name__,
        "message": str(problem) if known else "".join(traceback.format_exception(problem)),
        "errno": cause.errno if isinstance(cause, OSError) else None,
    }


_ERRORS = BesiegeError.__module__


def _telling(job: Job, tell: Callable[[Outcome], None] | None) -> Telling:
    if tell is None:
        return lambda tasks: None

    def told(share: float, claimed: int, seconds: float) -> None:
        about = {"share": share, "claimed": claimed, "seconds": seconds}
        tell({"key": job["key"], "state": "during", **about})

    return lambda tasks: told


def _watching(job: Job, tell: Callable[[Outcome], None] | None) -> Watching:
    spec, telling = job.get("attack"), _telling(job, tell)

    def watching(tasks: Sequence[Task]) -> Callable[[core_record.Record], None] | None:
        told = telling(tasks)
        if spec is None or told is None:
            return None
        return reporting(spec["access"], spec["keep"], spec["passes"], told)

    return watching


# As a process that `besiege.bench.engines.local` starts.


def main(given: Mapping[str, Any]) -> None:
    """Do the jobs of standard input, a line of JSON each, until it ends; then end at once.

    Its end is the end of the process that sends them, even a violent one: a worker that is busy
    notices it, too.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the sender's matter
    jobs, told = _channels()
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(jobs, waiting), daemon=True).start()

    def tell(outcome: Outcome) -> None:
        try:
            told.write(json.dumps(outcome).encode() + b"\n")
            told.flush()
        except OSError:
            os._exit(0)

    names = {one.name for one in fields(Machine)}
    how = Machine(**{name: value for name, value in given.items() if name in names})
    with Worker(given["folder"], how) as worker:
        tell({"state": "started"})
        while True:
            tell(worker.do(waiting.get(), tell))


def _channels() -> tuple[BinaryIO, BinaryIO]:
    """Standard input and output for ourselves: code of users may read the one and print to the
    other.
    """
    jobs, told = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return jobs, told


def _receive(jobs: BinaryIO, waiting: queue.SimpleQueue[Job]) -> None:
    for line in jobs:
        waiting.put(json.loads(line))
    sys.stderr.flush()
    os._exit(0)

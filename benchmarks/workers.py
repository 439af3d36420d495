"""What it costs to share work: CPU time per task besides its own work, here and with workers.

python benchmarks/workers.py [--trials 3]

One model and two threats on digits, so that tasks are short and what surrounds them shows. Times
are CPU times of all processes. The start of a worker (import, models, plans) is measured apart: by
a run whose records are all there but the clean ones.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import besiege
from besiege.bench import sharing
from besiege.bench.kinds import Kind, kinds
from besiege.bench.overview import open_run
from besiege.bench.store import Store

ASK: dict[str, Any] = {
    "threat": ["linf:0.1", "l2:0.5"],
    "attacks": "fgsm, bim, pgd(steps=20), mim",
    "count": 320,
    "shard": 20,
    "curve": "none",
    "examine": "none",
}

CLEAN = 16
"""Tasks that every worker does again when only its start is measured."""


def children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Spent:
    """CPU time of the kinds' own work, and of all that a call does to share its plans."""

    def __init__(self) -> None:
        self.own = self.here = self.workers = 0.0

    def watch(self) -> None:
        """Measure from now on, in this process."""
        for kind in kinds():
            kind.run = self._timed(kind.run, "own")  # type: ignore[method-assign]
        for name in ("here", "by"):
            setattr(sharing.Work, name, self._timed(getattr(sharing.Work, name), "here"))

    def _timed(self, work: Callable[..., Any], name: str) -> Callable[..., Any]:
        def timed(*given: Any, **more: Any) -> Any:
            begin, others = time.process_time(), children()
            try:
                return work(*given, **more)
            finally:
                setattr(self, name, getattr(self, name) + time.process_time() - begin)
                self.workers += children() - others

        return timed


def evaluate(folder: Path, spent: Spent, workers: int | None) -> tuple[float, float, float]:
    """The kinds' own work here, the rest here, and the workers' time."""
    spent.own = spent.here = spent.workers = 0.0
    besiege.evaluate(["zoo:digits-natural"], "digits", out=folder, workers=workers, **ASK)
    return spent.own, spent.here - spent.own, spent.workers


def trial(spent: Spent) -> dict[str, float]:
    with TemporaryDirectory() as place:
        folder = Path(place)
        own, rest, _ = evaluate(folder / "here", spent, None)
        tasks = len(Store(folder / "here").present())
        found = {"tasks": tasks, "own": own, "here": rest}
        for workers in (1, 2):
            run = folder / f"by{workers}"
            _, coordinating, working = evaluate(run, spent, workers)
            _, known = open_run(run)
            for plan in known.plans:  # so that every worker starts and reads every plan again
                for stage in plan.stages_of("clean"):
                    for part in stage.parts:
                        shutil.rmtree(run / "records" / part[0].key, ignore_errors=True)
            _, _, start = evaluate(run, spent, workers)
            found |= {f"all{workers}": coordinating + working - start, f"start{workers}": start}
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=3)
    torch.set_num_threads(1)
    spent = Spent()
    spent.watch()
    assert all(isinstance(kind, Kind) for kind in kinds())
    trials = [trial(spent) for _ in range(parser.parse_args().trials)]
    middle = {name: statistics.median(one[name] for one in trials) for name in trials[0]}
    tasks = middle["tasks"]
    print(f"{tasks:.0f} tasks of {1e3 * middle['own'] / tasks:.1f} ms CPU each (medians)")
    print(f"in this process: {1e3 * middle['here'] / tasks:.1f} ms more per task")
    # The clean images of the second run are not in the difference.
    share = 1 - CLEAN / tasks
    for workers in (1, 2):
        more = middle[f"all{workers}"] / share - middle["own"]
        start = middle[f"start{workers}"] / workers
        print(f"{workers} workers: {1e3 * more / tasks:.1f} ms more, start-up {start:.1f} s each")
    print(f"two workers take {middle['all2'] / middle['all1']:.2f} x the CPU time of one")


if __name__ == "__main__":
    main()

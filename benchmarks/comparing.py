"""What it costs to compare runs: CPU time of `besiege compare`, with and without kept figures.

python benchmarks/comparing.py [--runs 10] [--samples 10000] [--shard 500] [--trials 3]

The records are written by the store itself, with rows of chance. Every command runs in a process of
its own, with one thread: Python's start and all imports count.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import besiege
from besiege.bench.plan import Plan
from besiege.bench.run import Run, write_run
from besiege.bench.spec import Curve
from besiege.bench.store import Store

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.store import fill, plan, shards_of, weapon

ATTACKS, SEARCHED, SEARCHED_SHARD = 3, 200, 50


def one_of_many(number: int, samples: int, shard: int) -> Plan:
    """The plan of one run: another model than the other runs, on the same samples."""
    asked = plan(samples, ATTACKS)
    name = f"zoo:model-{number}"
    search = Curve(
        attack=weapon("minimal(attack0)", "linf"), shards=shards_of(SEARCHED, SEARCHED_SHARD)
    )
    return asked.model_copy(
        update={
            "request": asked.request.model_copy(
                update={"model": name, "shard": shard, "curve": "short"}
            ),
            "model": asked.model.model_copy(update={"name": name, "digest": f"{number:064x}"}),
            "shards": shards_of(samples, shard),
            "curve": search,
        }
    )


def written(folder: Path, asked: Plan, number: int) -> Path:
    """A run folder with all records of a plan; each attack breaks a little more than before."""
    store = Store(folder)
    with store.writing():
        run = Run(created="2026-01-01T00:00:00+00:00", versions={"besiege": besiege.__version__})
        write_run(store, run.with_plan(asked))
        fill(store, asked, (1, 8, 8), 0.2 + 0.01 * number, number)
    return folder


def cpu(*command: str) -> float:
    """Seconds of CPU of a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *command], check=True, capture_output=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(runs: int, samples: int, shard: int, trials: int) -> None:
    with TemporaryDirectory() as place:
        folders = [
            written(Path(place, f"run-{number}"), one_of_many(number, samples, shard), number)
            for number in range(runs)
        ]
        command = ("-m", "besiege", "compare", *map(str, folders))
        cold = []
        for _ in range(trials):
            for folder in folders:
                shutil.rmtree(folder / "figures", ignore_errors=True)
            cold.append(cpu(*command))
        warm = [cpu(*command) for _ in range(trials)]
        found = {
            "runs": runs,
            "samples": samples,
            "records of a run": len(Store(folders[0]).present()),
            "without kept figures, s": round(min(cold), 2),
            "with kept figures, s": round(min(warm), 2),
        }
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--shard", type=int, default=500)
    parser.add_argument("--trials", type=int, default=3)
    given = parser.parse_args()
    main(given.runs, given.samples, given.shard, given.trials)

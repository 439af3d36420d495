"""What it costs to look at a large benchmark: status, report, and the size of its site.

python benchmarks/bench.py [--models 16] [--samples 1000] [--trials 2] [--keep FOLDER]

Four cells (two with a budget, one of them crafted on a substitute, and searches in two norms) of 17
attacks each, in shards of 500: with 16 models 64 evaluations, 3,874 records, 1.1 million rows. The
records are written by the store itself, with rows of chance. Every command runs in a process of its
own, with one thread: CPU seconds, Python's start and all imports included, and peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import besiege
from besiege.bench.benchmark import Benchmark, Cell
from besiege.bench.benchmark_files import benchmark_of
from besiege.bench.plan import Plan
from besiege.bench.run import Run, RunEntry, write_run
from besiege.bench.store import Store

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.results import COMMAND, measured
from benchmarks.store import fill, plan, shards_of, weapon

SIZE, SHAPE = 500, (1, 8, 8)
ATTACKS = tuple(f"pgd(steps=40, restarts=10, alpha=0.{n:02d})" for n in range(1, 18))


def benchmark(models: int, samples: int) -> Benchmark:
    """The benchmark, as its file would have it; every second model has a name of forty letters."""
    names = [
        f"m{n:02d}" if n % 2 else f"defense_{n:02d}_of_a_paper_with_a_long_title__"
        for n in range(models)
    ]
    search = {"attacks": ATTACKS, "budget": "search", "examine": "none"}
    within = {"threat": "linf:8/255", "attacks": ATTACKS, "examine": "none"}
    return benchmark_of(
        {
            "name": "large",
            "data": "cifar10",
            "count": samples,
            "models": {name: f"zoo:{name}" for name in names},
            "cells": [
                {"name": "white linf", **within},
                {"name": "search linf", "threat": "linf:8/255", **search},
                {"name": "search l2", "threat": "l2:0.5", **search},
                {
                    "name": "transfer",
                    **within,
                    "substitute": {"default": names[0], names[0]: names[1]},
                },
            ],
        }
    )


def planned(declared: Benchmark, cell: Cell, model: str, samples: int) -> Plan:
    """One evaluation of the benchmark."""
    asked, number = plan(samples, 0), list(declared.models).index(model)
    ((_, threat),) = cell.threats()
    sources = cell.substitutes(model)
    attacks = [
        weapon(f"minimal({text})" if cell.searches else text, threat).model_copy(
            update={
                "source": "5" * 64 if sources else None,
                **({"keep": "best", "leave": "end"} if cell.searches else {}),
            }
        )
        for text in ATTACKS
    ]
    return asked.model_copy(
        update={
            "request": asked.request.model_copy(
                update={
                    "model": declared.models[model],
                    "threat": threat,
                    "attacks": ATTACKS,
                    "count": samples,
                    "shard": SIZE,
                    "curve": "none",
                    "substitute": tuple(declared.models[one] for one in sources),
                    "command": "besiege run large.toml --out RUN",
                }
            ),
            "model": asked.model.model_copy(
                update={"name": declared.models[model], "digest": f"{number:064x}"}
            ),
            "data": asked.data.model_copy(update={"shape": SHAPE, "total": 10_000}),
            "threat": threat,
            "attacks": tuple(attacks),
            "shards": shards_of(samples, SIZE),
            "curve": None,
            "no_curve": "It was not requested.",
        }
    )


def written(folder: Path, models: int, samples: int) -> Store:
    """Write the run; models differ in how many images an attack breaks, and how near these are."""
    declared, store = benchmark(models, samples), Store(folder)
    entries, plans = [], []
    with store.writing():
        for cell in declared.cells:
            for number, model in enumerate(declared.models):
                asked = planned(declared, cell, model, samples)
                plans.append(asked)
                budget = None if cell.searches else "8/255"
                entries.append(
                    RunEntry(cell=cell.name, model=model, budget=budget, seed=0, plan=asked.name)
                )
                broken = 0.97 if cell.searches else 0.02 + 0.005 * number
                largest = (2.0 if "l2" in cell.name else 0.03) * (1 + 4 * number)
                fill(store, asked, SHAPE, broken, number, largest if cell.searches else 0.03)
        run = Run(created="2026-01-01T00:00:00+00:00", versions={"besiege": besiege.__version__})
        write_run(store, run.declaring(declared, tuple(entries), (), plans))
    return store


def main(models: int, samples: int, trials: int, folder: Path) -> None:
    begin = time.perf_counter()
    if not folder.exists():
        written(folder, models, samples)
    run = str(folder)
    found: dict[str, object] = {
        "records": len(Store(folder).present()),
        "rows": models * 4 * len(ATTACKS) * samples,
        "written in s": round(time.perf_counter() - begin, 1),
    }
    for name, command, forget in (
        ("status, first", "status", True),
        ("status", "status", False),
        ("report, first", "report", True),
        ("report", "report", False),
    ):
        tried = []
        for _ in range(trials):
            if forget:
                shutil.rmtree(folder / "figures", ignore_errors=True)
                shutil.rmtree(os.environ["XDG_CACHE_HOME"], ignore_errors=True)
            tried.append(measured(COMMAND, command, run))
        found[f"{name}, CPU s"] = round(min(seconds for seconds, _ in tried), 2)
        found[f"{name}, MB"] = round(max(memory for _, memory in tried))
    site = folder / "site"
    sizes = {path: path.stat().st_size for path in site.rglob("*") if path.is_file()}
    pages = {path: size for path, size in sizes.items() if path.suffix == ".html"}
    largest = max(pages, key=lambda path: pages[path])
    found |= {
        "site without pictures, MB": round(
            sum(n for path, n in sizes.items() if path.suffix in (".html", ".css", ".js")) / 1e6, 2
        ),
        "site, MB": round(sum(sizes.values()) / 1e6, 2),
        "pages": len(pages),
        "overview, kB": round(pages[site / "index.html"] / 1e3),
        "largest page, kB": round(pages[largest] / 1e3),
        "largest page": str(largest.relative_to(site)),
        "figures.json, MB": round((folder / "figures.json").stat().st_size / 1e6, 2),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=16)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="a folder for the run; used again if it exists")
    given = parser.parse_args()
    with TemporaryDirectory() as place:
        os.environ["XDG_CACHE_HOME"] = str(Path(place, "cache"))
        main(given.models, given.samples, given.trials, given.keep or Path(place, "run"))

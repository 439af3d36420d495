"""What it costs to plan a benchmark: CPU time of 16 models x 4 cells, before any task runs.

python benchmarks/planning.py [--images 1000] [--trials 3]

Two networks of CIFAR-10 (BESIEGE_DATA) with eight defenses each: curves in two norms, a suite, and
transfer. Imports are not counted.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from besiege.bench.benchmark_files import benchmark_of
from besiege.bench.expanding import declared
from besiege.bench.preparing import prepare_benchmark
from besiege.bench.spec import Machine

LAYERS = ("", *(f"+bits(depth={depth})" for depth in range(2, 8)), "+adapt(size=32)")
ATTACKS = ["fgsm", "bim", "mim"]


def content(images: int) -> dict[str, Any]:
    """The benchmark, as its file would have it."""
    nets = ("public:cifar10_resnet56", "zoo:cifar10-pgd-at")
    texts = [net + layer for net in nets for layer in LAYERS]
    search: dict[str, Any] = {"attacks": ATTACKS, "budget": "search"}
    return {
        "name": "planning",
        "data": "cifar10",
        "count": images,
        "models": {f"m{number}": text for number, text in enumerate(texts)},
        "cells": [
            {"name": "linf", "threat": "linf:8/255", **search},
            {"name": "l2", "threat": "l2:0.5", **search},
            {"name": "quick", "threat": "linf:8/255", "suite": "quick"},
            {
                "name": "transfer",
                "threat": "linf:8/255",
                "attacks": ["bim", "mim", "dim"],
                "substitute": {"default": "m8", "m8": "m0"},
            },
        ],
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--images", type=int, default=1000)
    options.add_argument("--trials", type=int, default=3)
    given = options.parse_args()
    torch.set_num_threads(1)
    benchmark = benchmark_of(content(given.images))
    times = []
    for _ in range(given.trials):
        begin = time.process_time()
        found = prepare_benchmark(declared(benchmark, Path()), Path("none"), None, Machine())
        times.append(time.process_time() - begin)
    tasks = {task.key for plan in found.plans for task in plan.tasks()}
    print(f"{len(found.plans)} plans, {len(tasks):,} tasks: {min(times):.1f} CPU seconds")


if __name__ == "__main__":
    main()

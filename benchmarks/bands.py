"""What bands cost: CPU time and memory of the curves of many models and attacks.

python benchmarks/bands.py [--models 16] [--attacks 15] [--budgets 60] [--images 1000] [--trials 3]

The time is that of `accuracy_bands` with 2,000 resamples, and of each further function on the same
distances. Set OMP_NUM_THREADS=1. The memory is the largest of the process; what it used before, for
imports and the distances, is printed apart.
"""

from __future__ import annotations

import argparse
import json
import resource
from collections.abc import Callable
from time import process_time

import numpy as np

from besiege.metrics.bands import accuracy_bands, areas, medians


def megabytes() -> float:
    """The most memory that this process has used."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def distances(models: int, attacks: int, images: int) -> np.ndarray:
    """Distances that rise and fall together; some images are misclassified, or never broken."""
    generator = np.random.default_rng(0)
    hard = generator.normal(size=images)
    own = generator.normal(size=(models, attacks, images))
    found = np.exp(-3 + 0.5 * hard + 0.4 * own)
    found[generator.random(found.shape) < 0.05] = 0.0
    found[generator.random(found.shape) < 0.05] = np.inf
    return found


def seconds(task: Callable[[], object], trials: int) -> float:
    """The least CPU time of some trials."""
    spent = []
    for _ in range(trials):
        begin = process_time()
        task()
        spent.append(process_time() - begin)
    return round(min(spent), 2)


def main(models: int, attacks: int, budgets: int, images: int, trials: int) -> None:
    grid = np.linspace(0.0, 0.3, budgets)
    accuracy_bands([[0.1, 0.2]], grid)  # imports scipy
    given = distances(models, attacks, images)
    before = megabytes()
    found: dict[str, object] = {"points": given[..., 0].size * budgets, "images": images}
    found["bands, s"] = seconds(lambda: accuracy_bands(given, grid), trials)
    found["memory, MB"], found["before, MB"] = megabytes(), before
    found["areas, s"] = seconds(lambda: areas(given, 0.3), trials)
    found["medians, s"] = seconds(lambda: medians(given), trials)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name, usual in (("models", 16), ("attacks", 15), ("budgets", 60), ("images", 1000)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--trials", type=int, default=3)
    main(**vars(parser.parse_args()))

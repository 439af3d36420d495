"""What CLEVER costs: sampled gradients over their bare passes, memory, and the fits.

python benchmarks/clever.py [--net NAME ...] [--count N] [--json FILE]

floor   sampling over its bare passes, for one target, in l2, linf and l1;
memory  the largest memory of the process with 4 and with 20 batches;
fit     CPU seconds of the fits of 1,000 images.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import Bench, bench, counted, cpu, finish, parser, race

from besiege.core.samples import Samples
from besiege.core.threat import Threat
from besiege.evaluation.sampling import Sampled, sample_gradients
from besiege.metrics.extremes import fit_reverse_weibull

CASES = ("l2 targeted:random", "linf targeted:random", "l1 targeted:random")
RADII = {"l2": 5.0, "linf": 0.3, "l1": 60.0}
POINTS = 64


def sampled(b: Bench, threat: str, batches: int) -> Sampled:
    """The gradients of a bench's images that are classified correctly."""
    right = b.victim(b.images).argmax(1) == b.labels
    samples = Samples.of(b.images[right], b.labels[right], box=b.victim.box, classes=10)
    radius = RADII[threat.split()[0]]
    return sample_gradients(
        b.victim, samples, Threat.parse(threat), radius=radius, batches=batches, points=POINTS
    )


def over_floor(b: Bench, trials: int, batches: int) -> list[dict[str, Any]]:
    """Sampling over its bare passes."""
    rows = []
    for threat in CASES:
        with counted(b.victim) as passes:
            run = lambda threat=threat: sampled(b, threat, batches)  # noqa: E731
            timed = race({threat: (run, passes.copy)}, b.module(), b.images, trials)
        rows.append({"what": "floor", "net": b.name, "who": threat} | timed[threat].facts())
    return rows


def memory(b: Bench) -> list[dict[str, Any]]:
    """The largest memory of the process with few and with many batches; on Linux only."""
    rows = []
    for batches in (4, 4, 20):  # the first one warms up
        Path("/proc/self/clear_refs").write_text("5")  # the peak is that from now on
        sampled(b, CASES[0], batches)
        status = Path("/proc/self/status").read_text()
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        who = {"what": "memory", "net": b.name, "who": f"{batches} batches"}
        rows.append(who | {"MB": int(peak.split()[1]) / 1024})
    return rows[1:]


def fits() -> list[dict[str, Any]]:
    """CPU seconds of the fits of 1,000 images."""
    rows = []
    for batches in (100, 500):
        maxima = 3 - np.random.default_rng(0).weibull(6.0, (1000, batches))
        seconds = cpu(lambda maxima=maxima: fit_reverse_weibull(maxima))  # type: ignore[misc]
        rows.append({"what": "fit", "who": f"1,000 images, {batches} batches", "cpu_s": seconds})
    return rows


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--batches", type=int, default=12)
    given = options.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name in given.net or ("resnet20",):
        b = bench(name, given.count)
        rows += over_floor(b, given.trials, given.batches)
        rows += memory(b)
    rows += fits()
    keys = list(Counter(key for row in rows for key in row))
    finish("clever", [{k: row.get(k, "") for k in keys} for row in rows], given.trials, given.json)


if __name__ == "__main__":
    main()

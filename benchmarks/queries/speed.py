"""What attacks that ask cost over the forwards they ask for.

    python benchmarks/queries/speed.py [--model public:cifar10_resnet20] [--count 100] [--queries N]

Time of one thread (the process on a CPU, the clock beside a GPU) over that of bare forwards of the
same network, as many images at a time as the oracle sends, timed before and after.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from besiege.attacks import parse
from besiege.core.oracle import Oracle
from besiege.core.threat import L2, Threat
from besiege.evaluation import craft
from besiege.models import Classifier

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.minimum.cells import Cell

ATTACKS = (
    "hopskipjump",
    "boundary",
    "evolutionary",
    "geoda",
    "signopt",
    "opt",
    "rays",
    "square",
    "nattack",
    "nes",
    "spsa",
    "rgf",
    "bandits",
)


def now(device: torch.device) -> float:
    """Seconds, when all that was asked of the device is done."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def forward(victim: Classifier, x: Tensor) -> float:
    """Seconds of a bare forward of one image."""
    size = min(Oracle(victim)._size(x), -(-len(x) // 8) * 8)  # walks send one image a row
    batch = x.repeat(-(-size // len(x)), 1, 1, 1)[:size]
    times = []
    with victim.held(), torch.no_grad():
        for _ in range(20):
            begin = now(x.device)
            victim(batch)
            times.append(now(x.device) - begin)
    return sorted(times)[len(times) // 2] / size


def main() -> None:
    """Read the command line and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="public:mnist_kw_small_eps0.1")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--attack", action="append", default=[])
    parser.add_argument("--norm", help="l2 for smallest changes and linf within a budget")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)
    victim, samples = Cell(given.model, given.data, "l2").load(given.count, given.device)
    for text in given.attack or ATTACKS:
        attack = parse(text)
        # The budget is so small that no image is broken and leaves early.
        norm = given.norm or ("l2" if attack.minimal and L2 in attack.norms else "linf")
        threat = Threat.parse(norm if attack.minimal else f"{norm}:0.001")
        craft(victim, attack, samples, threat, queries=20)
        before = forward(victim, samples.images)
        begin = now(samples.images.device)
        crafted = craft(victim, attack, samples, threat, queries=given.queries)
        spent = now(samples.images.device) - begin
        each = (before + forward(victim, samples.images)) / 2
        floor = each * int(crafted.forwards.sum())
        ratio = f"{1e6 * each:.0f} us an image): {spent / floor:.2f}"
        print(f"{text:14} {spent:6.2f} s, floor {floor:6.2f} s ({ratio}", flush=True)


if __name__ == "__main__":
    main()

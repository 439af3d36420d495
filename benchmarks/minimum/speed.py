"""What minimal attacks cost over the passes they ask, on a ResNet-20.

    python benchmarks/minimum/speed.py [--attack TEXT ...] [--count 64] [--trials 5]

Process CPU time of one thread, in turns with bare passes of the same network at as many rows: a
forward, and what a backward adds to it. The floor is forwards and backwards times those.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from functools import partial
from pathlib import Path

import torch

from besiege.attacks import parse
from besiege.core.threat import Threat
from besiege.evaluation import Crafted, craft

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.autoattack.reference import Plain
from benchmarks.harness import cpu, forward, gradient
from benchmarks.minimum.cells import Cell

ATTACKS = ("ddn(steps=40)", "fmn(steps=40)", "deepfool", "cw(rounds=2, steps=20)")


def main() -> None:
    """Read the command line, run, print a line per attack."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--attack", action="append", default=[])
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--trials", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    cell = Cell("public:cifar10_resnet20", "cifar10", "l2")
    victim, samples = cell.load(given.count)
    bare = Plain(victim)
    for text in given.attack or ATTACKS:
        ratios, attack, threat = [], parse(text), Threat.parse("l2")
        made: list[Crafted] = []
        for _ in range(given.trials + 1):
            with victim.held():
                one = cpu(partial(forward, bare, samples.images), 5) / given.count
                two = cpu(partial(gradient, bare, samples.images), 5) / given.count
            spent = cpu(lambda: made.append(craft(victim, attack, samples, threat)))  # noqa: B023
            forwards, backwards = (int(n.sum()) for n in (made[-1].forwards, made[-1].backwards))
            ratios.append(spent / (forwards * one + backwards * (two - one)))
        kept = sorted(ratios[1:])  # the first warms up
        print(f"{text:30} {statistics.median(kept):.2f} ({kept[0]:.2f} to {kept[-1]:.2f})")


if __name__ == "__main__":
    main()

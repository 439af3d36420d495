"""Two victims on which published settings fail: a stochastic one, and one that takes bytes.

    python benchmarks/queries/special.py [--count 100] [--queries 2000] [--device cuda]

A random resize in front of a natural network resists estimates over a small sigma and falls to
those over a larger one; what is left is judged on fresh draws. A network that receives whole 255ths
is approached as near as one that takes any number, if probes are no shorter than its grid.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from besiege.attacks import parse
from besiege.core.threat import Threat
from besiege.defenses import Defended, ResizePad
from besiege.evaluation import craft, judge
from besiege.models import Classifier

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.queries.cells import COUNT, QUERIES, Cell

NET = Cell("public:cifar10_resnet20", "cifar10", "linf", "8/255")
BY_CHANCE = (
    "nes",
    "nes(sigma=0.05)",
    "spsa",
    "spsa(sigma=0.05)",
    "nattack",
    "square",
)


def main() -> None:
    """Read the command line and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--queries", type=int, default=QUERIES)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    if given.device == "cpu":
        torch.set_num_threads(1)
    net, samples = NET.load(given.count, given.device)
    print(f"{NET.model}+resize_pad, {NET.threat}, {given.queries} queries, {given.count} images")
    guarded = Defended(net, ResizePad())
    for text in BY_CHANCE:
        attack = parse(text)
        crafted = craft(guarded, attack, samples, NET.threat, queries=given.queries)
        left = judge(guarded, crafted, samples, NET.threat).robust
        plain = craft(net, attack, samples, NET.threat, queries=given.queries)
        bare = judge(net, plain, samples, NET.threat).robust
        print(f"  {text:20} left {int(left.sum()):3}, without the resize {int(bare.sum()):3}")
    print(f"{NET.model}, l2, {given.queries} queries, {given.count} images: median distance")
    bytewise = Classifier(net.module, mean=net.mean, std=net.std, grid=1 / 255)
    for text in ("hopskipjump", "boundary", "geoda", "signopt", "hopskipjump(probe=None)"):
        far = []
        for victim in (net, bytewise):
            threat = Threat.parse("l2")
            crafted = craft(victim, parse(text), samples, threat, queries=given.queries)
            kept = judge(victim, crafted, samples, threat).success
            assert bool((kept == crafted.success).all()), "every image claimed survives"
            far.append(torch.where(kept, crafted.distance, torch.inf).sort().values)
        middle = [float(one[len(one) // 2]) for one in far]
        print(f"  {text:28} floats {middle[0]:.4f}, bytes {middle[1]:.4f}", flush=True)


if __name__ == "__main__":
    main()

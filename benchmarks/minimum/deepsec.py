"""DEEPSEC's Table III on the public ResNet-20: success, sizes, and what noise leaves of it.

    python benchmarks/minimum/deepsec.py [--count 50]

The table's figures (Ling et al. 2019, another ResNet-20, 85.95 % clean) stand beside. Sizes are
means over successes: changed entries as a share, l2, linf. The last column is the share of
successes that stay so under Gaussian noise of standard deviation 0.02.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from besiege.attacks import parse
from besiege.core.dice import Dice
from besiege.core.threat import Threat
from besiege.evaluation import craft, judge

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.minimum.cells import Cell

ROWS = (
    ("DeepFool", "deepfool", "l2", "100 / .078 / .010"),
    ("OptMargin", "optmargin(rounds=4, steps=50)", "l2", "100 / .192 / .022"),
    ("JSMA", "jsma(gamma=0.1)", "l0 targeted:random", "99.7 / 4.30 / .879"),
    ("BLB", "blb", "l2 targeted:random", "100 / .111 / .013"),
    ("C&W, kappa 0", "cw", "l2 targeted:random", "100 / .112 / .013"),
    ("C&W, kappa 20", "cw(kappa=20)", "l2 targeted:random", "100 / .279 / .031"),
    ("EAD, elastic net", "ead(rule='en')", "l2 targeted:random", "100 / .156 / .033"),
    ("EAD, l1", "ead", "l1 targeted:random", "100 / .185 / .057"),
)
NOISE, DRAWS = 0.02, 10


def main() -> None:
    """Read the command line, run all rows, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=50)
    given = parser.parse_args()
    torch.set_num_threads(1)
    victim, samples = Cell("public:cifar10_resnet20", "cifar10", "l2").load(given.count)
    print("| | DEEPSEC: % / l2 / linf | ours: % / l2 / linf | entries | under noise | s |")
    print("|---|---|---|---|---|---|", flush=True)
    for name, text, threat_text, theirs in ROWS:
        threat = Threat.parse(threat_text)
        begin = time.process_time()
        twin = victim.twin(samples, threat)
        crafted = craft(victim, parse(text), samples, threat, twin=twin)
        seconds = time.process_time() - begin
        won = judge(victim, crafted, samples, threat).success
        x, goal = crafted.images[won], won.nonzero()[:, 0]
        change = (x - samples.images[goal]).flatten(1)
        entries = (change != 0).double().mean()
        size = change.double().norm(dim=1).mean(), change.abs().amax(1).mean()
        dice = Dice.throw(0, samples.ids[goal]).of("noise")
        stays = 0.0
        with victim.held(), torch.no_grad():
            for draw in range(DRAWS):
                noisy = (x + NOISE * dice.normal(tuple(x.shape[1:]), draw)).clamp(0, 1)
                labels = victim(noisy).argmax(1)
                fooled = (
                    labels != samples.labels[goal]
                    if crafted.targets is None
                    else labels == crafted.targets[goal]
                )
                stays += float(fooled.double().mean()) / DRAWS
        print(
            f"| {name} | {theirs} | {won.double().mean():.0%} / {size[0]:.3f} / {size[1]:.3f} "
            f"| {entries:.3f} | {stays:.2f} | {seconds:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""What certified training proves on digits, beside natural and adversarial training.

python benchmarks/bounded.py [--recipe TEXT ...] [--arch digits_mlp]

Each network is trained on digits and certified at linf:0.1: by intervals on all test images, by
CROWN on the first 100 that are classified correctly. docs/training.md has the rows.
"""

from __future__ import annotations

import argparse
import time

import torch

import besiege
from besiege.bounds import Bounding
from besiege.core.threat import Threat
from besiege.models import Classifier
from besiege.training import recipe, train
from besiege.training.fitting import build

RECIPES = (
    "natural",
    "pgd-at(threat='linf:0.1')",
    "ibp",
    "crown-ibp",
    "convex",
)
THREAT = Threat.parse("linf:0.1")
FEW = 100


def row(text: str, arch: str) -> str:
    """Train by a recipe, and prove what can be proved."""
    data, test = besiege.data.load("digits", "train"), besiege.data.load("digits", "test")
    plan = recipe(text, "digits")
    net, _ = build(arch, data, 0, plan.layers)
    assert isinstance(net, Classifier)
    start = time.process_time()
    train(net, data, plan)
    spent = time.process_time() - start
    with torch.no_grad():
        right = net(test.images).argmax(1) == test.labels
    x, y, clean = test.images[right], test.labels[right], float(right.double().mean())
    bounding, shares = Bounding.of(net, x), []
    for method, few in (("ibp", len(x)), ("crown", FEW)):
        margins = bounding.margins(x[:few], y[:few], THREAT, method)
        proved = margins > bounding.needed(x[:few])
        shares.append(clean * float(proved.double().mean()))
    figures = " | ".join(f"{100 * share:.1f} %" for share in (clean, *shares))
    return f"| `{text}` | {figures} | {spent:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", action="append")
    parser.add_argument("--arch", default="digits_mlp")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for text in given.recipe or RECIPES:
        print(row(text, given.arch), flush=True)


if __name__ == "__main__":
    main()

"""What certified training proves on digits, beside natural and adversarial training.

python benchmarks/bounded.py [--recipe TEXT ...] [--arch digits_mlp] [--into docs/training.md]

Each network is trained on digits and certified at linf:0.1. Every figure is a share of all test
images: an image counts as proved if it is classified correctly and the method proves that no image
within the budget is misclassified. `--into` replaces what stands between the two lines
``<!-- bounded -->`` of a page.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

import besiege
from besiege.bounds import Bounding
from besiege.core.threat import Threat
from besiege.metrics import Rate
from besiege.models import Classifier
from besiege.training import recipe, train
from besiege.training.fitting import build

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.detectors import put
from benchmarks.harness import provenance

MARK = "<!-- bounded -->"
RECIPES = (
    "natural",
    "pgd-at(threat='linf:0.1')",
    "ibp",
    "crown-ibp",
    "convex",
)
THREAT = Threat.parse("linf:0.1")
METHODS = ("ibp", "crown")


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
    x, y = test.images[right], test.labels[right]
    bounding, hits = Bounding.of(net, x), [len(x)]
    for method in METHODS:
        margins = bounding.margins(x, y, THREAT, method)
        hits.append(int((margins > bounding.needed(x)).sum()))
    figures = " | ".join(str(Rate.of(one, len(test))) for one in hits)
    return f"| `{text}` | {figures} | {spent:.0f} |"


def lines(recipes: Sequence[str], arch: str) -> Iterator[str]:
    """The lines of the page."""
    about = provenance(1)
    date, *rest = (str(about[name]) for name in ("date", "commit", "machine", "torch"))
    count = len(besiege.data.load("digits", "test"))
    yield "Measured {}, commit {}, {}, torch {}.".format(date[:10], *rest)
    yield f"`{arch}`, {THREAT}; shares of all {count} test images, 95 % intervals in brackets."
    yield ""
    yield "| recipe | clean | proved by `ibp` | by `crown` | CPU s |"
    yield "|---|---|---|---|---|"
    for text in recipes:
        yield row(text, arch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", action="append")
    parser.add_argument("--arch", default="digits_mlp")
    parser.add_argument("--into", type=Path, help="page to write the table into")
    given = parser.parse_args()
    torch.set_num_threads(1)
    told = []
    for line in lines(given.recipe or RECIPES, given.arch):
        print(line, flush=True)
        told.append(line)
    if given.into is not None:
        put(given.into, told, MARK)


if __name__ == "__main__":
    main()

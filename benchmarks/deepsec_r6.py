"""DEEPSEC on detectors, its remark 6: answered for attackers who ignore them, and who do not.

    python benchmarks/deepsec_r6.py [--data mnist cifar10] [--count 100] [--into docs/detectors.md]

"Detectors perform comparably, and larger perturbations are not easier to detect" (Ling et al. 2019)
rests on images crafted on the undefended model. For each detector and budget: how often the
rejected are found and the area under the ROC curve for FGSM on the undefended model, and the images
that are not misclassified and accepted after PGD with 20 steps on detector and classifier together.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

import besiege

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.detectors import area, put
from benchmarks.harness import provenance

MODELS = {"mnist": "zoo:mnist-natural", "cifar10": "public:cifar10_resnet20"}
BUDGETS = {
    "mnist": ("0.1", "0.2", "0.3", "0.4", "0.5", "0.6"),
    "cifar10": ("4/255", "8/255", "0.1", "0.2", "0.4"),
}
KINDS = ("squeezing", "lid", "magnet")
OBLIVIOUS, ADAPTIVE = "oblivious(fgsm)", "pgd(steps=20, loss=margin)"
MARK = "<!-- remark 6 -->"


def lines(data: Sequence[str], count: int) -> Iterator[str]:
    """The table, line by line."""
    about = provenance(1)
    date, *rest = (str(about[name]) for name in ("date", "commit", "machine", "torch"))
    yield "Measured {}, commit {}, {}, torch {}.".format(date[:10], *rest)
    yield f"{count} images each, 95 % intervals in brackets."
    yield ""
    yield "| detector | linf | oblivious: errors rejected | ROC area | adaptive: not broken |"
    yield "|---|---|---|---|---|"
    for name in data:
        for kind in KINDS:
            for eps in BUDGETS[name]:
                yield line(name, kind, eps, count)


def line(data: str, kind: str, eps: str, count: int) -> str:
    """One detector against one budget."""
    found = besiege.evaluate(
        f"{MODELS[data]}+detector('zoo:{data}-{kind}')",
        data,
        count=count,
        threat=f"linf:{eps}",
        attacks=f"{OBLIVIOUS}, {ADAPTIVE}",
        curve=False,
        examine="none",
    )
    figures = found.figures.rejection
    assert figures is not None
    detected, adaptive = figures.detection[0], figures.attacks[1]
    kept = adaptive.wrong.count - adaptive.wrong.hits
    share = type(adaptive.wrong).of(kept, adaptive.wrong.count)
    cells = (f"{data}-{kind}", eps, detected.rejected or "", area(detected.auc), share)
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", nargs="+", choices=MODELS, default=tuple(MODELS))
    parser.add_argument("--count", type=int, default=100, help="images")
    parser.add_argument("--into", type=Path, help="page to write the table into")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for one in lines(given.data, given.count):
        print(one, flush=True)
        found.append(one)
    if given.into is not None:
        put(given.into, found, MARK)

"""Record the figures of the reference implementation of AutoAttack (package pyautoattack).

    python benchmarks/autoattack/reference.py [words of cells] [--device cuda] [--out FOLDER]

Each component runs on all images the network classifies correctly. The package is used as it is,
with seed 0 and all images in one batch. Every image it returns is checked here: it counts if the
network misclassifies it inside budget and box.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from besiege.core.ball import ball
from besiege.models import Classifier

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.autoattack.cells import (
    COMPONENTS,
    COUNT,
    RECORDED,
    Cell,
    chosen,
    packed,
    write,
)

NAMES = {"linf": "Linf", "l2": "L2", "l1": "L1"}


class Plain(nn.Module):
    """A network with its normalisation as one module, as the package wants it."""

    def __init__(self, victim: Classifier) -> None:
        super().__init__()
        self.victim = victim
        self.inner = victim.module

    def forward(self, x: Tensor) -> Tensor:
        """Images to logits."""
        return self.victim(x)


def record(cell: Cell, count: int, device: str, path: Path) -> None:
    """Write the figures of one cell, again after every component."""
    package: Any = import_module("pyautoattack")  # it has no types
    victim, samples = cell.load(count, device)
    x, y, threat = samples.images, samples.labels, cell.within
    assert threat.eps is not None
    around = ball(threat.norm, x, float(threat.eps), victim.box)
    components: dict[str, dict[str, object]] = {}
    with victim.held():
        with torch.no_grad():
            right = victim(x).argmax(1) == y
        for component in COMPONENTS:
            model = Plain(victim).eval()
            auto = package.AutoAttack(
                model, eps=float(threat.eps), norm=NAMES[str(threat.norm)], device=device, seed=0
            )
            auto.attacks_to_run = [component]
            begin = time.perf_counter()
            found, _ = auto.run_standard_evaluation(x, y, batch_size=count)
            seconds = time.perf_counter() - begin
            with torch.no_grad():
                wrong = victim(found).argmax(1) != y
            # Theirs may leave the budget by rounding: ten times what the judge grants ours.
            within = around.inside(found) | (around.distance(found) <= around.radius * (1 + 1e-5))
            robust = right & ~(wrong & within)
            components[component] = {"robust": packed(robust), "seconds": round(seconds, 2)}
            print(cell.name, component, int(robust.sum()), f"{seconds:.1f} s", flush=True)
            write(path, cell, right, components, by=f"pyautoattack {_version()}")


def _version() -> str:
    try:
        return importlib.metadata.version("pyautoattack")
    except importlib.metadata.PackageNotFoundError:  # a bare copy of its folder
        return "0.2.0"


def main() -> None:
    """Read the command line and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--out", type=Path, default=RECORDED)
    given = parser.parse_args()
    for cell in chosen(given.words):
        record(cell, given.count, given.device, given.out / f"{cell.name}.json")


if __name__ == "__main__":
    main()

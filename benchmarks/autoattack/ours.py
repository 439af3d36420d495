"""Figures of besiege's components on the cells, each on all correctly classified images.

    python benchmarks/autoattack/ours.py [words of cells] [--device cuda] [--attack NAME=TEXT ...]

Every success is judged by a fresh forward of the network.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from besiege.attacks import parse
from besiege.attacks.suites import suite
from besiege.core.threat import Access
from besiege.evaluation import craft, judge
from besiege.evaluation.crafting import Crafted

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.autoattack.cells import (
    COMPONENTS,
    COUNT,
    HERE,
    Cell,
    chosen,
    packed,
    write,
)

QUERIES = (100, 200, 500, 1000, 2000)


def record(cell: Cell, count: int, device: str, attacks: dict[str, str], path: Path) -> None:
    """Write the figures of one cell, again after every component."""
    victim, samples = cell.load(count, device)
    with victim.held(), torch.no_grad():
        right = victim(samples.images).argmax(1) == samples.labels
    twin = victim.twin(samples, cell.within)
    components: dict[str, dict[str, object]] = {}
    usual = dict(zip(COMPONENTS, suite("standard").attacks_for(cell.within.norm), strict=True))
    for name, text in (usual | attacks).items():
        begin = time.perf_counter()
        crafted = craft(victim, parse(text), samples, cell.within, twin=twin)
        seconds = time.perf_counter() - begin
        verdicts = judge(victim, crafted, samples, cell.within)
        broken = verdicts.success
        left = right & ~broken
        components[name] = {
            "attack": text,
            "robust": packed(left),
            "seconds": round(seconds, 2),
            "forwards": int(crafted.forwards.sum()),
            "backwards": int(crafted.backwards.sum()),
            # What a sample costs that is not broken.
            "passes": _passes(crafted, left),
        }
        if parse(text).access is Access.SCORE:  # a longer search continues a shorter one
            for most in QUERIES:
                soon = broken & (crafted.first_query <= most)
                components[f"{name}@{most}"] = {
                    "attack": f"square(steps={most})",
                    "robust": packed(right & ~soon),
                    "passes": [float(most), 0.0],
                }
        claimed = int(crafted.success.sum()) - int(broken.sum())
        print(
            cell.name,
            name,
            int(left.sum()),
            f"{seconds:.1f} s",
            f"unconfirmed {claimed}",
            flush=True,
        )
        write(path, cell, right, components, by="besiege")


def _passes(crafted: Crafted, left: torch.Tensor) -> list[float]:
    if not bool(left.any()):
        return [0.0, 0.0]
    return [float(n[left].double().mean()) for n in (crafted.forwards, crafted.backwards)]


def main() -> None:
    """Read the command line and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--attack", action="append", default=[], metavar="NAME=TEXT")
    parser.add_argument("--out", type=Path, default=HERE / "ours")
    given = parser.parse_args()
    attacks = dict(one.split("=", 1) for one in given.attack)
    for cell in chosen(given.words):
        record(cell, given.count, given.device, attacks, given.out / f"{cell.name}.json")


if __name__ == "__main__":
    main()

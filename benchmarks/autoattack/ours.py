"""What besiege's components come to on the cells, each alone on all images read rightly.

    python benchmarks/autoattack/ours.py [words of cells] [--device cuda] [--attack NAME=TEXT ...]

Every success is judged by a fresh forward of the network.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from cells import COMPONENTS, COUNT, HERE, Cell, chosen, made, packed, write

from besiege.attacks import parse
from besiege.attacks.suites import suite
from besiege.evaluation import craft, judge


def record(cell: Cell, count: int, device: str, attacks: dict[str, str]) -> dict[str, object]:
    """The figures of one cell."""
    victim, samples = cell.load(count, device)
    with victim.held(), torch.no_grad():
        right = victim(samples.images).argmax(1) == samples.labels
    components: dict[str, dict[str, object]] = {}
    usual = dict(zip(COMPONENTS, suite("standard").attacks_for(cell.within.norm), strict=True))
    for name, text in (attacks or usual).items():
        begin = time.perf_counter()
        crafted = craft(victim, parse(text), samples, cell.within, twin=True)
        seconds = time.perf_counter() - begin
        verdicts = judge(victim, crafted, samples, cell.within)
        broken = verdicts.success
        components[name] = {
            "attack": text,
            "robust": packed(right & ~broken),
            "seconds": round(seconds, 2),
            "forwards": int(crafted.forwards.sum()),
            "backwards": int(crafted.backwards.sum()),
        }
        claimed = int(crafted.success.sum()) - int(broken.sum())
        left = int((right & ~broken).sum())
        print(cell.name, name, left, f"{seconds:.1f} s", f"unconfirmed {claimed}", flush=True)
    return {
        "model": cell.model,
        "data": cell.data,
        "threat": cell.threat,
        "count": count,
        "clean": packed(right),
        "components": components,
        "made": made(by="besiege"),
    }


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
        write(given.out / f"{cell.name}.json", record(cell, given.count, given.device, attacks))


if __name__ == "__main__":
    main()

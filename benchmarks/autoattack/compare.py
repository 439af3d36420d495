"""Ours beside the reference, cell by cell; exit code 1 where ours leaves more than it may.

    python benchmarks/autoattack/compare.py [--ours FOLDER]

Percent of images left standing: each component by itself, and all four together. A component may
leave 0.4 points more than the reference's, the suite 0.2.
"""

from __future__ import annotations

import argparse
import sys
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.autoattack.cells import CELLS, COMPONENTS, HERE, RECORDED, read, unpacked

COMPONENT, SUITE, QUICK = 0.4, 0.2, 0.2


def left(figures: dict[str, Any], names: tuple[str, ...]) -> float:
    """Percent of images that stand under all of some components."""
    count = int(figures["count"])
    flags = [unpacked(figures["components"][name]["robust"], count) for name in names]
    return float(100 * reduce(np.logical_and, flags).mean())


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ours", type=Path, default=HERE / "ours")
    given = parser.parse_args()
    print(f"| cell (ours / reference) | {' | '.join(COMPONENTS)} | suite |")
    print("|---" * (len(COMPONENTS) + 2) + "|")
    missed = 0
    for cell in CELLS:
        mine, theirs = (folder / f"{cell.name}.json" for folder in (given.ours, RECORDED))
        if not mine.exists() or not theirs.exists():
            continue
        a, b = read(mine), read(theirs)
        row = []
        for names in (*((name,) for name in COMPONENTS), COMPONENTS):
            if any(name not in f["components"] for f in (a, b) for name in names):
                row.append("-")
                continue
            x, y = left(a, names), left(b, names)
            over = x - y > (SUITE if len(names) > 1 else COMPONENT) + 1e-9
            missed += over
            row.append(f"{x:.1f} / {y:.1f}{' !' if over else ''}")
        print(f"| {cell.model.split(':')[1]} {cell.threat} | {' | '.join(row)} |")
    print(f"{missed} of these leave more than they may")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())

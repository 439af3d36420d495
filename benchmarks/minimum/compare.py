"""Besiege's smallest changes beside the peers', from the recorded files.

    python benchmarks/minimum/compare.py [words of cells]

Local optimality is how near an attack's accuracy curve comes to that of the best of all attacks
recorded, ours and theirs (1: the same); only images that all recorded runs share count.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from besiege.attacks import parse
from besiege.attacks.suites import suite
from besiege.core.threat import Threat
from besiege.metrics.optimality import envelope, local_optimality

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.minimum.cells import HERE, chosen

Runs = dict[str, tuple[NDArray[np.float64], float, float]]


def runs(name: str) -> Runs:
    """Distances and passes of every attack recorded on a cell."""
    found: Runs = {}
    for folder in ("ours", "recorded"):
        path = HERE / folder / f"{name}.json"
        if path.exists():
            for attack, told in json.loads(path.read_text())["attacks"].items():
                far = np.array([np.inf if d is None else d for d in told["distance"]])
                # Ours in the one spelling that suites are compared by.
                title = str(parse(attack)) if folder == "ours" else attack
                found[title] = far, told["forwards"], told["backwards"]
    return found


def together(known: Runs, norm: str) -> dict[str, list[str]]:
    """The suite `minimum`, where all of it was recorded, and all peers."""
    listed = suite("minimum").attacks_for(Threat.parse(norm).norm)
    ours = [str(parse(text)) for text in listed]
    theirs = [name for name in known if name.startswith(("adv-lib", "foolbox"))]
    sets = {"**suite minimum**": ours, "all peers together": theirs}
    return {name: some for name, some in sets.items() if some and known.keys() >= set(some)}


def main() -> None:
    """Read the command line and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*")
    for cell in chosen(parser.parse_args().words):
        known = runs(cell.name)
        if not known:
            continue
        few = min(len(far) for far, _, _ in known.values())
        cut = {name: far[:few] for name, (far, _, _) in known.items()}
        best = envelope(list(cut.values()))
        print(f"\n{cell.name}, {few} images")
        print("\n| | found | median | 90th | passes | local optimality |")
        print("|---|---|---|---|---|---|")
        for name, (_, forwards, backwards) in known.items():
            order = np.sort(cut[name])
            print(
                f"| {name} | {np.isfinite(order).mean():.0%} "
                f"| {order[few // 2]:.4g} | {order[int(0.9 * few)]:.4g} "
                f"| {forwards:.0f} + {backwards:.0f} | {local_optimality(cut[name], best):.3f} |"
            )
        for name, some in together(known, cell.norm).items():
            union = envelope([cut[one] for one in some])
            order = np.sort(union)
            forwards = sum(known[one][1] for one in some)
            backwards = sum(known[one][2] for one in some)
            print(
                f"| {name} | {np.isfinite(union).mean():.0%} | {order[few // 2]:.4g} "
                f"| {order[int(0.9 * few)]:.4g} | {forwards:.0f} + {backwards:.0f} "
                f"| {local_optimality(union, best):.3f} |"
            )


if __name__ == "__main__":
    main()

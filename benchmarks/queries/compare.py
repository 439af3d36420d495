"""Print what is recorded at equal queries as the tables of docs/queries.md.

    python benchmarks/queries/compare.py

Medians of 100 images, none where fewer than half were broken; within a budget, how many stand.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.queries.cells import HERE

PEERS = {"foolbox": "foolbox", "art": "ART"}
SMALLEST = ("digits-natural", "mnist_cnn_a_adv", "cifar10_resnet20", "cifar10-pgd-at")
WITHIN = (
    "digits-natural-linf-0.2",
    "digits-pgd-at-linf-0.2",
    "mnist_cnn_a_adv-linf-0.3",
    "cifar10_resnet20-linf-8_255",
    "cifar10-pgd-at-linf-8_255",
)
DECISION = ("hopskipjump", "boundary", "evolutionary", "signopt", "opt", "geoda", "rays", "zoo")
SCORE = ("nattack", "square", "spsa", "nes", "rgf", "bandits")
MARKS = ("500", "2000", "20000")


def figures(cell: str) -> dict[str, Any]:
    """All that is recorded of a cell, by the attack's name; a peer's has its own in front."""
    found: dict[str, Any] = {}
    for folder in ("ours", "recorded"):
        path = HERE / folder / f"{cell}.json"
        if path.exists():
            found.update(json.loads(path.read_text())["attacks"])
    return found


def median(far: list[float | None]) -> str:
    """Of distances, None of which are none."""
    found = sorted(float("inf") if d is None else d for d in far)[len(far) // 2]
    return "none" if found == float("inf") else f"{found:.3g}"


def row(name: str, cells: list[str]) -> str:
    """One line of a table."""
    return f"| {' | '.join([name, *cells])} |"


def table(nets: tuple[str, ...], attacks: tuple[str, ...], key: str, marks: tuple[str, ...]) -> str:
    """One table: attacks and their peers against cells, each with its marks."""
    known = {net: figures(net) for net in nets}
    lines = [row("", list(nets)), "|---" * (len(nets) + 1) + "|"]
    for attack in attacks:
        for peer in ("", "with", *PEERS):
            name = f"{attack} with images" if peer == "with" else f"{peer} {attack}".strip()
            cells = []
            for net in nets:
                told = known[net].get(name, {}).get(key, {})
                shown = [
                    str(told[m]) if key == "robust" else median(told[m]) for m in marks if m in told
                ]
                cells.append(" / ".join(shown))
            if any(cells):
                lines.append(
                    row(f"&nbsp; {PEERS.get(peer, 'with images')}" if peer else attack, cells)
                )
    return "\n".join(lines)


def main() -> None:
    """Print all tables."""
    for norm in ("l2", "linf"):
        print(f"\nMedian distance in {norm} after {' / '.join(MARKS)} queries\n")
        print(table(tuple(f"{net}-{norm}" for net in SMALLEST), DECISION, "after", MARKS))
    print("\nImages of 100 that stand after 500 / 2000 / 20000 queries\n")
    print(table(WITHIN, SCORE, "robust", MARKS))


if __name__ == "__main__":
    main()

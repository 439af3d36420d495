"""Build a cheap suite from recorded runs: greedily, by samples broken per pass.

    python benchmarks/autoattack/ours.py --attack "NAME=TEXT" ...    # records candidates
    python benchmarks/autoattack/quick.py [--ours FOLDER] [--slack 0.2]

Samples count that some recorded attack breaks, every cell alike. A candidate costs its passes for a
sample that it does not break (a backward counts as two forwards), on all that still stand. The next
attack of the list is the one that breaks most per pass of what stands; the list ends when every
cell is within `slack` points of its standard suite. Then attacks that are not needed are dropped.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.autoattack.cells import CELLS, COMPONENTS, HERE, read, unpacked

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Run:
    """What one attack came to on one cell: who stands, and its passes for one of them."""

    stands: Flags
    passes: float


@dataclass(frozen=True)
class Table:
    """All runs of a cell."""

    name: str
    clean: Flags
    runs: dict[str, Run]

    def standing(self, names: tuple[str, ...]) -> Flags:
        """Who stands under all of some attacks."""
        stands = self.clean.copy()
        for name in names:
            stands &= self.runs[name].stands
        return stands

    def cost(self, names: tuple[str, ...]) -> float:
        """The passes of a list, each attack on what is left, per image."""
        stands, cost = self.clean.copy(), 0.0
        for name in names:
            cost += self.runs[name].passes * float(stands.mean())
            stands &= self.runs[name].stands
        return cost


def table(path: Path) -> Table:
    """The runs of a file of figures."""
    figures = read(path)
    count = int(figures["count"])
    runs = {}
    for name, one in figures["components"].items():
        forwards, backwards = one["passes"]
        runs[name] = Run(unpacked(one["robust"], count), forwards + 2 * backwards)
    return Table(path.stem, unpacked(figures["clean"], count), runs)


def build(tables: list[Table], candidates: list[str], slack: float) -> tuple[str, ...]:
    """The list, greedily."""
    chosen: tuple[str, ...] = ()
    goals = {t.name: t.standing(COMPONENTS).mean() for t in tables}

    def missing(names: tuple[str, ...]) -> list[Table]:
        return [t for t in tables if t.standing(names).mean() > goals[t.name] + slack / 100 + 1e-9]

    while missing(chosen):
        worth = {c: _worth(tables, chosen, c) for c in candidates if c not in chosen}
        best = max(worth, key=lambda name: worth[name])
        if worth[best] <= 0:
            break
        chosen = (*chosen, best)
    for name in chosen:
        fewer = tuple(c for c in chosen if c != name)
        if not missing(fewer) and total(tables, fewer) < total(tables, chosen):
            chosen = fewer
    return chosen


def _worth(tables: list[Table], chosen: tuple[str, ...], name: str) -> float:
    """What a candidate breaks per pass of what a list leaves."""
    gain = cost = 0.0
    for t in tables:
        before = t.standing(chosen)
        # What no standard attack breaks need not be broken.
        gain += float((before & ~t.runs[name].stands & ~t.standing(COMPONENTS)).mean())
        cost += t.runs[name].passes * float(before.mean())
    return gain / max(cost, 1e-9)


def total(tables: list[Table], names: tuple[str, ...]) -> float:
    """The passes of a list on all cells."""
    return sum(t.cost(names) for t in tables)


def show(tables: list[Table], chosen: tuple[str, ...]) -> None:
    """Print what a list leaves and costs, cell by cell."""
    print("| cell | standard | list | cost ratio |")
    print("|---|---|---|---|")
    for t in tables:
        whole, mine = t.standing(COMPONENTS), t.standing(chosen)
        ratio = t.cost(COMPONENTS) / max(t.cost(chosen), 1e-9)
        print(f"| {t.name} | {100 * whole.mean():.1f} | {100 * mine.mean():.1f} | {ratio:.1f} |")


def main() -> None:
    """Read the command line, build and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ours", type=Path, default=HERE / "ours")
    parser.add_argument("--slack", type=float, default=0.2)
    parser.add_argument("--list", help="show a given list instead, by semicolons")
    given = parser.parse_args()
    found: list[Any] = [given.ours / f"{cell.name}.json" for cell in CELLS]
    tables = [table(path) for path in found if path.exists()]
    shared = set.intersection(*(set(t.runs) for t in tables))
    if given.list:
        chosen = tuple(given.list.split(";"))
    else:
        chosen = build(tables, sorted(shared - {"square", "apgd-t", "fab-t"}), given.slack)
    print("; ".join(chosen))
    show(tables, chosen)


if __name__ == "__main__":
    main()

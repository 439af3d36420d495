"""Record what besiege's query attacks find within so many queries on the cells.

    python benchmarks/queries/ours.py [cells] [--queries 2000] [--attack TEXT ...]

Attacks that see labels begin at noise, as their peers do, or as in an evaluation with --starts. On
the network itself, without a twin; every image is judged by a fresh forward. A bare forward of
as many images at the batch size used is timed in turns, for what the attack itself costs.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch

from besiege.attacks import parse
from besiege.core.oracle import Access, Oracle
from besiege.core.record import COSTS
from besiege.core.samples import Samples
from besiege.evaluation import craft, judge

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.minimum.cells import Book
from benchmarks.queries.cells import (
    COUNT,
    HERE,
    MARKS,
    QUERIES,
    SKIP,
    Cell,
    chosen,
    medians,
    rounded,
)

DECISION = ("boundary", "hopskipjump", "evolutionary", "opt", "signopt", "rays", "geoda")
SCORE = ("square", "nattack", "nes", "spsa", "rgf", "bandits", "zoo")


def record(cell: Cell, given: argparse.Namespace) -> None:
    """Run attacks on one cell; those that do not know its norm are left out."""
    victim, samples = cell.load(given.count, given.device, SKIP)
    threat = cell.threat
    book = Book(given.out, cell, len(samples), "besiege")
    book.figures["queries"] = given.queries
    for text in given.attack or (*DECISION, *SCORE):
        attack = parse(text)
        if threat.norm not in attack.norms or (threat.eps is None and not attack.minimal):
            continue
        if threat.eps is not None and attack.access is Access.DECISION and not given.attack:
            continue
        how: dict[str, Any] = {"queries": given.queries, "seed": given.seed}
        if given.starts:
            how["starts"] = beginnings(cell, given.device)
        begin = time.perf_counter()
        crafted = craft(victim, attack, samples, threat, **how)
        seconds = time.perf_counter() - begin
        verdicts = judge(victim, crafted, samples, threat)
        far = torch.where(verdicts.success, crafted.distance, torch.inf)
        used = float(crafted.queries.double().mean())
        marks = [mark for mark in MARKS if mark <= given.queries]
        entry: dict[str, Any] = {
            "floor": round(used * len(samples) * _forward(victim, samples.images), 1)
        }
        if threat.eps is None and crafted.descent is not None:
            entry["after"] = {
                str(m): rounded(torch.maximum(crafted.descent[:, COSTS.index(m)].double(), far))
                for m in marks
            }
            print(" ", medians(entry["after"]), flush=True)
        else:
            spent = crafted.first_query.masked_fill(~verdicts.success, 10**9)
            entry["robust"] = {str(m): int((spent > m).sum()) for m in marks}
            print("  robust", entry["robust"], flush=True)
        print(f"  floor {entry['floor']} s", flush=True)
        name = f"{text} with images" if given.starts else text
        book.note(name, far, used, 0.0, seconds, **entry)


def beginnings(cell: Cell, device: str) -> Samples:
    """Ten images of every class, none of which is attacked."""
    samples = cell.load(10 * COUNT, device, SKIP + COUNT)[1]
    rows = [(samples.labels == label).nonzero()[:10, 0] for label in range(10)]
    return samples.at(torch.cat(rows).sort().values)


def _forward(victim: object, x: torch.Tensor) -> float:
    """Seconds of a bare forward of one image, at the batch size the oracle uses."""
    oracle = Oracle(victim)  # type: ignore[arg-type]  # a classifier
    size = oracle._size(x)
    batch = x.repeat(-(-size // len(x)), 1, 1, 1)[:size]
    with victim.held(), torch.no_grad():  # type: ignore[attr-defined]
        times = []
        for _ in range(12):
            begin = time.perf_counter()
            victim(batch)  # type: ignore[operator]
            if x.is_cuda:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
    return sorted(times)[len(times) // 2] / size


def main() -> None:
    """Read the command line and record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--queries", type=int, default=QUERIES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--attack", action="append", default=[])
    parser.add_argument("--starts", action="store_true", help="give images of every class")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=HERE / "ours")
    given = parser.parse_args()
    if given.device == "cpu":
        torch.set_num_threads(1)
    for cell in chosen(given.words):
        record(cell, given)


if __name__ == "__main__":
    main()

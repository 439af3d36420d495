"""Record the smallest changes that besiege's attacks find on the cells.

    python benchmarks/minimum/ours.py [words of cells] [--count 200] [--attack TEXT ...]

Searched as `evaluate` does, on the twin; every image is judged by a fresh forward of the network.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from besiege.attacks import parse
from besiege.evaluation import craft, judge

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.minimum.cells import COUNT, HERE, Book, Cell, chosen

ATTACKS = (
    "ddn",
    "fmn",
    "deepfool",
    "superdeepfool",
    "cw(rounds=4, steps=25)",
    "cw",
    "ead",
    "sigmazero",
    "alma",
    "blb",
    "fabt",
    "minimal(apgd(steps=20))",
)


def record(
    cell: Cell, count: int, first: int, texts: Sequence[str], device: str, folder: Path
) -> None:
    """Run attacks on one cell; those that do not know its norm are left out."""
    victim, samples = cell.load(count, device)
    samples = samples.at(torch.arange(min(first, len(samples)), device=samples.images.device))
    threat = cell.threat
    twin = victim.twin(samples, threat)
    book = Book(folder, cell, len(samples), "besiege")
    for text in texts:
        attack = parse(text)
        if threat.norm not in attack.norms:
            continue
        begin = time.process_time()
        crafted = craft(victim, attack, samples, threat, twin=twin)
        seconds = time.process_time() - begin
        verdicts = judge(victim, crafted, samples, threat)
        far = torch.where(verdicts.success, crafted.distance, torch.inf)
        many = len(samples)
        forwards, backwards = float(crafted.forwards.sum()), float(crafted.backwards.sum())
        book.note(text, far, forwards / many, backwards / many, seconds)


def main() -> None:
    """Read the command line and record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--first", type=int, default=COUNT, help="so many of them only")
    parser.add_argument("--attack", action="append", default=[])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=HERE / "ours")
    given = parser.parse_args()
    if given.device == "cpu":
        torch.set_num_threads(1)
    for cell in chosen(given.words):
        record(cell, given.count, given.first, given.attack or ATTACKS, given.device, given.out)


if __name__ == "__main__":
    main()

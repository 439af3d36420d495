"""The cells of the comparison at equal queries: a network, its images, a threat.

A file holds, for every attack, the distance of the smallest change found for each image within the
queries allowed (null where none was), the queries used, the seconds; for threats with a budget a
distance within it is a success.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.minimum.cells import Cell as Minimal

from besiege.core.threat import Threat

HERE = Path(__file__).parent
COUNT, QUERIES = 100, 2000
SKIP = 100
"""Settings of ours were chosen on the first images; what is recorded comes from the next ones."""
MARKS = (500, 1000, 2000, 5000, 10000, 20000)
"""Queries at which the smallest distances are written down."""


def medians(after: dict[str, list[float | None]]) -> str:
    """The median at every mark, for the eye."""
    worst = {k: sorted(d if d is not None else float("inf") for d in v) for k, v in after.items()}
    return " ".join(f"{k}: {v[len(v) // 2]:.4f}" for k, v in worst.items())


def rounded(far: Tensor) -> list[float | None]:
    """Distances for a file; None where there is none."""
    return [round(d, 5) if math.isfinite(d) else None for d in far.tolist()]


@dataclass(frozen=True)
class Cell(Minimal):
    """One network on its data, in one norm, with or without a budget."""

    eps: str | None = None

    @property
    def name(self) -> str:
        """What its file is called."""
        return super().name + ("" if self.eps is None else "-" + self.eps.replace("/", "_"))

    @property
    def threat(self) -> Threat:
        """The smallest change in its norm, or one within its budget."""
        return Threat.parse(self.norm if self.eps is None else f"{self.norm}:{self.eps}")


_NETS = (
    ("zoo:digits-natural", "digits", "0.2"),
    ("zoo:digits-pgd-at", "digits", "0.2"),
    ("public:mnist_cnn_a_adv", "mnist", "0.3"),
    ("public:cifar10_resnet20", "cifar10", "8/255"),
    ("zoo:cifar10-pgd-at", "cifar10", "8/255"),
)
CELLS = tuple(
    Cell(model, data, norm, eps)
    for model, data, budget in _NETS
    for norm, eps in (("l2", None), ("linf", None), ("linf", budget))
)


def chosen(words: Iterable[str]) -> list[Cell]:
    """The cells of these names; all without any."""
    wanted = tuple(words)
    return [c for c in CELLS if not wanted or c.name in wanted]

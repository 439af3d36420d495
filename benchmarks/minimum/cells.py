"""The cells of the comparison: a network, its images, a norm; and how distances are kept.

A file holds, for every attack, the distance of the smallest change found for each image (null
where none was), and the passes and seconds it took.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import besiege
from besiege.core.samples import Samples
from besiege.core.threat import Threat
from besiege.models import Classifier

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.autoattack.cells import made

HERE = Path(__file__).parent
COUNT = 200


@dataclass(frozen=True)
class Cell:
    """One network on its data in one norm."""

    model: str
    data: str
    norm: str

    @property
    def name(self) -> str:
        """What its file is called."""
        return f"{self.model.split(':')[1]}-{self.norm}"

    @property
    def threat(self) -> Threat:
        """The smallest change in its norm."""
        return Threat.parse(self.norm)

    def load(
        self, count: int = COUNT, device: str = "cpu", skip: int = 0
    ) -> tuple[Classifier, Samples]:
        """The network and images, in the order of seed 0, classified correctly, after the first."""
        victim = besiege.models.load(self.model, device)
        data = besiege.data.load(self.data)
        data = data.subset(min(len(data.labels), 2 * (skip + count)))
        with victim.held(), torch.no_grad():
            parts = torch.split(data.images.to(victim.device), 250)
            guess = torch.cat([victim(part).argmax(1) for part in parts]).cpu()
        rows = (guess == data.labels).nonzero()[skip : skip + count, 0]
        samples = Samples.of(data.images[rows], data.labels[rows], ids=data.ids[rows])
        return victim, samples.to(victim.device)


CELLS = tuple(
    Cell(model, data, norm)
    for model, data in (
        ("public:cifar10_resnet20", "cifar10"),
        ("zoo:cifar10-pgd-at", "cifar10"),
        ("public:cifar10_cnn_a_adv", "cifar10"),
        ("public:mnist_cnn_a_adv", "mnist"),
        ("zoo:digits-natural", "digits"),
    )
    for norm in ("l2", "linf", "l1", "l0")
)


def chosen(words: Iterable[str]) -> list[Cell]:
    """The cells whose names hold one of the words; all without any."""
    wanted = tuple(words)
    return [c for c in CELLS if not wanted or any(w in c.name for w in wanted)]


class Book:
    """The figures of one cell in one file, written again after every attack."""

    def __init__(self, folder: Path, cell: Cell, count: int, by: str) -> None:
        self.path = folder / f"{cell.name}.json"
        self.figures: dict[str, Any] = {
            "model": cell.model,
            "data": cell.data,
            "norm": cell.norm,
            "count": count,
            "attacks": {},
        }
        if self.path.exists():
            self.figures = json.loads(self.path.read_text())
        self.figures["made"] = made(by=by)

    def note(
        self,
        name: str,
        far: Tensor,
        forwards: float,
        backwards: float,
        seconds: float,
        **more: Any,
    ) -> None:
        """Write down what one attack came to."""
        self.figures["attacks"][name] = {
            "distance": [round(d, 6) if math.isfinite(d) else None for d in far.tolist()],
            "forwards": round(forwards, 1),
            "backwards": round(backwards, 1),
            "seconds": round(seconds, 1),
            **more,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.figures, indent=1)
        # One line per attack is enough: the distances are many.
        self.path.write_text(_flat(text) + "\n")
        order = far.sort().values
        print(
            f"{self.path.stem} {name:60} {int(torch.isfinite(far).sum())}/{len(far)} "
            f"mean {far[torch.isfinite(far)].mean():.4f} median {order[len(far) // 2]:.4f} "
            f"p90 {order[int(0.9 * len(far))]:.4f} "
            f"F {forwards:.0f} B {backwards:.0f} {seconds:.0f} s",
            flush=True,
        )


def _flat(text: str) -> str:
    """Lists of numbers on one line."""
    out: list[str] = []
    inside = False
    for line in text.split("\n"):
        if inside:
            out[-1] += line.strip()
            inside = not line.strip().startswith("]")
        else:
            out.append(line)
            inside = line.endswith("[")
    return "\n".join(out)

"""The cells of the comparison: a network, its images, a budget; and how their figures are kept.

A file of figures is small: for every component one bit per image, whether it still stands, as a
hexadecimal number, with the seconds it took and where it was made.
"""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import besiege
from besiege.core.samples import Samples
from besiege.core.threat import Threat
from besiege.models import Classifier

COUNT = 500
HERE = Path(__file__).parent
RECORDED = HERE / "recorded"
COMPONENTS = ("apgd-ce", "apgd-t", "fab-t", "square")


@dataclass(frozen=True)
class Cell:
    """One network on its data within one budget."""

    model: str
    data: str
    threat: str

    @property
    def name(self) -> str:
        """What its file is called."""
        words = f"{self.model.split(':')[1]}-{self.threat}"
        return "".join(c if c.isalnum() or c in "-." else "_" for c in words)

    @property
    def within(self) -> Threat:
        """Its budget."""
        return Threat.parse(self.threat)

    def load(self, count: int = COUNT, device: str = "cpu") -> tuple[Classifier, Samples]:
        """The network and the first of its images in the order of seed 0."""
        victim = besiege.models.load(self.model, device)
        data = besiege.data.load(self.data, count=count)
        return victim, Samples.of(data.images, data.labels, ids=data.ids).to(victim.device)


CELLS = (
    Cell("zoo:cifar10-pgd-at", "cifar10", "linf:8/255"),
    Cell("zoo:cifar10-pgd-at", "cifar10", "l2:0.5"),
    Cell("zoo:cifar10-pgd-at", "cifar10", "l1:12"),
    Cell("zoo:cifar10-resnet20-pgd-at", "cifar10", "linf:8/255"),
    Cell("zoo:cifar10-resnet20-pgd-at", "cifar10", "l2:0.5"),
    Cell("zoo:cifar10-resnet20-pgd-at", "cifar10", "l1:12"),
    Cell("zoo:cifar10-trades", "cifar10", "linf:8/255"),
    Cell("zoo:cifar10-fast-at", "cifar10", "linf:8/255"),
    Cell("zoo:cifar10-igr", "cifar10", "linf:8/255"),
    Cell("public:cifar10_resnet20", "cifar10", "linf:1/255"),
    Cell("public:cifar10_resnet20", "cifar10", "l2:0.1"),
    Cell("public:cifar10_resnet56", "cifar10", "linf:1/255"),
    Cell("public:cifar10_resnet56", "cifar10", "l1:2"),
    Cell("public:cifar10_cnn_a_adv", "cifar10", "linf:2/255"),
    Cell("public:cifar10_resnet2b_adv", "cifar10", "linf:2/255"),
    Cell("public:cifar10_kw_small_l2_36px", "cifar10", "l2:36/255"),
    Cell("public:mnist_kw_small_eps0.1", "mnist", "linf:0.1"),
    Cell("public:mnist_cnn_a_adv", "mnist", "linf:0.3"),
    Cell("public:mnist_lenet_adv", "mnist", "linf:0.3"),
    Cell("public:mnist_lenet_adv", "mnist", "l2:2"),
    Cell("public:fashion_kw_small_eps0.1", "fashion-mnist", "linf:0.1"),
)


def chosen(words: Iterable[str]) -> list[Cell]:
    """The cells whose names hold one of the words; all without any."""
    wanted = tuple(words)
    return [c for c in CELLS if not wanted or any(w in c.name for w in wanted)]


def packed(flags: torch.Tensor) -> str:
    """Flags as a hexadecimal number."""
    return np.packbits(flags.cpu().numpy()).tobytes().hex()


def unpacked(text: str, count: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Flags from a hexadecimal number."""
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8))[:count].astype(bool)


def made(**more: str) -> dict[str, str]:
    """Where and when figures were made."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "torch": torch.__version__,
        "device": device,
        **more,
    }


def write(
    path: Path,
    cell: Cell,
    clean: torch.Tensor,
    components: dict[str, dict[str, object]],
    by: str,
) -> None:
    """The figures of a cell to a file, readable."""
    figures = {
        "model": cell.model,
        "data": cell.data,
        "threat": cell.threat,
        "count": len(clean),
        "clean": packed(clean),
        "components": components,
        "made": made(by=by),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1) + "\n")


def read(path: Path) -> dict[str, Any]:
    """Figures of a file."""
    figures: dict[str, Any] = json.loads(path.read_text())
    return figures

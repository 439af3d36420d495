"""How far from perfect is each attack? Its distances beside the exact smallest perturbations.

python benchmarks/truth.py [--images 100] [--seconds 60] [--net NAME ...] [--folder F] [--write]

Three small networks for 8x8 digits are trained here, in seconds, and one for MNIST in minutes. For
each image that one classifies correctly, mixed-integer programming finds the exact smallest
perturbation in linf; its search begins at the distance that an attack found. An attack's distance
divided by the exact one is its ratio: 1 is perfect, and none can be below 1. Images that are not
solved within the time limit are counted and left out. Weights and solved images are kept in the
folder: the same command resumes, and a longer limit tries only what is not solved. `--write` writes
docs/truth.md; with `--net`, only the sections of these networks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.nn import functional

import besiege
from besiege.attacks.suites import SUITES
from besiege.bounds.bounding import Bounding
from besiege.core.threat import Linf
from besiege.data import load
from besiege.evaluation.certificates.exact import smallest
from besiege.evaluation.programs import Program
from besiege.training import train

PAGE = Path(__file__).resolve().parents[1] / "docs" / "truth.md"
ATTACKS = (
    "deepfool",
    "fab",
    "fabt",
    "fmn",
    "cw",
    "minimal(pgd)",
    "minimal(apgd)",
    "geoda",
    "hopskipjump",
    "rays",
)
TOLERANCE = 1e-4
"""By what share an attack's distance may be below the exact one: the solver's tolerances."""
RESAMPLES = 2000
FIRST = "fabt"
"""The attack whose distance the exact search begins with."""
BEYOND = 5e-4
"""By what share the first radius is larger than that distance."""


def _mlp() -> nn.Sequential:
    widths = (64, 24, 24)
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(24, 10))


def _cnn() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 6, 3, 2, 1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(24, 20), nn.ReLU(), nn.Linear(20, 10)),
    )


def _perturbed(net: nn.Module, x: Tensor, y: Tensor, eps: float) -> Tensor:
    """Seven steps of projected gradient ascent."""
    z = (x + eps * (2 * torch.rand_like(x) - 1)).clamp(0, 1)
    for _ in range(7):
        z.requires_grad_()
        (gradient,) = torch.autograd.grad(functional.cross_entropy(net(z), y), z)
        step = z.detach() + eps / 3 * gradient.sign()
        z = torch.minimum(torch.maximum(step, x - eps), x + eps).clamp(0, 1)
    return z.detach()


def _trained(net: nn.Sequential, eps: float) -> nn.Sequential:
    data = load("digits", split="train")
    adam = torch.optim.Adam(net.parameters(), 3e-3, weight_decay=1e-4)
    for _ in range(60):
        for rows in torch.split(torch.randperm(len(data.labels)), 100):
            x, y = data.images[rows], data.labels[rows]
            x = _perturbed(net, x, y, eps) if eps else x
            adam.zero_grad()
            loss = functional.cross_entropy(net(x), y)
            torch.autograd.backward(loss)
            adam.step()
    return net.eval()


def _mnist_cnn() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 2, 5, 4, 1), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(98, 24), nn.ReLU(), nn.Linear(24, 10)),
    )


@dataclass(frozen=True)
class Net:
    """A network of the table: its layers, and how it is trained."""

    data: str
    build: Callable[[], nn.Sequential]
    train: Callable[[nn.Sequential], object]

    def weights(self, name: str, folder: Path) -> nn.Sequential:
        """The trained network, from the folder where it is there."""
        path = folder / f"{name.replace(', ', '-').replace(' ', '-')}.safetensors"
        torch.manual_seed(0)
        net = self.build()
        if path.exists():
            load_model(net, str(path))
        else:
            self.train(net)
            save_model(net, str(path))
        return net.eval()


NETS: dict[str, Net] = {
    "mlp": Net("digits", _mlp, partial(_trained, eps=0.0)),
    "mlp, adversarially trained": Net("digits", _mlp, partial(_trained, eps=0.1)),
    "cnn, adversarially trained": Net("digits", _cnn, partial(_trained, eps=0.1)),
    "mnist cnn, trained by bounds": Net(
        "mnist", _mnist_cnn, lambda net: train(net, load("mnist", split="train"), MNIST)
    ),
}
MNIST = "ibp(epochs=12, batch=128, threat='linf:0.1')"


@dataclass(frozen=True)
class Row:
    """The ratios of one attack on one network."""

    attack: str
    ratio: float
    low: float
    high: float
    median: float
    worst: float
    missed: int


def _row(attack: str, found: np.ndarray, exact: np.ndarray) -> Row:
    ratios = found / exact
    if (ratios < 1 - TOLERANCE).any():
        raise SystemExit(f"{attack} is below the exact distance: {ratios.min():.6f} of it")
    there = ratios[np.isfinite(ratios)]
    draws = np.random.default_rng(0).integers(0, len(there), (RESAMPLES, len(there)))
    low, high = np.quantile(there[draws].mean(1), [0.025, 0.975])
    missed = int(len(ratios) - len(there))
    return Row(attack, there.mean(), float(low), float(high), np.median(there), there.max(), missed)


def _distances(victim: besiege.Classifier, x: Tensor, y: Tensor, attack: str) -> np.ndarray:
    result = besiege.attack(attack, victim, x, y, threat="linf", seed=0)
    found = torch.where(result.success, result.distance.double(), torch.inf)
    return found.numpy()


@dataclass(frozen=True)
class Solved:
    """Between which the exact distance of an image lies, the CPU time, and the limit it had."""

    below: float
    above: float
    spent: float
    seconds: float

    @property
    def solved(self) -> bool:
        """Whether both agree to 0.1 %."""
        return math.isfinite(self.above) and 1 - self.below / self.above < 1e-3


def _exact(
    victim: besiege.Classifier,
    bounding: Bounding,
    some: tuple[Tensor, Tensor, Tensor],
    seconds: float,
    path: Path,
) -> list[Solved]:
    """The exact distances, of which each is kept as soon as it is known."""
    x, y, ids = some
    known = json.loads(path.read_text()) if path.exists() else {}
    mine: dict[str, list[float]] = known.setdefault(victim.digest()[:16], {})
    near = _distances(victim, x, y, FIRST)
    with torch.no_grad(), victim.held():
        program = Program.of(bounding.graph)
        for row, key in enumerate(map(str, ids.tolist())):
            if key in mine and (Solved(*mine[key]).solved or mine[key][3] >= seconds):
                continue
            first = float(near[row]) * (1 + BEYOND) if math.isfinite(near[row]) else 0.05
            start = time.process_time()
            one = smallest(bounding, program, x[row], int(y[row]), first, seconds)
            mine[key] = [one.below, one.above, time.process_time() - start, seconds]
            part = path.with_suffix(".part")
            part.write_text(json.dumps(known))
            part.replace(path)
    return [Solved(*mine[str(one)]) for one in ids.tolist()]


def measured(name: str, images: int, seconds: float, folder: Path) -> tuple[list[str], list[Row]]:
    """Facts about a network as lines, and the row of every attack."""
    net = NETS[name]
    victim = besiege.Classifier(net.weights(name, folder), name=name)
    data = load(net.data, count=images)
    with torch.no_grad():
        right = victim(data.images).argmax(1) == data.labels
    x, y, ids = data.images[right], data.labels[right], data.ids[right]
    bounding = Bounding.of(victim, x)
    found = _exact(victim, bounding, (x, y, ids), seconds, folder / "exact.json")
    kept = np.array([one.solved for one in found])
    spent = [one.spent for one in found]
    truth = np.array([one.above for one in found])[kept]
    x, y = x[torch.from_numpy(kept)], y[torch.from_numpy(kept)]
    facts = [
        f"{bounding.graph.units} ReLUs; {len(kept)} of {images} images are classified correctly, "
        f"{int(kept.sum())} of them solved exactly (gap below 0.1 %); median "
        f"{np.median(spent):.2f} s of CPU time an image; median exact distance "
        f"{np.median(truth):.4f}; time limit {max(one.seconds for one in found):g} s an image."
    ]
    every = {attack: _distances(victim, x, y, attack) for attack in ATTACKS}
    parts = [_distances(victim, x, y, one) for one in SUITES["minimum"].others[Linf]]
    every["suite minimum"] = np.minimum.reduce(parts)
    return facts, [_row(attack, found, truth) for attack, found in every.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--net", choices=NETS, action="append")
    parser.add_argument("--folder", type=Path, default=Path("truth"))
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.folder.mkdir(parents=True, exist_ok=True)
    sections = _sections() if given.net else {}
    for name in given.net or NETS:
        facts, rows = measured(name, given.images, given.seconds, given.folder)
        lines = [*facts, "", _made(given), ""]
        lines += ["| attack | mean ratio | 95 % | median | worst | missed |"]
        lines += ["|---|---|---|---|---|---|"]
        lines += [
            f"| {r.attack} | {r.ratio:.3f} | {r.low:.3f} to {r.high:.3f} | {r.median:.3f} "
            f"| {r.worst:.2f} | {r.missed} |"
            for r in sorted(rows, key=lambda r: r.ratio)
        ]
        sections[name] = "\n".join(lines)
        print(f"## {name}\n\n{sections[name]}\n", flush=True)
    if given.write:
        parts = [f"## {name}\n\n{sections[name]}" for name in NETS if name in sections]
        PAGE.write_text("\n\n".join(["\n".join(_head()), *parts]) + "\n")


def _sections() -> dict[str, str]:
    """What the page has about each network."""
    _, *parts = PAGE.read_text().split("\n## ")
    return {name: text.strip() for name, _, text in (part.partition("\n") for part in parts)}


def _made(given: argparse.Namespace) -> str:
    """How the figures of a network are reproduced."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return (
        f"`python benchmarks/truth.py --images {given.images} --seconds {given.seconds:g}`, "
        f"{date.today()}, commit {commit}, {platform.machine()} CPU, one thread."
    )


def _head() -> list[str]:
    return [
        "# How far from perfect is each attack?",
        "",
        "On small networks the exact smallest perturbation can be computed, by mixed-integer "
        "programming (`--method exact`). An attack that searches for the smallest perturbation "
        "finds one at least as large: its distance divided by the exact one is its ratio. 1 is "
        "perfect. The networks are trained for this table, three on 8x8 digits and one on "
        "MNIST; ratios on large networks, which have no exact distances, may be larger.",
        "",
        "Norm linf, test images, default parameters. "
        f"The exact search begins at the distance that {FIRST} found. Intervals: 2,000 resamples "
        "of the images. Missed: images on which the attack found nothing; they are not in the "
        "mean.",
    ]


if __name__ == "__main__":
    main()

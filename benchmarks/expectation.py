"""How many draws a gradient needs: cosines with the gradient of the expectation.

python benchmarks/expectation.py [--layer TEXT ...] [--net resnet20] [--count 8] [--many 2000]

A gradient attack on a stochastic victim follows the mean gradient of some draws. The table has, for
every layer, the cosine between the mean gradient of the margin over 1, 5, 20 and 100 draws and that
over 2,000 other draws, averaged over the images, with its standard error.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import besiege
from besiege.core.dice import Dice
from besiege.core.victim import Victim
from besiege.defenses import load

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import CIFAR_NETS, finish, parser

LAYERS = ("resize_pad", "jitter(radius=0.02)", "randmix", "gaussian_noise(sigma=0.1)")
DRAWS = (1, 5, 20, 100)


def slopes(
    victim: Victim, images: Tensor, labels: Tensor, numbers: range, rows: int, seed: int
) -> Tensor:
    """The mean gradient of the margin over some draws, ``[images, values]``."""
    total = torch.zeros_like(images, dtype=torch.float64)
    together = max(1, rows // len(images))
    dice = Dice.throw(seed, torch.arange(len(images)))
    for first in range(numbers.start, numbers.stop, together):
        block = range(first, min(first + together, numbers.stop))
        x = images.repeat(len(block), 1, 1, 1).requires_grad_(True)
        keys = torch.cat([dice.of("draw", number).key for number in block])
        logits = victim(x, Dice(keys))
        others = logits.scatter(1, labels.repeat(len(block))[:, None], -torch.inf).amax(1)
        own = logits.gather(1, labels.repeat(len(block))[:, None])[:, 0]
        slope = torch.autograd.grad((others - own).sum(), x)[0]
        total += slope.view(len(block), *images.shape).sum(0)
    return (total / len(numbers)).flatten(1)


def measured(text: str, images: Tensor, labels: Tensor, many: int, rows: int) -> dict[str, Any]:
    """One line: the cosines of every number of draws."""
    victim = load(text)
    line: dict[str, Any] = {"victim": text, "images": len(images)}
    with victim.held():
        wanted = slopes(victim, images, labels, range(many), rows, 1)
        for draws in DRAWS:
            near = functional.cosine_similarity(
                slopes(victim, images, labels, range(draws), rows, 2), wanted
            )
            error = float(near.std()) / len(near) ** 0.5
            line[f"{draws}"] = f"{float(near.mean()):.3f} ± {error:.3f}"
    return line


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--layer", action="append", help="text of a layer; may be repeated")
    options.add_argument("--victim", action="append", help="a whole model; may be repeated")
    options.add_argument("--many", type=int, default=2000, help="draws of the expectation")
    options.add_argument("--rows", type=int, default=64, help="rows of a pass")
    options.set_defaults(count=8)
    given = options.parse_args()
    torch.set_num_threads(1)
    data = besiege.data.load("cifar10", count=given.count)
    net = CIFAR_NETS[(given.net or ["resnet20"])[0]]
    texts = [f"{net}+{layer}" for layer in given.layer or (LAYERS if not given.victim else ())]
    rows = [
        measured(text, data.images, data.labels, given.many, given.rows)
        for text in [*texts, *(given.victim or [])]
    ]
    finish("expectation", rows, 1, given.json)


if __name__ == "__main__":
    main()

"""How far attacks crafted on stolen substitutes reach: the table of docs/transfer.md.

    python benchmarks/transfer.py [--seeds 3]

Digits: 100 seeds of the test images, whose victim's labels are all a substitute learns from; the
other 297 are attacked. Means over the seeds. About a minute on one CPU thread.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import besiege
from besiege.data import Data
from besiege.models import Ensemble
from besiege.training import Stolen, steal

VICTIM, THREAT = "zoo:digits-natural", "linf:0.15"
ATTACKS = ("fgsm", "bim(steps=10)", "mim(steps=10)")
ARCHITECTURES = ("digits_mlp", "digits_cnn")
WAYS: tuple[tuple[int, int | None], ...] = ((0, None), (2, None), (4, None), (2, 1), (4, 1))
"""Rounds, and after how many the step changes its sign."""
FUSIONS: tuple[Any, ...] = ("logits", "probabilities", "losses")


def measured(seed: int) -> Iterator[tuple[str, list[float]]]:
    """Lines of the table: queries, agreement, and images left right by each attack."""
    data, victim = besiege.data.load("digits"), besiege.models.load(VICTIM)
    seeds = data.subset(100, seed)
    rest = data.take(~torch.isin(data.ids, seeds.ids))

    def left(images: Tensor) -> float:
        with torch.no_grad():
            return float((victim(images).argmax(1) == rest.labels).double().mean())

    def crafted(model: Any) -> list[float]:
        return [left(made(attack, model, rest)) for attack in ATTACKS]

    stolen: dict[str, Stolen] = {}
    for name in ARCHITECTURES:
        for rounds, tau in WAYS:
            one = steal(victim, seeds, name, rounds, tau=tau, held=rest, seed=seed)
            stolen[name] = one
            assert one.agreement is not None
            cost = [one.queries - one.checks, one.agreement]
            told = f"{name}, {rounds} rounds" + (f", tau={tau}" if tau else "")
            yield told, [*cost, *crafted(one.classifier)]
    both = [one.classifier for one in stolen.values()]
    cost = [float(sum(one.queries - one.checks for one in stolen.values())), torch.nan]
    for fuse in FUSIONS:
        yield f"both of the last, {fuse}", [*cost, *crafted(Ensemble(both, fuse))]
    draw = torch.Generator().manual_seed(seed)
    signs = (torch.rand(rest.images.shape, generator=draw) - 0.5).sign()
    noise = left((rest.images + 0.15 * signs).clamp(0, 1))
    yield "the victim itself", [0, 1.0, *crafted(victim)]
    yield "random signs", [0, torch.nan, noise, noise, noise]
    yield "nothing", [0, torch.nan, *[left(rest.images)] * 3]


def made(attack: str, model: Any, data: Data) -> Tensor:
    """All steps, and the last image: what just crosses one boundary does not cross another."""
    terms: dict[str, Any] = {"threat": THREAT, "keep": "last", "leave": "end"}
    return besiege.attack(attack, model, data.images, data.labels, **terms).images


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    torch.set_num_threads(1)
    found: dict[str, list[list[float]]] = defaultdict(list)
    for seed in range(parser.parse_args().seeds):
        for name, numbers in measured(seed):
            found[name].append(numbers)
    print("| crafted on | queries | agreement | fgsm | bim | mim |\n|---|---|---|---|---|---|")
    for name, runs in found.items():
        queries, *shares = torch.tensor(runs, dtype=torch.float64).mean(0).tolist()
        said = ["" if share != share else f"{100 * share:.1f} %" for share in shares]
        print(f"| {name} | {queries:,.0f} | {' | '.join(said)} |")


if __name__ == "__main__":
    main()

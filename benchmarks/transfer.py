"""How far attacks crafted on stolen substitutes reach: the table of docs/transfer.md.

    python benchmarks/transfer.py [--seeds 3]
    python benchmarks/transfer.py --lists [--public]

Digits: a substitute learns from the victim's labels of 100 test images, the seeds; the other 297
are attacked. Means over the seeds. About a minute on one CPU thread.

`--lists` compares candidates for the default attacks: every three of some attacks, by how many of
the images at least one of them breaks, over pairs of a substitute and a victim. With `--public`
these are published models of MNIST and CIFAR-10, which takes some minutes.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
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
LISTED = ("fgsm", "pgd", "each_target(pgd(loss=margin), 3)", "mim", "dim", "sinifgsm", "tim")
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


def unions(public: bool) -> Iterator[tuple[tuple[str, ...], list[int]]]:
    """Attacks and lists of three of them, and how many images each breaks in every cell."""
    broken: dict[str, list[Tensor]] = defaultdict(list)
    for data, substitute, victim, threat in _public() if public else _digits():
        for attack in LISTED:
            how: dict[str, Any] = {"threat": threat, "substitute": substitute}
            found = besiege.attack(attack, victim, data.images, data.labels, **how)
            broken[attack].append(found.success & found.verdicts.correct)
    for listed in [*((one,) for one in LISTED), *combinations(LISTED, 3)]:
        cells = zip(*(broken[one] for one in listed), strict=True)
        yield listed, [int(torch.stack(cell).any(0).sum()) for cell in cells]


def _digits() -> Iterator[tuple[Data, Any, Any, str]]:
    data = besiege.data.load("digits")
    seeds = data.subset(100, 0)
    rest = data.take(~torch.isin(data.ids, seeds.ids))
    natural, robust = (besiege.models.load(f"zoo:digits-{name}") for name in ("natural", "pgd-at"))

    def stolen(victim: Any, name: str) -> Any:
        return steal(victim, seeds, name, 4, tau=1, seed=0).classifier

    for substitute, victim, budgets in (
        (natural, robust, ("0.1", "0.2")),
        (robust, natural, ("0.1", "0.15")),
        (stolen(natural, "digits_cnn"), natural, ("0.1", "0.15")),
        (stolen(natural, "digits_mlp"), natural, ("0.15",)),
        (stolen(robust, "digits_cnn"), robust, ("0.15", "0.25")),
    ):
        for eps in budgets:
            yield rest, substitute, victim, f"linf:{eps}"


def _public() -> Iterator[tuple[Data, Any, Any, str]]:
    for data, substitute, victim, threat, count in (
        ("mnist", "conv_small_nat", "lenet_clean", "linf:0.2", 150),
        ("mnist", "lenet_clean", "conv_small_nat", "linf:0.2", 150),
        ("mnist", "lenet_clean", "cnn_a_adv", "linf:0.3", 150),
        ("cifar10", "cnn_a_mix", "resnet20", "linf:8/255", 100),
        ("cifar10", "resnet20", "cnn_a_mix", "linf:8/255", 40),
        ("cifar10", "resnet20", "resnet56", "linf:2/255", 40),
    ):
        pair = (f"public:{data}_{name}" for name in (substitute, victim))
        yield besiege.data.load(data, count=count), *pair, threat  # type: ignore[misc]  # two


def made(attack: str, model: Any, data: Data) -> Tensor:
    """All steps, and the last image: what just crosses one boundary does not cross another."""
    terms: dict[str, Any] = {"threat": THREAT, "keep": "last", "leave": "end"}
    return besiege.attack(attack, model, data.images, data.labels, **terms).images


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lists", action="store_true")
    parser.add_argument("--public", action="store_true", help="with --lists: MNIST and CIFAR-10")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.lists:
        for listed, counts in sorted(unions(given.public), key=lambda one: -sum(one[1])):
            print(f"| {', '.join(listed)} | {sum(counts)} | {', '.join(map(str, counts))} |")
        return
    found: dict[str, list[list[float]]] = defaultdict(list)
    for seed in range(given.seeds):
        for name, numbers in measured(seed):
            found[name].append(numbers)
    print("| crafted on | queries | agreement | fgsm | bim | mim |\n|---|---|---|---|---|---|")
    for name, runs in found.items():
        queries, *shares = torch.tensor(runs, dtype=torch.float64).mean(0).tolist()
        said = ["" if share != share else f"{100 * share:.1f} %" for share in shares]
        print(f"| {name} | {queries:,.0f} | {' | '.join(said)} |")


if __name__ == "__main__":
    main()

"""DEEPSEC's case study of ensembles (Ling et al. 2019, VI-B) on the MNIST models of the zoo.

python examples/ensembles.py                    # BESIEGE_DATA names the folder of MNIST
python examples/ensembles.py --count 1000 --out ensembles

Three defenses answer together, with the mean of their probabilities: chosen at random, one of each
category at random, or the best ones. DEEPSEC attacked the undefended model and counted what its
ensembles made of these images: the column `transfer`. The column `adaptive` is what an attacker
leaves who attacks the ensemble itself. Run the same command again to resume.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import besiege
from besiege.metrics import Rate

UNDEFENDED = "zoo:mnist-natural"
DEFENSES = {
    "adversarial training": ("zoo:mnist-nat", "zoo:mnist-eat", "zoo:mnist-pat"),
    "gradient masking": ("zoo:mnist-distilled", "zoo:mnist-igr"),
    "input transformation": (
        "zoo:mnist-thermometer",
        f"{UNDEFENDED}+bits(depth=1)",
        f"{UNDEFENDED}+resize_pad(least=1, to=31, fill=0.5)",
    ),
}
BEST = ("zoo:mnist-pat", "zoo:mnist-thermometer", "zoo:mnist-nat")
REPETITIONS = 3


def chosen(seed: int) -> dict[str, tuple[str, ...]]:
    """The members of every ensemble, by name."""
    draws = random.Random(seed)
    every = [text for group in DEFENSES.values() for text in group]
    found = {}
    for number in range(1, REPETITIONS + 1):
        found[f"random {number}"] = tuple(draws.sample(every, 3))
        found[f"interclass {number}"] = tuple(draws.choice(group) for group in DEFENSES.values())
    return {**dict(sorted(found.items())), "best": BEST, "best alone": BEST[:1]}


def measured(text: str, out: Path, asked: dict[str, Any]) -> tuple[Rate, Rate, Rate]:
    """Accuracy of a model: clean, on images of the undefended model, and under its own attacks."""
    moved = besiege.evaluate(
        text,
        "mnist",
        attacks="pgd(steps=40), fgsm",
        substitute=UNDEFENDED,
        out=out / "transfer",
        curve=False,
        examine="none",
        **asked,
    )
    own = besiege.evaluate(
        text, "mnist", suite="adaptive", out=out / "own", curve=False, examine="none", **asked
    )
    assert own.clean is not None and moved.robust is not None and own.robust is not None
    return own.clean, moved.robust, own.robust


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--threat", default="linf:0.3")
    parser.add_argument("--out", type=Path, default=Path("runs/ensembles"))
    parser.add_argument("--seed", type=int, default=0, help="of the ensembles that are drawn")
    given = parser.parse_args()
    asked = {"threat": given.threat, "count": given.count}
    print(f"{'ensemble':14} {'clean':24} {'transfer':24} {'adaptive':24} members")
    sums: dict[str, list[tuple[Rate, ...]]] = {}
    for name, members in chosen(given.seed).items():
        text = (
            members[0]
            if len(members) == 1
            else f"ensemble({', '.join(members)}, fuse=probabilities)"
        )
        rates = measured(text, given.out, asked)
        sums.setdefault(name.rstrip(" 0123456789"), []).append(rates)
        shown = " ".join(f"{rate!s:24}" for rate in rates)
        short = ", ".join(member.removeprefix("zoo:mnist-") for member in members)
        print(f"{name:14} {shown} {short}", flush=True)
    for kind in ("random", "interclass"):
        means = [sum(one.value for one in column) for column in zip(*sums[kind], strict=True)]
        text = ", ".join(
            f"{column} {100 * total / REPETITIONS:.1f} %"
            for column, total in zip(("clean", "transfer", "adaptive"), means, strict=True)
        )
        print(f"{kind}, mean of {REPETITIONS}: {text}")


if __name__ == "__main__":
    main()

"""Defenses, ignored and attacked, before models of three data sets: tables of docs/adaptive.md.

    python benchmarks/adaptive_table.py --out runs/adaptive              # evaluate, then print
    python benchmarks/adaptive_table.py --out runs/adaptive --read       # print what is there
    python benchmarks/adaptive_table.py --only jpeg randmix --count 50   # some rows, fewer images
    python benchmarks/adaptive_table.py --rows imagenet --count 200

Every row is evaluated twice with `besiege.evaluate`: by the suite adaptive, whose worst is the
robust accuracy, and by attacks that each run on every image, so that their figures are independent
of each other. Records are kept in the folder, and the same command resumes. Rows are read from the
records, those of models whose weights are not there say so. On an interrupted or a running folder
`--read` prints the rows that are complete.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

import besiege
from besiege.bench.evaluations import Evaluation
from besiege.core.errors import BesiegeError
from besiege.core.victim import Victim
from besiege.defenses import load
from besiege.metrics.paired import Difference
from besiege.models.catalogue import zoo_names

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import provenance

PGD = "pgd(steps=100, loss=margin)"
OBLIVIOUS = "oblivious(pgd)"
SQUARE = "square(steps=1000)"
AVERAGED = f"averaged({SQUARE}, 20)"
NET, SAMPLE = "public:cifar10_resnet56", "public:imagenet_mobilenet_v1_0.75"


@dataclass(frozen=True)
class Row:
    """A model, on how many images it is evaluated, and what a paper printed for it.

    `count` images meet the suite, `alone` of them Square on every image, `averaged` Square on
    means of 20 answers. Gradient attacks on every image take `count` images, and `alone` on
    stochastic models, where a step costs 20 passes. `zoo` is a shipped model it needs.
    """

    text: str
    count: int
    alone: int
    published: str = ""
    averaged: int = 0
    zoo: str = ""
    extra: tuple[str, ...] = ()


FIRST_ORDER = ("fgsm", "bim")
"""As RealSafe ran them (20 steps of BIM), for its finding on input transformations."""

CIFAR = (
    Row(NET, 1000, 1000, "clean 92.6, FGSM 21.6, BIM 0 (RealSafe)", extra=FIRST_ORDER),
    Row(
        f"{NET}+jpeg@realsafe-code",
        1000,
        1000,
        "clean 80.9, FGSM 31.2, BIM 3.2, NAttack 0.0 (RealSafe)",
        extra=FIRST_ORDER,
    ),
    Row(
        f"{NET}+jpeg@realsafe",
        1000,
        1000,
        "clean 80.9, FGSM 31.2, BIM 3.2, NAttack 0.0 (RealSafe)",
        extra=FIRST_ORDER,
    ),
    Row(f"{NET}+bits(depth=3)", 1000, 1000, extra=FIRST_ORDER),
    Row(f"{NET}+bits@realsafe", 1000, 1000, "ImageNet: clean 61.8 (RealSafe)", extra=FIRST_ORDER),
    Row(f"{NET}+median", 1000, 1000, extra=FIRST_ORDER),
    Row(
        f"{NET}+resize_pad@realsafe",
        1000,
        200,
        "ImageNet: clean 77.0 (RealSafe)",
        averaged=200,
    ),
    Row(
        f"{NET}+resize_pad@deepsec",
        1000,
        200,
        "clean 78.5, transferred 29.2 (DEEPSEC's RT, another net)",
        averaged=200,
    ),
    Row(f"{NET}+randmix@realsafe", 1000, 200, "ImageNet: clean 52.4 (RealSafe)"),
    Row(
        f"{NET}+jitter@deepsec", 200, 0, "clean 84.9, transferred 26.1 (DEEPSEC's RC, another net)"
    ),
    Row(
        "zoo:cifar10-rse",
        1000,
        200,
        "clean 86.1, BIM 23.5, NES 79.7, SPSA 78.7, NAttack 48.6 (RealSafe)",
        averaged=200,
    ),
    Row(
        "zoo:cifar10-rse+pooled(draws=50)",
        200,
        0,
        "clean 86.1, BIM 23.5, NES 79.7, SPSA 78.7, NAttack 48.6 (RealSafe)",
    ),
    Row(
        "zoo:cifar10-eit",
        1000,
        200,
        "clean 83.3, transferred 78.4 (DEEPSEC)",
        zoo="cifar10-eit",
    ),
    Row(
        "zoo:cifar10-thermometer",
        1000,
        200,
        "clean 88.6, transferred 69.8 (DEEPSEC)",
        zoo="cifar10-thermometer",
    ),
    Row(
        f"{NET}+pixeldefend('zoo:cifar10-pixelcnn')",
        200,
        0,
        "clean 70.7, transferred 34.1 (DEEPSEC); 9 left adaptively (Athalye et al.)",
        zoo="cifar10-pixelcnn",
    ),
    # For comparison: does a stochastic model stand longer against queries than this one?
    Row("zoo:cifar10-resnet20-pgd-at", 1000, 200),
)
IMAGENET = tuple(
    Row(f"{SAMPLE}{layer}", 200, 200, published)
    for layer, published in (
        ("", ""),
        ("+jpeg(quality=75)", "clean 77.3 (RealSafe, Inception v3)"),
        ("+bits@realsafe", "clean 61.8 (RealSafe, Inception v3)"),
        ("+resize_pad@realsafe", "clean 77.0 (RealSafe, Inception v3)"),
        ("+randmix@realsafe", "clean 52.4 (RealSafe, Inception v3)"),
    )
)
SMALL = "zoo:digits-natural"
DIGITS = tuple(
    Row(f"{SMALL}{layer}", 397, 397, averaged=100 if drawn else 0)
    for layer, drawn in (
        ("", False),
        ("+jpeg(quality=50)", False),
        ("+bits(depth=1)", False),
        ("+median", False),
        ("+resize_pad(least=0.75)", True),
        ("+crop_rescale(size=6)", True),
        ("+randmix+pooled(draws=10)", False),
        ("+jitter(radius=0.1)+pooled(draws=100, of='votes')", False),
        ("+reform('zoo:digits-autoencoder')", False),
        ("+pixeldefend('zoo:digits-pixelcnn', eps=0.15)", False),
    )
)
"""Minutes on a CPU: every kind of defense on images of 8x8."""
SETS = {
    "digits": (DIGITS, "linf:0.15", "digits"),
    "cifar10": (CIFAR, "linf:8/255", "cifar10"),
    "imagenet": (IMAGENET, "linf:16/255", "imagenet-sample"),
}


@cache
def digest_of(text: str) -> str:
    """The digest of a model: records know it by any text."""
    return load(text).digest()


def missing(row: Row) -> bool:
    """Whether a row's weights are not among the shipped models."""
    return bool(row.zoo) and row.zoo not in zoo_names()


def lists(row: Row, victim: Victim) -> Iterable[tuple[list[str], int]]:
    """Attacks that each run on every image, and the number of images."""
    drawn = victim.stochastic and victim.draws == 1
    pgd = f"averaged({PGD}, 20)" if drawn else PGD
    yield [*row.extra, pgd], row.alone if victim.stochastic else row.count
    yield [SQUARE], row.alone
    yield [AVERAGED], row.averaged


def evaluated(row: Row, given: argparse.Namespace, threat: str, data: str) -> None:
    """Run what a row still lacks."""
    victim = load(row.text)
    asked = {"threat": threat, "out": given.out[0], "curve": False, "examine": "none"}
    for attacks, count in lists(row, victim):
        if count:
            besiege.evaluate(row.text, data, attacks=attacks, count=count, **asked)
    besiege.evaluate(row.text, data, suite="adaptive", count=row.count, **asked)


# The table, from the records.


def cells(row: Row, digest: str, found: list[Evaluation]) -> list[str]:
    """One line of the table; empty where nothing was evaluated."""
    mine = [one for one in found if one.figures.model.digest == digest and one.complete]
    suites = [one for one in mine if one.figures.suite == "adaptive"]
    suite = max(suites, key=lambda one: one.clean.count, default=None)
    singles: dict[str, str] = {}
    for one in sorted(mine, key=lambda one: one.clean.count):  # the most images last
        if one.figures.suite is None:
            for text, rate in one.by_attack.items():
                singles[text] = f"{rate} / {rate.count:,}"
    if suite is None or suite.robust is None:
        return []
    pgd = next((text for name, text in singles.items() if PGD in name), "")
    spread = suite.figures.chance
    told = [singles[name] for name in FIRST_ORDER if name in singles]
    oblivious = suite.by_attack.get(OBLIVIOUS)
    return [
        f"`{row.text}`",
        f"{suite.clean.count:,}",
        str(suite.clean),
        "none" if oblivious is None else str(oblivious),
        pgd,
        singles.get(SQUARE, ""),
        singles.get(AVERAGED, ""),
        f"**{suite.robust}**",
        "" if spread is None else f"{100 * spread.robust.deviation:.2f}",
        row.published,
        ", ".join(told),
    ]


HEAD = (
    "model and defense",
    "images",
    "clean",
    "oblivious",
    "adaptive PGD",
    "Square",
    "Square, means of 20",
    "worst of the suite",
    "sd of draws",
    "printed elsewhere",
    "FGSM, BIM",
)


def opened(folder: Path) -> list[Evaluation]:
    """All evaluations of a run folder."""
    run = besiege.open(folder)
    return [run] if isinstance(run, Evaluation) else list(run)


def printed(rows: tuple[Row, ...], found: list[Evaluation], threat: str) -> None:
    """The table in Markdown, with where it comes from."""
    print("| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD))
    used: list[Evaluation] = []
    for row in rows:
        if missing(row):
            print(f"| `{row.text}` | not there yet: `zoo:{row.zoo}`" + " |" * (len(HEAD) - 1))
            continue
        digest = digest_of(row.text)
        if line := cells(row, digest, found):
            print("| " + " | ".join(line) + " |")
            used += [one for one in found if one.figures.model.digest == digest]
    facts = provenance(1)
    days = sorted({(one.figures.made or "")[:10] for one in used})
    commits = sorted({(one.figures.commit or "unknown")[:7] for one in used})
    print(
        f"\n{threat}, seed 0; {' to '.join(days[:: max(1, len(days) - 1)])}, commit "
        f"{', '.join(commits)}; {facts['machine']}, torch {facts['torch']}."
    )


# RealSafe's findings (Dong et al. 2020), from the same records.


def withstood(found: list[Evaluation], digest: str, attack: str) -> dict[int, bool]:
    """Whether each image withstood an attack that ran on every image; empty without a record."""
    for one in found:
        if (one.figures.model.digest, one.figures.suite) != (digest, None) or not one.complete:
            continue
        texts = [text for text in one.by_attack if attack in (text, text.partition("(")[0])]
        if texts:
            rows, samples = one.rows, one.by_sample["sample"].tolist()
            mine = (rows["attack"] == texts[0]) & ~rows["success"].astype(bool)
            left = set(rows["sample"][mine].tolist())
            return {sample: sample in left for sample in samples}
    return {}


def compared(found: list[Evaluation], pair: tuple[str, str], attacks: tuple[str, str]) -> str:
    """Two models on the images that both have records of, in a sentence; empty without any."""
    both = [
        withstood(found, digest_of(model), attack)
        for model, attack in zip(pair, attacks, strict=True)
    ]
    common = sorted(both[0].keys() & both[1].keys())
    if not common:
        return ""
    first, second = ([one[sample] for sample in common] for one in both)
    gap = Difference.of(first, second)
    shares = [f"{100 * sum(one) / len(common):.1f} %" for one in (first, second)]
    verdict = "undecided" if gap.low <= 0 <= gap.high else "yes" if gap.low > 0 else "no"
    return (
        f"{shares[0]} and {shares[1]} of {len(common)} images, difference "
        f"{100 * gap.value:.1f} [{100 * gap.low:.1f}, {100 * gap.high:.1f}] points: {verdict}"
    )


def answers(found: list[Evaluation]) -> None:
    """Print what the records say about two findings, and which cells disagree."""
    robust, drawn = "zoo:cifar10-resnet20-pgd-at", f"averaged({PGD}, 20)"
    for title, first, attacks in (
        ("F3, white box", "zoo:cifar10-rse", (drawn, PGD)),
        ("F3, Square", "zoo:cifar10-rse", (SQUARE, SQUARE)),
        ("F3, Square on means of 20", "zoo:cifar10-rse", (AVERAGED, SQUARE)),
    ):
        if told := compared(found, (first, robust), attacks):
            print(f"- {title}: does `{first}` stand more than `{robust}`? {told}")
    for layer in (
        "jpeg@realsafe-code",
        "jpeg@realsafe",
        "bits(depth=3)",
        "bits@realsafe",
        "median",
    ):
        name = f"{NET}+{layer}"
        for attack in (*FIRST_ORDER, PGD, SQUARE):
            if told := compared(found, (name, NET), (attack, attack)):
                print(f"- F4, {attack}: does `{layer}` stand more than no defense? {told}")


def _named(text: str, texts: list[str]) -> bool:
    """Whether a model is one of some texts, or has one of them among its layers."""
    return any(one == text or one in text.partition("+")[2] for one in texts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", choices=sorted(SETS), default="cifar10")
    parser.add_argument("--only", nargs="+", help="models, or parts of their layers")
    parser.add_argument("--count", type=int, help="images at most")
    parser.add_argument("--alone", type=int, help="images at most of Square on every image")
    parser.add_argument("--averaged", type=int, help="images at most of Square on means")
    parser.add_argument("--read", action="store_true", help="evaluate nothing, print the records")
    parser.add_argument(
        "--out",
        type=Path,
        nargs="+",
        default=[Path("runs/adaptive")],
        help="run folder; several are read together, and the first is written",
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows, threat, data = SETS[given.rows]
    chosen = [row for row in rows if not given.only or _named(row.text, given.only)]
    for row in [] if given.read else chosen:
        most = given.count or row.count
        row = replace(
            row,
            count=min(row.count, most),
            alone=min(row.alone, most if given.alone is None else given.alone),
            averaged=min(row.averaged, most if given.averaged is None else given.averaged),
        )
        if missing(row):
            print(f"{row.text}: not there yet: zoo:{row.zoo}", file=sys.stderr)
            continue
        try:
            evaluated(row, given, threat, data)
        except BesiegeError as problem:
            sys.exit(f"{row.text}: {problem}")
        print(f"{row.text}: done", file=sys.stderr, flush=True)
    found = [one for folder in given.out for one in opened(folder)]
    printed(rows if given.read else tuple(chosen), found, threat)
    answers(found)


if __name__ == "__main__":
    main()

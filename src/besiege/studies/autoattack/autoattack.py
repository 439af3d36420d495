"""The study ``autoattack``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from besiege.bench.board import Board
from besiege.metrics.crossings import SMALLEST
from besiege.metrics.paired import LEVEL
from besiege.studies.answers import Measured
from besiege.studies.autoattack import claims as of
from besiege.studies.autoattack import scaling, step_sizes
from besiege.studies.autoattack.reading import FEWEST, labelled, share
from besiege.studies.autoattack.tables import TABLES, readings
from besiege.studies.choosing import Size
from besiege.studies.study import STUDIES, Claim, Study


def best_of_seven(board: Board, *, level: float = LEVEL) -> Measured:
    """The share of models on which APGD leaves least of the seven attacks, of the worst loss."""
    models, parts, words = board.cell(step_sizes.CELL).models, [], []
    for loss in step_sizes.LOSSES:
        best = [step_sizes.compared(board, model, loss).best for model in models]
        hits = sum(one == (step_sizes.apgd(loss),) for one in best)
        open_ = sum(step_sizes.apgd(loss) in one for one in best) - hits
        told = of.each(level, len(step_sizes.LOSSES))
        one = share(hits, open_, len(models), told, "")
        words.append(f"{loss} {hits} and {open_} ties")
        parts.append(of.Ends(one.value, one.low, one.high, one.count, loss))
    worst = of.least(parts, level)
    said = labelled(len(models), f"Best by loss: {', '.join(words)}.")
    needed = FEWEST if len(models) < FEWEST else None
    return replace(worst, needed=needed, caveat=said, unit="models")


def largest_step_best(board: Board, *, level: float = LEVEL) -> Measured:
    """The most that PGD with the largest step breaks more, on models with large logits."""
    names = of.tagged(board, scaling.LOGITS, scaling.LARGE)
    told = of.each(level, len(names) * len(step_sizes.LOSSES))
    parts = []
    for name in names:
        for loss in step_sizes.LOSSES:
            one = step_sizes.inversion(board, model=name, loss=loss, level=told)
            parts.append(of.Ends(one.value, one.low, one.high, one.count, f"{name}, {loss}"))
    return of.largest(parts, level, step_sizes.CAVEAT)


def divided(board: Board, *, level: float = LEVEL, logits: str) -> Measured:
    """Figure 2: how much more divided logits break on models with large ones, or less on others."""
    names = of.tagged(board, scaling.LOGITS, logits)
    told = of.each(level, len(names))
    measure = {
        scaling.LARGE: scaling.masked_by_scale,
        scaling.PLAIN: scaling.weakened_by_dividing,
    }[logits]
    found = [measure(board, model=name, level=told) for name in names]
    parts = [
        of.Ends(one.value, one.low, one.high, one.count, name)
        for name, one in zip(names, found, strict=True)
    ]
    return of.least(parts, level)


CLAIMS = (
    Claim(
        "A1",
        "AutoAttack leaves less than the reported figure on most models.",
        of.drops,
        smallest=0.6,
        denied=0.5,
        paper="on 48 of 49, though its introduction speaks of two exceptions",
    ),
    Claim(
        "A2",
        "It leaves more than 10 points less on some.",
        partial(of.drops, points=0.1),
        smallest=0.1,
        paper="on 13 of 49",
    ),
    Claim(
        "A3",
        "It leaves more than 30 points less on some.",
        partial(of.drops, points=0.3),
        smallest=0.1,
        paper="on 8 of 49",
    ),
    Claim(
        "A4",
        "Targeted DLR alone is below the reported figure on more models than CE alone.",
        of.targeted_exposes_more,
        smallest=0.1,
        paper="CE 21, DLR-T 45, FAB-T 39, Square 17 of 49; its printed tables give 30, 45, 39, 16",
    ),
    Claim(
        "A5",
        "APGD-T is nowhere more than 12 points behind the best single attack.",
        of.never_far,
        smallest=0.0,
        denied=-SMALLEST,
        paper="at most 11.9 points",
    ),
    Claim(
        "A6",
        "CE, FAB-T and Square alone are each more than 10 points behind it on some model.",
        of.all_others_fail,
        smallest=0.1,
        denied=0.05,
        paper="by 89, 59 and 70 points; the row of Table 4 with 88.5 for Square is left out there",
    ),
    Claim(
        "A7",
        "APGD-T is the best single attack on most models.",
        of.best_share,
        smallest=0.6,
        denied=0.5,
        paper="on 21 of 25 (CIFAR-10, linf 8/255) and on all others but MNIST",
        data=("cifar10", "digits"),
    ),
    Claim(
        "A7",
        "Square is the best single attack on most MNIST models.",
        partial(of.best_share, name="Square"),
        smallest=0.6,
        denied=0.5,
        paper="on 9 of 9",
        data=("mnist",),
    ),
    Claim(
        "A8",
        "Targeted DLR beats the untargeted one with five restarts on most models.",
        partial(of.targeted_beats, targeted="APGD-T", untargeted="APGD-DLR"),
        smallest=0.6,
        denied=0.5,
        paper="on 35 of 36 without MNIST",
        data=("cifar10", "digits"),
    ),
    Claim(
        "A8",
        "Untargeted DLR with five restarts beats the targeted one on most MNIST models.",
        partial(of.targeted_beats, targeted="APGD-T", untargeted="APGD-DLR", reverse=True),
        smallest=0.6,
        denied=0.5,
        paper="yes",
        data=("mnist",),
    ),
    Claim(
        "A9",
        "Targeted FAB beats the untargeted one with five restarts on most models.",
        partial(of.targeted_beats, targeted="FAB-T", untargeted="FAB"),
        smallest=0.6,
        denied=0.5,
        paper="on 29 of 32 without MNIST",
        data=("cifar10", "digits"),
    ),
    Claim(
        "A9",
        "Untargeted FAB with five restarts beats the targeted one on most MNIST models.",
        partial(of.targeted_beats, targeted="FAB-T", untargeted="FAB", reverse=True),
        smallest=0.6,
        denied=0.5,
        paper="yes",
        data=("mnist",),
    ),
    Claim(
        "A10",
        "On some model Square breaks what all white-box attacks leave.",
        of.square_alone,
        smallest=0.002,
        paper="more than 0.2 points on 8 of 9 MNIST models and one other: a sign of masking",
    ),
    Claim(
        "A11",
        "Averaged cross-entropy is the strongest part on every randomised model.",
        of.entropy_leads,
        smallest=0.0,
        denied=-SMALLEST,
        paper="on all, and the worst case of 9 of 9 is below the reported figure",
    ),
    Claim(
        "A12",
        "Some pairs of models change their order between reported and worst case.",
        of.swapped,
        smallest=0.01,
        paper="96 of 300 pairs",
    ),
    Claim(
        "A13",
        "What is proved is never more than what attacks leave.",
        of.bounds_hold,
        smallest=0.0,
        denied=-SMALLEST,
        paper="93.32 below 93.96 on one MNIST model",
    ),
    Claim(
        "A14",
        "APGD leaves least of seven attacks on most models, loss by loss.",
        best_of_seven,
        smallest=0.6,
        denied=0.5,
        paper="CE on 32, CW on 37, DLR on 35 of 43",
        caveat=step_sizes.CAVEAT,
    ),
    Claim(
        "A15",
        "Where logits are large, the largest step is best: a sign of masking.",
        largest_step_best,
        paper="57.3 instead of 66.8 % on one masked model, 46.5 instead of 44.8 % on a plain one",
    ),
    Claim(
        "A16",
        "Where logits are large, dividing them breaks more.",
        partial(divided, logits=scaling.LARGE),
        paper="shown by a plot",
    ),
    Claim(
        "A17",
        "On a plain model dividing them only weakens the attack.",
        partial(divided, logits=scaling.PLAIN),
        caveat="What is a sign of masking is that dividing helps, not that it changes something.",
    ),
)

_DIFFERS = (
    "The publication's 49 models are not here. A claim about many models is about those of the "
    "board, and says how many these are; fewer than eight decide nothing.",
    "The reported figure is what a model's own card reports, under PGD: nobody claims more for it.",
    "On digits only two models report anything: it shows that everything runs, and sub-studies.",
    "Rates of single attacks have all points as their denominator.",
)

STUDIES.add(
    "autoattack",
    Study(
        "autoattack",
        "AutoAttack: four parts alone and together",
        "Croce and Hein 2020, Reliable evaluation of adversarial robustness with an ensemble of "
        "diverse parameter-free attacks",
        Path(__file__).parent / "specs",
        CLAIMS,
        TABLES,
        readings=readings,
        sizes={
            "smoke": Size(
                "60 images, 12 of randomised models, 100 for divided logits",
                60,
                cells={"randomised*": (12, None), "divided*": (100, None)},
            ),
            "bench": Size(
                "1,000 images; 200 for the suite plus and step sizes, 100 of randomised models",
                1000,
                cells={
                    "plus*": (200, None),
                    "step*": (200, None),
                    "randomised*": (100, None),
                    "divided*": (100, None),
                },
            ),
            "paper": Size("10,000 images", 10_000),
        },
        tags={
            "answers": {
                "random": ("*noise*", "*resize_pad*", "*randmix*", "*jitter*", "*-rse*", "*tvm*"),
                "fixed": ("*",),
            }
        },
        only={
            **{
                f"{kind} *": ("answers", "fixed") for kind in ("alone", "standard", "quick", "plus")
            },
            "randomised*": ("answers", "random"),
        },
        parts=(
            "alone*",
            "standard*",
            "quick*",
            "plus*",
            "verified*",
            "randomised*",
            "divided*",
            "step*",
        ),
        differs=_DIFFERS,
    ),
)

"""The findings of RealSafe as claims: each measures an effect on a board.

Models are found by the tag ``defense``, so that any models can be studied. An effect that is the
least of several differences has the interval of the least, each part at the level that makes all
of them hold together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations

import numpy as np

from besiege.bench.board import Board, Mask
from besiege.core.errors import UnknownNameError
from besiege.metrics.crossings import SMALLEST, crossings
from besiege.metrics.intervals import clopper_pearson
from besiege.metrics.optimality import envelope, fall, local_optimality
from besiege.metrics.outcomes import Ids, Numbers
from besiege.metrics.paired import LEVEL, Difference, paired_interval
from besiege.metrics.rows import places
from besiege.metrics.searches import ROUNDING
from besiege.studies.answers import Measured
from besiege.studies.realsafe.reading import (
    SCORES,
    TRANSFER,
    UNTARGETED,
    WHITE,
    bare_of,
    budget,
    by_steps,
    cells_of,
    distances,
    family,
    progress,
    tagged,
    worst,
)
from besiege.studies.study import Claim

TRAINED, RANDOM, LAYERS = "adversarial training", "randomised", "transformation"
PUBLISHED = {"pgd-at", "trades"}
"""The two models whose order the publication saw change."""
POINTS, REACH = 30, 5
"""Budgets at which curves are compared, and the largest in standard budgets: the publication's
case is at linf 0.05 and 0.15 where the standard budget is 8/255."""


@dataclass(frozen=True)
class Part:
    """A difference on the same images, in words, with its counts."""

    words: str
    change: Difference

    def at(self, level: float) -> tuple[float, float, float]:
        """The difference with an interval of this level."""
        one = self.change
        return one.value, *paired_interval(one.only_first, one.only_second, one.count, level)


def part(words: str, better: Mask, worse: Mask, both: Mask) -> Part:
    """How much more of the images in `both` one keeps than another."""
    if not both.any():
        raise UnknownNameError(f"{words}: no image was judged for both")
    return Part(words, Difference.of(better[both], worse[both]))


def least(parts: Sequence[Part], level: float) -> Measured:
    """The least of several differences, with an interval that holds for whichever it is."""
    if not parts:
        raise UnknownNameError("the run has no models or attacks that this is about")
    each = 1 - (1 - level) / len(parts)
    value, low, high = np.array([one.at(each) for one in parts]).T
    words = "; ".join(f"{one.words} {100 * one.change.value:+.1f}" for one in parts[:8])
    count = min(one.change.count for one in parts)
    more = f"; and {len(parts) - 8} more" if len(parts) > 8 else ""
    return Measured(value.min(), low.min(), high.min(), count, level, caveat=f"{words}{more}.")


# F1


def rankings_cross(board: Board, *, level: float = LEVEL) -> Measured:
    """The largest change of the order of two robust models with the budget, white box, linf."""
    names = tagged(board, TRAINED, "certified")
    firsts, seconds, known, end = [], [], [], 0.0
    words: list[str] = []
    published: dict[str, int] = {}
    eps, _ = budget(board, "linf")
    for attack in ("fgsm", "bim", "mim", "deepfool"):
        found = distances(board, WHITE, attack, "linf", UNTARGETED)
        for one, other in combinations([n for n in names if n in found.models], 2):
            a, b = found.of(one), found.of(other)
            firsts.append(found.ends[a])
            seconds.append(found.ends[b])
            known.append(found.known[a] & found.known[b])
            if {one, other} == PUBLISHED:
                published[attack] = len(words)
            words.append(f"{one} and {other} under {attack}")
        end = max(end, REACH * eps)
    if not firsts:
        raise UnknownNameError("two models with adversarial or certified training are needed")
    x = np.linspace(0, end, POINTS + 1)[1:]
    pairs = crossings(np.stack(firsts), np.stack(seconds), x, np.stack(known), level=level)
    ends = np.array(
        [
            [min(c.value.max(), -c.value.min()), min(c.low.max(), -c.high.min()),
             min(c.high.max(), -c.low.min())]
            for c in pairs
        ]
    )  # fmt: skip
    best = int(ends[:, 1].argmax())
    at = ", ".join(f"{change.at:.3g}" for change in pairs[best].changes)
    where = f"The order changes near {at}: {words[best]}." if at else f"Closest: {words[best]}."
    about = f"{len(pairs)} pairs of a model and a model under an attack. {where}"
    if published:
        told = ", ".join(f"{pairs[k].verdict} under {attack}" for attack, k in published.items())
        about += f" The publication's case, trades and pgd-at: {told}."
    needed = min((c.needed for c in pairs if c.needed), default=None)
    value, low, high = ends.max(0)
    return Measured(value, low, high, pairs[best].count, level, needed, about)


# F2


def training_is_best(board: Board, *, level: float = LEVEL) -> Measured:
    """How much the best adversarially trained model leads all others, in linf and in l2."""
    trained = tagged(board, TRAINED)
    rows, images = [], []
    for norm in ("linf", "l2"):
        eps, (found, others) = (
            budget(board, norm)[0],
            _split(worst(board, norm, UNTARGETED), trained),
        )
        if not found or not others:
            raise UnknownNameError(f"adversarially trained and other models are needed in {norm}")
        each = 1 - (1 - level) / (2 * len(found) * len(others))
        table = np.array(
            [[_lead(one, two, eps).at(each) for two in others.values()] for one in found.values()]
        )
        rows.append(table.min(1).max(0))  # the best of them, against its closest rival
        images += [len(np.intersect1d(one[0], two[0])) for one in found.values()
                   for two in others.values()]  # fmt: skip
    value, low, high = np.min(rows, 0)
    words = ", ".join(
        f"{n} {100 * row[0]:+.1f}" for n, row in zip(("linf", "l2"), rows, strict=True)
    )
    return Measured(value, low, high, min(images), level, caveat=f"Lead by norm: {words}.")


Worst = dict[str, tuple[Ids, Numbers]]


def _split(found: Worst, names: Sequence[str]) -> tuple[Worst, Worst]:
    there = {name: one for name, one in found.items() if len(one[0])}
    mine = {name: one for name, one in there.items() if name in names}
    return mine, {name: one for name, one in there.items() if name not in names}


def _lead(one: tuple[Ids, Numbers], other: tuple[Ids, Numbers], eps: float) -> Part:
    common, a, b = np.intersect1d(one[0], other[0], return_indices=True)
    mine, theirs = (e[at] > eps * (1 + ROUNDING) for e, at in ((one[1], a), (other[1], b)))
    return part("lead", mine, theirs, np.ones(len(common), bool))


# F3


def random_keeps_more(board: Board, *, level: float = LEVEL) -> Measured:
    """How much more randomised models keep under queries than models that are better white-box."""
    eps, randomised, parts, compared = budget(board, "linf")[0], tagged(board, RANDOM), [], []
    white = {m: one for m, one in worst(board, "linf", UNTARGETED, (WHITE,)).items() if len(one[0])}
    for attack in ("nes", "spsa"):
        found = progress(board, attack, "linf", UNTARGETED)
        there = [name for name in white if name in found.models]
        for one in (name for name in there if name in randomised):
            for other in (name for name in there if name not in randomised):
                if _lead(white[other], white[one], eps).change.value > 0:
                    a, b = found.of(one), found.of(other)
                    held, both = np.isinf(found.ends), found.known[a] & found.known[b]
                    words = f"{one} less {other} under {attack}"
                    parts.append(part(words, held[a], held[b], both))
                    compared.append(one)
    measured = least(parts, level)
    averaged = " ".join(_averaged(board, name) for name in dict.fromkeys(compared))
    return replace(measured, caveat=f"{measured.caveat} {averaged}")


def _averaged(board: Board, model: str) -> str:
    """What attacks averaged over draws and with wider probes leave: no answer without it."""
    found = []
    for _, cell in cells_of(board, SCORES, "linf", UNTARGETED):
        for a, text in enumerate(cell.attacks if model in cell.models else ()):
            rate = cell.accuracy(cell.models.index(model), a)
            if family(text) in ("nes", "spsa") and "sigma=" in text and rate is not None:
                found.append((text, rate))
    if not any(text.startswith("averaged(") for text, _ in found):
        raise UnknownNameError(
            f"attacks averaged over draws and with wider probes were not run on '{model}'"
        )
    said = "; ".join(f"{text} leaves {rate.hits} of {rate.count}" for text, rate in found)
    return (
        f"But on {model} {said}: what randomness keeps from narrow probes of one draw is no "
        "robustness."
    )


# F4


def layers_help(board: Board, *, level: float = LEVEL) -> Measured:
    """How much more models behind a transformation keep than the bare net, white box, linf."""
    eps, parts = budget(board, "linf")[0], []
    for attack in ("fgsm", "bim"):
        found = distances(board, WHITE, attack, "linf", UNTARGETED)
        for one in (name for name in tagged(board, LAYERS) if name in found.models):
            a, b = found.of(one), found.of(bare_of(board, one))
            held = found.held(eps)
            parts.append(
                part(f"{one} under {attack}", held[a], held[b], found.known[a] & found.known[b])
            )
    measured, all_attacks = least(parts, level), worst(board, "linf", UNTARGETED)
    words = []
    for one in tagged(board, LAYERS):
        bare = all_attacks.get(bare_of(board, one))
        if one in all_attacks and bare is not None:
            change = _lead(all_attacks[one], bare, eps).change
            words.append(f"{one} {100 * change.value:+.1f}")
    return replace(
        measured, caveat=f"{measured.caveat} Under the worst of all: {', '.join(words)}."
    )


# F5


def boosters(board: Board, *, level: float = LEVEL, help: bool) -> Measured:
    """How much fewer images MIM and DIM leave than BIM by transfer; or how much more."""
    eps, parts = budget(board, "linf")[0], []
    plain = distances(board, TRANSFER, "bim", "linf", UNTARGETED)
    for attack in ("mim", "dim"):
        found = distances(board, TRANSFER, attack, "linf", UNTARGETED)
        for model in found.models:
            a, b = found.of(model), plain.of(model)
            more, less = plain.held(eps)[b], found.held(eps)[a]
            pair = (more, less) if help else (less, more)
            parts.append(part(f"{attack} on {model}", *pair, found.known[a] & plain.known[b]))
    return least(parts, level)


# F6


def iterates_end(board: Board, *, level: float = LEVEL) -> Measured:
    """The least of: nothing withstands BIM and MIM, fifty steps are enough, NATTACK leads.

    Each is 0 or more where the finding holds: less by what is left at any size, by what steps
    beyond the fiftieth still break, and by what NATTACK leaves more than NES and SPSA.
    """
    deterministic = [m.name for m in board.models if m.tags.get("defense") != RANDOM]
    shares: list[tuple[str, int, int]] = []
    for attack in ("bim", "mim"):
        found = distances(board, WHITE, attack, "linf", UNTARGETED)
        _, cell, steps, left, known = by_steps(board, WHITE, attack, "linf", UNTARGETED)
        fifty = int((steps <= 50).sum()) - 1
        for m in (m for m in deterministic if m in found.models and m in cell.models):
            mine, n = found.ends[found.of(m)][found.known[found.of(m)]], cell.models.index(m)
            words = f"{attack} leaves at any size on {m}"
            shares.append((words, int(np.isinf(mine).sum()), len(mine)))
            late = known[n] & left[n, fifty] & ~left[n, -1]
            shares.append(
                (f"{attack} breaks after 50 steps on {m}", int(late.sum()), int(known[n].sum()))
            )
    strongest = _strongest(board, deterministic)
    each = 1 - (1 - level) / max(1, len(shares) + len(strongest))
    rows = [one.at(each) for one in strongest]
    for _, hits, count in shares:
        low, high = clopper_pearson(hits, count, each)
        rows.append((-hits / count, -high, -low))
    if not shares or not strongest:
        raise UnknownNameError("BIM, MIM, NES, SPSA and NATTACK are needed on one model")
    value, low, high = np.array(rows).min(0)
    names = [one.words for one in strongest] + [words for words, *_ in shares]
    worst_part = names[int(np.argmin([row[0] for row in rows]))]
    count = min([one.change.count for one in strongest] + [n for *_, n in shares])
    caveat = f"Least: {worst_part}. {_optimality(board, deterministic)}"
    return Measured(value, low, high, count, level, caveat=caveat)


def _strongest(board: Board, models: Sequence[str]) -> list[Part]:
    eps, parts = budget(board, "linf")[0], []
    strong = distances(board, SCORES, "nattack", "linf", UNTARGETED)
    for attack in ("nes", "spsa"):
        found = distances(board, SCORES, attack, "linf", UNTARGETED)
        for m in (m for m in models if m in found.models and m in strong.models):
            a, b = found.of(m), strong.of(m)
            both = found.known[a] & strong.known[b]
            words = f"{attack} less nattack on {m}"
            parts.append(part(words, found.held(eps)[a], strong.held(eps)[b], both))
    return parts


def _optimality(board: Board, models: Sequence[str]) -> str:
    """Local optimality of the score attacks, and the images that only NATTACK breaks."""
    found = {a: distances(board, SCORES, a, "linf", UNTARGETED) for a in ("nes", "spsa", "nattack")}
    words = []
    for m in (m for m in models if all(m in one.models for one in found.values())):
        judged = [one.samples[one.known[one.of(m)]] for one in found.values()]
        common = reduce(np.intersect1d, judged)
        ends, eps = [], budget(board, "linf")[0] * (1 + ROUNDING)
        for one in found.values():
            ends.append(one.ends[one.of(m), places(one.samples, common)])
        table = np.stack(ends)
        best = envelope(table)
        if fall(best) > 0 and (best > 0).any():
            scores = ", ".join(
                f"{name} {local_optimality(row, best):.2f}"
                for name, row in zip(found, table, strict=True)
            )
            only = int(((table[2] <= eps) & (table[:2].min(0) > eps)).sum())
            words.append(f"{m}: {scores}; only NATTACK breaks {only} of {len(common)}")
    return f"Local optimality on {'; '.join(words)}." if words else ""


_Measure = Callable[..., Measured]


def _boost(help: bool) -> _Measure:
    def measure(board: Board, *, level: float = LEVEL) -> Measured:
        return boosters(board, level=level, help=help)

    return measure


CLAIMS = (
    Claim(
        "F1",
        "The order of robust models changes with the budget.",
        rankings_cross,
        paper="TRADES leads PGD-AT at linf 0.05 and trails it at 0.15",
        caveat="Models and training differ from the publication's.",
    ),
    Claim(
        "F2",
        "Adversarial training has the largest worst case, in linf and in l2.",
        training_is_best,
        paper="yes, for linf training in both norms",
    ),
    Claim(
        "F3",
        "Randomised models keep more under NES and SPSA than models that are better white-box.",
        random_keeps_more,
        paper="RSE keeps 79.7 % under NES and 23.5 % under BIM",
    ),
    Claim(
        "F4",
        "JPEG and fewer grey levels help a little: more images withstand FGSM and BIM.",
        layers_help,
        paper="JPEG: FGSM 31.2 instead of 21.6 %, BIM 3.2 instead of 0.0 %",
    ),
    Claim(
        "F5",
        "Momentum and diverse inputs help transfer on no model by more than a point.",
        _boost(False),
        smallest=0.0,
        denied=-SMALLEST,
        paper="MIM and DIM leave as many as BIM on CIFAR-10",
        data=("cifar10", "digits"),
    ),
    Claim(
        "F5",
        "Momentum and diverse inputs help transfer on every model.",
        _boost(True),
        paper="MIM and DIM leave fewer than BIM on ImageNet",
        data=("imagenet-sample",),
    ),
    Claim(
        "F6",
        "Iterative attacks leave nothing at large budgets and are done after fifty steps, and "
        "NATTACK is the strongest score attack, within a point each.",
        iterates_end,
        smallest=0.0,
        denied=-SMALLEST,
        paper="yes",
    ),
)

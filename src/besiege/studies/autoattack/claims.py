"""The claims of section 4.6 of the cards: what AutoAttack's publication says of its parts.

A claim about many models is about those of the board, and says how many these are; fewer than
eight decide nothing. A claim that something happens is decided by one model where it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from besiege.bench.board import Board
from besiege.core.errors import UnknownNameError
from besiege.metrics.intervals import clopper_pearson
from besiege.metrics.paired import LEVEL, Difference, paired_interval
from besiege.studies.answers import Measured
from besiege.studies.autoattack.reading import (
    AVERAGED,
    FEWEST,
    PARTS,
    UNTARGETED,
    Attacked,
    alone,
    labelled,
    reported,
    share,
)

FAILURE = 0.12
"""The largest failure of APGD-T on any of the publication's models, in accuracy."""


class Ends(NamedTuple):
    """An effect with its interval, and what it is about."""

    value: float
    low: float
    high: float
    images: int
    words: str


def change(one: Attacked, over: Sequence[str], by: Sequence[str], level: float) -> Ends:
    """How much lower accuracy is under some attacks together than under others."""
    known = one.known(*over, *by)
    if not known.any():
        raise UnknownNameError(f"no image of {one.title} was judged under all of these attacks")
    found = Difference.of(one.held(*over)[known], one.held(*by)[known])
    low, high = paired_interval(found.only_first, found.only_second, found.count, level)
    return Ends(found.value, low, high, found.count, one.title)


def largest(parts: Sequence[Ends], level: float, words: str = "") -> Measured:
    """The largest of several effects; each has the level that makes all of them hold."""
    where = parts[int(np.argmax([one.value for one in parts]))]
    low, high = max(one.low for one in parts), max(one.high for one in parts)
    said = f"The largest of {len(parts)}: {where.words}. {words}".strip()
    return Measured(where.value, low, high, min(p.images for p in parts), level, caveat=said)


def least(parts: Sequence[Ends], level: float, words: str = "") -> Measured:
    """The least of several effects."""
    where = parts[int(np.argmin([one.value for one in parts]))]
    low, high = min(one.low for one in parts), min(one.high for one in parts)
    said = f"The least of {len(parts)}: {where.words}. {words}".strip()
    return Measured(where.value, low, high, min(p.images for p in parts), level, caveat=said)


def each(level: float, count: int) -> float:
    """The level of each of several intervals that hold together."""
    return 1 - (1 - level) / max(1, count)


# What is reported.


def drops(board: Board, *, level: float = LEVEL, points: float = 0.0) -> Measured:
    """The share of models on which the worst case lies below the reported figure by more.

    A model whose exact interval holds both possibilities is open: it counts for neither.
    """
    found = reported(board)
    told = each(level, len(found))
    hits = open_ = 0
    words = []
    for one in found:
        assert one.reported is not None
        low, high = clopper_pearson(one.worst.hits, one.worst.count, told)
        limit = one.reported - points
        hits += high < limit
        open_ += low < limit <= high
        words += [f"{one.title} by {100 * (one.reported - one.worst.value):.1f}"] * (high < limit)
    listed = f"They are {', '.join(words)}." if words else ""
    return share(hits, open_, len(found), level, f"{open_} are open. {listed}".strip())


def below(one: Attacked, attack: str) -> bool:
    """Whether accuracy under a single attack is below the reported figure."""
    return one.reported is not None and one.left(attack).value < one.reported


def targeted_exposes_more(board: Board, *, level: float = LEVEL) -> Measured:
    """On how many more models targeted DLR alone is below the reported figure than CE alone."""
    found = reported(board)
    counts = {name: [below(one, attack) for one in found] for name, attack in PARTS.items()}
    both = Difference.of(counts["APGD-T"], counts["APGD-CE"])
    low, high = paired_interval(both.only_first, both.only_second, both.count, level)
    told = ", ".join(f"{name} {sum(mine)}" for name, mine in counts.items())
    said = labelled(len(found), f"Below the reported figure: {told}.")
    if len(found) < FEWEST:
        low, high = -1.0, 1.0
    return Measured(both.value, low, high, len(found), level, caveat=said, unit="models")


def swapped(board: Board, *, level: float = LEVEL) -> Measured:
    """The share of pairs of models in one threat whose order differs: reported and worst case.

    A pair is open where the interval of the paired difference holds 0.
    """
    found = reported(board)
    pairs = [
        (a, b) for a, b in combinations(found, 2) if a.cell is b.cell and a.reported != b.reported
    ]
    if not pairs:
        raise UnknownNameError("two models with reported figures under one threat are needed")
    hits = open_ = 0
    words = []
    for a, b in pairs:
        assert a.reported is not None and b.reported is not None
        low, high = _order(a, b, each(level, len(pairs)))
        mine = (low, high) if a.reported > b.reported else (-high, -low)
        hits += mine[1] < 0
        open_ += mine[0] < 0 <= mine[1]
        words += [f"{a.name} and {b.name}"] * (mine[1] < 0)
    value = hits / len(pairs)
    high = value + open_ / len(pairs)
    said = labelled(len(found), f"{open_} of {len(pairs)} pairs are open. {'; '.join(words)}")
    ends = (value, high) if len(found) >= FEWEST or hits else (0.0, 1.0)
    return Measured(value, *ends, len(pairs), level, caveat=said.strip(), unit="pairs of models")


def _order(a: Attacked, b: Attacked, level: float) -> tuple[float, float]:
    """The interval of the difference of two worst cases on the same images."""
    parts = tuple(PARTS.values())
    both = a.known(*parts) & b.known(*parts)
    if not both.any():
        raise UnknownNameError(f"{a.name} and {b.name} share no image")
    one = Difference.of(a.held(*parts)[both], b.held(*parts)[both])
    return paired_interval(one.only_first, one.only_second, one.count, level)


# Single attacks.


def _behind(one: Attacked, attack: str, level: float) -> Ends:
    """How far an attack falls behind the best single one; 0 where it is the best itself.

    Which one is best is not certain: the interval holds for whichever of the others it is.
    """
    others = [text for text in PARTS.values() if text != attack]
    ends = [change(one, [attack], [text], each(level, len(others))) for text in others]
    value, low, high = (
        max(0.0, *(getattr(end, name) for end in ends)) for name in ("value", "low", "high")
    )
    return Ends(value, low, high, min(end.images for end in ends), one.title)


def never_far(board: Board, *, level: float = LEVEL) -> Measured:
    """By how much the worst failure of APGD-T stays below 12 points."""
    found = alone(board)
    told = each(level, len(found))
    worst = largest([_behind(one, PARTS["APGD-T"], told) for one in found], level)
    low, high = FAILURE - worst.high, FAILURE - worst.low
    if len(found) < FEWEST:
        low, high = -1.0, 1.0
    said = labelled(len(found), f"Worst failure {100 * worst.value:.1f} points. {worst.caveat}")
    return replace(worst, value=FAILURE - worst.value, low=low, high=high, caveat=said)


def all_others_fail(board: Board, *, level: float = LEVEL) -> Measured:
    """The least of the worst failures of CE, FAB-T and Square."""
    found = alone(board)
    names = ("APGD-CE", "FAB-T", "Square")
    told = each(level, len(found) * len(names))
    parts, words = [], []
    for name in names:
        one = largest([_behind(model, PARTS[name], told) for model in found], level)
        parts.append(Ends(one.value, one.low, one.high, one.count, name))
        words.append(f"{name} {100 * one.value:.1f} points ({one.caveat.rstrip('.')})")
    return least(parts, level, f"Worst failures: {'; '.join(words)}.")


def best_share(board: Board, *, level: float = LEVEL, name: str = "APGD-T") -> Measured:
    """The share of models on which one attack is the best single one; ties count as open."""
    found = [one for one in alone(board) if any(one.left(t).value < 1 for t in PARTS.values())]
    hits = open_ = 0
    for one in found:
        left = {part: one.left(text).value for part, text in PARTS.items()}
        mine = left.pop(name)
        hits += mine < min(left.values())
        open_ += mine == min(left.values())
    return share(hits, open_, len(found), level, f"{open_} ties.")


def targeted_beats(
    board: Board, *, level: float = LEVEL, targeted: str, untargeted: str, reverse: bool = False
) -> Measured:
    """The share of models on which one attack run breaks more than another; ties are open."""
    wanted = {targeted: PARTS[targeted], untargeted: UNTARGETED[untargeted]}
    found = alone(board, wanted)
    hits = open_ = 0
    for one in found:
        pair = [one.left(text).value for text in wanted.values()]
        first, second = reversed(pair) if reverse else pair
        hits += first < second
        open_ += first == second
    return share(hits, open_, len(found), level, f"{open_} ties.")


def square_alone(board: Board, *, level: float = LEVEL) -> Measured:
    """The most that Square breaks of what all white-box attacks that were run leave together."""
    found = alone(board)
    told = each(level, len(found))
    parts = []
    for one in found:
        parts_of_suite = [text for name, text in PARTS.items() if name != "Square"]
        white = parts_of_suite + [text for text in UNTARGETED.values() if one.has(text)]
        parts.append(change(one, white, [*white, PARTS["Square"]], told))
    return largest(parts, level)


# Randomised models, and bounds.


def entropy_leads(board: Board, *, level: float = LEVEL) -> Measured:
    """The least by which averaged CE breaks more than the other parts of rand."""
    found = alone(board, AVERAGED)
    others = [text for name, text in AVERAGED.items() if name != "APGD-CE"]
    told = each(level, len(found) * len(others))
    parts = [
        change(one, [other], [AVERAGED["APGD-CE"]], told)._replace(words=f"{one.title}, {other}")
        for one in found
        for other in others
    ]
    return least(parts, level, f"{len(found)} of our models in place of the publication's 9.")


def bounds_hold(board: Board, *, level: float = LEVEL) -> Measured:
    """The least by which what attacks leave exceeds what is proved, on the same images."""
    parts: list[tuple[str, int, int, int]] = []
    for cell in board.cells:
        for row, name in enumerate(cell.models):
            found = board.evaluation(cell, row).certified
            if found is not None:
                title = f"{name}, {cell.name}"
                parts.append((title, found.open, found.contradicted, found.clean.count))
    if not parts:
        raise UnknownNameError("no model of this run has a verified bound")
    told = each(level, len(parts))
    ends = [
        Ends((more - less) / n, *paired_interval(more, less, n, told), n, title)
        for title, more, less, n in parts
    ]
    wrong = sum(less for *_, less, _ in parts)
    return least(ends, level, f"{wrong} images are proved and broken.")


# Sub-studies.


def tagged(board: Board, tag: str, value: str) -> list[str]:
    """The models with a value of a tag; an error without any."""
    found = [model.name for model in board.models if model.tags.get(tag) == value]
    if not found:
        raise UnknownNameError(f"no model of this run has the tag {tag} = {value}")
    return found

"""Effects that DEEPSEC's remarks claim: success, metrics, defenses, detectors, transfer, ensembles.

No mean over attacks is formed. Where a remark is about several attacks, or pairs of them, the one
where the effect is least decides, with intervals that hold for all of them together. What replayed
images leave is transfer: remarks about defenses are measured twice, and the headline is what
attacks on the defense itself leave.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np

from besiege.bench.board import Board
from besiege.core.errors import UnknownNameError
from besiege.metrics.attack_utility import FEWEST
from besiege.metrics.frontier import rank_correlation
from besiege.metrics.intervals import Rate, clopper_pearson
from besiege.metrics.paired import LEVEL, Difference, normal_quantile, paired_interval
from besiege.metrics.rows import places
from besiege.metrics.utility import Utility, utility
from besiege.studies.answers import Measured
from besiege.studies.deepsec.attacks import SAME_BUT_GOAL, DataName, form, forms
from besiege.studies.deepsec.reading import (
    BLUR,
    COMPRESSED,
    DEFENSE,
    DETECTOR,
    ENSEMBLE,
    OTHERS,
    Held,
    aligned,
    data_of,
    detected,
    model_of,
    models,
    must_have,
    replayed,
    rows_of_tables,
    source_of,
    utility_of,
    wins,
    withstood,
)

ITERATIVE = ("BIM", "PGD", "U-MI-FGSM", "ILLC", "T-MI-FGSM")
"""The iterative attacks within an linf budget, which remark 1 is about."""
LINF_AND_L2 = tuple((name, "DF") for name in ("FGSM", "BIM", "PGD", "U-MI-FGSM"))
"""Untargeted attacks in linf, and the one in l2."""
METRICS = {"ALD_0": "l0", "ALD_2": "l2", "ALD_inf": "linf", "ASS": "ass", "PSD": "psd"}
"""The metrics of how much images change, and their names in figures."""
FEWEST_MODELS = 8
"""A rank correlation over fewer models decides nothing."""
RESAMPLES = 2000


class Part(NamedTuple):
    """One of several effects: its value and interval, its images, and what it is."""

    value: float
    low: float
    high: float
    images: int
    words: str


def least(parts: Sequence[Part], level: float, more: str = "") -> Measured:
    """The least of several effects, with an interval that holds for whichever it is."""
    if not parts:
        raise UnknownNameError("the run has none of the models or attacks that this is about")
    one = min(parts, key=lambda part: part.value)
    said = f"The least of {len(parts)} is that of {one.words}. {more}".strip()
    return Measured(
        one.value,
        min(part.low for part in parts),
        min(part.high for part in parts),
        min(part.images for part in parts),
        level,
        caveat=said,
    )


def each(level: float, count: int) -> float:
    """The level of each of several intervals that hold together."""
    return 1 - (1 - level) / max(1, count)


# Remark 1


def least_rate(
    board: Board,
    *,
    model: str,
    data: DataName,
    names: Sequence[str] = ITERATIVE,
    level: float = LEVEL,
) -> Measured:
    """Remark 1: the smallest MR of the iterative attacks, with an interval that holds for all.

    Exact intervals of the level ``1 - (1 - level) / m`` for m attacks: the smallest of their ends
    bound the smallest rate.
    """
    found = [wins(board, model, form(data, name)).success for name in names]
    if not all(len(one) for one in found):
        raise UnknownNameError(f"'{model}' classifies no image correctly")
    told = each(level, len(found))
    ends = [clopper_pearson(int(one.sum()), len(one), told) for one in found]
    rates = [float(one.mean()) for one in found]
    worst = names[int(np.argmin(rates))]
    return Measured(
        min(rates),
        min(low for low, _ in ends),
        min(high for _, high in ends),
        min(map(len, found)),
        level,
        caveat=f"The least of {len(names)} attacks is {worst}.",
    )


def iterative_succeed(board: Board, *, level: float = LEVEL) -> Measured:
    """Remark 1 on the undefended model."""
    return least_rate(board, model=source_of(board), data=data_of(board), level=level)


# Remark 2


def sensitive(board: Board, *, level: float = LEVEL) -> Measured:
    """Remark 2: by how much PSD varies more over the attacks than any other metric, and ASS less.

    How much a metric varies is its standard deviation over its mean, over the attacks that
    succeed. Attacks are resampled, for all metrics together.
    """
    source, values = source_of(board), []
    for row in rows_of_tables(board):
        found = utility_of(board, source, row)
        mine = [getattr(found, name) for name in METRICS.values()]
        if all(value is not None for value in mine):
            values.append(mine)
    if len(values) < 3:
        raise UnknownNameError("three attacks with images of all metrics are needed at least")
    table = np.array(values, float)
    value, drawn = _lead(table[None])[0], np.random.default_rng(0)
    picked = drawn.integers(0, len(table), (RESAMPLES, len(table)))
    many = _lead(table[picked])
    tail = (1 - level) / 2
    low, high = np.quantile(many, (tail, 1 - tail))
    spreads = dict(zip(METRICS, _spread(table[None])[0], strict=True))
    order = ", ".join(f"{n} {v:.2f}" for n, v in sorted(spreads.items(), key=lambda i: -i[1]))
    said = f"Standard deviation over mean: {order}."
    return Measured(
        float(value), float(low), float(high), len(table), level, caveat=said, unit="attacks"
    )


def _spread(tables: np.ndarray) -> np.ndarray:
    """Standard deviation over mean of ``[resamples, attacks, metrics]``, over the attacks."""
    return np.asarray(tables.std(1) / tables.mean(1))


def _lead(tables: np.ndarray) -> np.ndarray:
    """The lesser of how far PSD varies most and ASS least."""
    spread = _spread(tables)
    names = list(METRICS)
    psd, ass = names.index("PSD"), names.index("ASS")
    most = spread[:, psd] - np.delete(spread, psd, 1).max(1)
    fewest = np.delete(spread, ass, 1).min(1) - spread[:, ass]
    return np.asarray(np.minimum(most, fewest))


# Remark 3


def survives(board: Board, *, level: float = LEVEL) -> Measured:
    """Remark 3: how much more untargeted successes survive a blur and a compression.

    Each rate is of an attack's own successes, which are other images for each: pairs with fewer
    than 50 of either tell nothing.
    """
    data, source = data_of(board), source_of(board)
    found: list[tuple[str, Rate, Rate]] = []
    few: dict[str, int] = {}
    for (one, other), layer in product(SAME_BUT_GOAL, (BLUR, COMPRESSED)):
        with suppress(UnknownNameError):
            rates = [replayed(board, source, form(data, n), through=layer).still
                     for n in (one, other)]  # fmt: skip
            words = f"{one} and {other} after {layer}"
            count = min(0 if rate is None else rate.count for rate in rates)
            if rates[0] is None or rates[1] is None or count < FEWEST:
                few[words] = count
            else:
                found.append((words, rates[0], rates[1]))
    if not found and not few:
        raise UnknownNameError(f"no image of '{source}' was blurred or compressed")
    more = f"Fewer than {FEWEST} successes: {', '.join(few)}." if few else ""
    if not found:
        counted = max(few.values())
        return Measured(0.0, -1.0, 1.0, counted, level, FEWEST, more, "successes")
    told = each(level, 2 * len(found))
    measured = least([_apart(a, b, told, words) for words, a, b in found], level, more)
    return replace(measured, unit="successes")


def _apart(first: Rate, second: Rate, level: float, words: str) -> Part:
    """The difference of two rates on other images, from their exact intervals."""
    a, b = (clopper_pearson(one.hits, one.count, level) for one in (first, second))
    value = first.value - second.value
    return Part(value, a[0] - b[1], a[1] - b[0], min(first.count, second.count), words)


# Remark 4


def utilities(board: Board, *roles: str) -> dict[str, Utility]:
    """What defenses do to clean images, beside the undefended model."""
    source, found = source_of(board), {}
    for name in models(board, *(roles or (DEFENSE,))):
        if name in board.clean and source in board.clean:
            one, other = board.clean[source], board.clean[name]
            ids = np.intersect1d(one.rows["sample"], other.rows["sample"])
            found[name] = utility(one.of(ids), other.of(ids), names=(source, name))
    if not found:
        raise UnknownNameError("no defense was evaluated on clean images")
    return found


def utility_follows_accuracy(board: Board, *, level: float = LEVEL) -> Measured:
    """Remark 4: the lesser rank correlation of lost accuracy with CCV and with COS."""
    found = {n: u for n, u in utilities(board).items() if u.ccv is not None and u.cos is not None}
    count = len(found)
    if count < 3:
        raise UnknownNameError("three defenses whose probabilities are known are needed at least")
    lost = np.array([-one.cav.value for one in found.values()])
    told, parts = each(level, 2), []
    for name in ("ccv", "cos"):
        changed = np.array([getattr(one, name).value for one in found.values()])
        value = rank_correlation(lost, changed)
        low, high = -1.0, 1.0
        if count >= FEWEST_MODELS:  # Fisher's interval, which has no width at 1
            middle = np.arctanh(np.clip(value, -0.99, 0.99))
            half = normal_quantile(told) / np.sqrt(count - 3)
            low, high = np.tanh(middle - half), np.tanh(middle + half)
        parts.append(Part(value, float(low), float(high), count, name.upper()))
    few = f"Fewer than {FEWEST_MODELS} decide nothing. " if count < FEWEST_MODELS else ""
    words = ", ".join(f"{part.words} {part.value:+.2f}" for part in parts)
    one = least(parts, level)
    said = f"{count} defenses. {few}Rank correlations: {words}."
    return Measured(one.value, one.low, one.high, count, level, caveat=said, unit="defenses")


# Remarks 5 and 8: defenses and ensembles, by transfer and adaptively.


def none_is_universal(board: Board, *, level: float = LEVEL, transfer: bool) -> Measured:
    """Remark 5: the share of images that even the best defense loses, under all attacks.

    A defense that was left out may lose none: the others can deny the remark, not confirm it.
    """
    found, lacking = {}, []
    for name in must_have(board, DEFENSE):
        try:
            found[name] = withstood(board, name, transfer=transfer)
        except UnknownNameError as problem:
            lacking.append(str(problem))
    if not found:
        raise UnknownNameError("; ".join(lacking))
    told, parts = each(level, len(found)), []
    for name, one in found.items():
        lost = int((~one.held).sum())
        low, high = clopper_pearson(lost, len(one.held), told)
        parts.append(Part(lost / len(one.held), low, high, len(one.held), name))
    listed = ", ".join(f"{part.words} {100 * part.value:.1f}" for part in parts)
    said = f"Lost by each, in percent: {listed}.{_retrained(board, found)}"
    if not lacking:
        return least(parts, level, said)
    return replace(least(parts, level, f"{said} Left out: {'; '.join(lacking)}."), low=0.0)


def _retrained(board: Board, found: dict[str, Held]) -> str:
    """The defenses whose weights were trained again, which look better under replays."""
    names = [n for n in found if model_of(board, n).tags.get("retrained") == "yes"]
    return f" Trained again: {', '.join(names)}." if names else ""


def ensembles_do_not_beat(board: Board, *, level: float = LEVEL, transfer: bool) -> Measured:
    """Remark 8: by how much an ensemble stays below its best member, where that is least.

    Which member is best is not certain: the interval holds for whichever it is.
    """
    pairs: list[tuple[str, list[str]]] = []
    for name in must_have(board, ENSEMBLE):
        if members := members_of(board, name):
            pairs.append((name, members))
    if not pairs:
        raise UnknownNameError("no member of an ensemble is a model of this run")
    told, parts, lifts = each(level, sum(len(members) for _, members in pairs)), [], []
    for name, members in pairs:
        held = aligned([withstood(board, one, transfer=transfer) for one in (name, *members)])
        mine, theirs = held[0], held[1:]
        best, worst = (pick([int(one.sum()) for one in theirs]) for pick in (np.argmax, np.argmin))
        ahead = [Difference.of(one, mine) for one in theirs]
        ends = [paired_interval(one.only_first, one.only_second, one.count, told) for one in ahead]
        low, high = np.max(ends, 0).tolist()
        change = ahead[int(best)]
        words = f"{name} and {members[int(best)]}"
        parts.append(Part(change.value, low, high, change.count, words))
        lift = 100 * float(mine.mean() - theirs[int(worst)].mean())
        lifts.append(f"{name} {lift:+.1f} over {members[int(worst)]}")
    return least(parts, level, f"Above the worst member: {', '.join(lifts)}." if lifts else "")


def members_of(board: Board, ensemble: str) -> list[str]:
    """The members of an ensemble that are models of the board themselves."""
    text = model_of(board, ensemble).text
    return [
        one.name
        for one in board.models
        if one.name != ensemble and re.search(rf"[(,]\s*{re.escape(one.text)}\s*[,)]", text)
    ]


# Remark 6


def larger_no_easier(board: Board, *, level: float = LEVEL, transfer: bool) -> Measured:
    """Remark 6: by how much the larger FGSM is detected less than the smaller one.

    Of the errors under each that a detector rejects at its one threshold.
    """
    data = data_of(board)
    source = source_of(board) if transfer else ""
    found: list[tuple[str, Rate, Rate]] = []
    areas: list[str] = []
    for name in must_have(board, DETECTOR):
        with suppress(UnknownNameError):
            pair = [detected(board, name, form(data, n), source) for n in ("FGSM", "FGSM, larger")]
            areas += [
                f"{name} {pair[0].auc.value:.2f} and {pair[1].auc.value:.2f}"
                for _ in [0]
                if pair[0].auc is not None and pair[1].auc is not None
            ]
            if pair[0].rejected is not None and pair[1].rejected is not None:
                found.append((name, pair[0].rejected, pair[1].rejected))
    if not found:
        raise UnknownNameError("no detector was shown errors under both sizes of FGSM")
    told = each(level, 2 * len(found))
    more = f"Areas under the ROC curve: {', '.join(areas)}." if areas else ""
    return least([_apart(a, b, told, words) for words, a, b in found], level, more)


# Remark 7


def least_difference(
    board: Board,
    *,
    model: str,
    source: str,
    data: DataName,
    pairs: Sequence[tuple[str, str]],
    level: float = LEVEL,
) -> Measured:
    """How much more the first attack of each pair transfers than the second, where it is least.

    Both are replayed from one model on another, and paired image by image. Tango's intervals of
    the level ``1 - (1 - level) / m`` for m pairs.
    """
    told = each(level, len(pairs))
    found = [(pair, change_of(board, model, source, data, pair)) for pair in pairs]
    ends = [paired_interval(one.only_first, one.only_second, one.count, told) for _, one in found]
    worst, change = min(found, key=lambda one: one[1].value)
    return Measured(
        change.value,
        min(low for low, _ in ends),
        min(high for _, high in ends),
        min(one.count for _, one in found),
        level,
        caveat=f"The least of {len(pairs)} differences is that of {worst[0]} and {worst[1]}.",
    )


def change_of(
    board: Board, model: str, source: str, data: DataName, pair: tuple[str, str]
) -> Difference:
    """How much more the first attack of a pair transfers, image by image."""
    first, second = (wins(board, model, form(data, name), source) for name in pair)
    where = places(second.samples, first.samples)
    both = where >= 0
    if not both.any():
        raise UnknownNameError(f"no image was judged for both {pair[0]} and {pair[1]}")
    return Difference.of(first.success[both], second.success[where[both]])


def untargeted_transfers_more(
    board: Board, *, model: str, source: str, data: DataName, level: float = LEVEL
) -> Measured:
    """Remark 7: untargeted attacks transfer more than the same ones with a target."""
    return least_difference(
        board, model=model, source=source, data=data, pairs=SAME_BUT_GOAL, level=level
    )


def linf_transfers_more(
    board: Board, *, model: str, source: str, data: DataName, level: float = LEVEL
) -> Measured:
    """Remark 7: untargeted attacks in linf transfer more than that in l2."""
    return least_difference(
        board, model=model, source=source, data=data, pairs=LINF_AND_L2, level=level
    )


def transfers_more(
    board: Board, *, level: float = LEVEL, pairs: Sequence[tuple[str, str]]
) -> Measured:
    """The same on all models without a defense: the least over these."""
    names, source, data = models(board, *OTHERS), source_of(board), data_of(board)
    told, parts = each(level, len(names)), []
    for name in names:
        one = least_difference(board, model=name, source=source, data=data, pairs=pairs, level=told)
        words = f"{name} ({one.caveat.rstrip('.')})"
        parts.append(Part(one.value, one.low, one.high, one.count, words))
    return least(parts, level)


def absent(board: Board, model: str, data: DataName, names: Iterable[str] = ()) -> list[str]:
    """The rows of the tables that were not run on a model, by name."""
    lacking = []
    for name in names or forms(data):
        try:
            wins(board, model, form(data, name))
        except UnknownNameError:
            lacking.append(name)
    return lacking

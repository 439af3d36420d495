"""Tables of RealSafe: its Table 3, worst cases, and success rates with their denominators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from besiege.bench.board import Board, Mask
from besiege.bench.display import Grid, rows_of
from besiege.core.errors import UnknownNameError
from besiege.metrics.distances import quantile
from besiege.metrics.intervals import Rate
from besiege.metrics.outcomes import Numbers
from besiege.metrics.searches import ROUNDING
from besiege.studies.realsafe.printed import MODELS, TABLE_3
from besiege.studies.realsafe.reading import (
    DECISIONS,
    ORDER,
    SCORES,
    TARGETED,
    TRANSFER,
    UNTARGETED,
    WHITE,
    WORDS,
    Ends,
    attacks_of,
    budget,
    progress,
    worst,
)
from besiege.studies.study import Table

ABSENT = "absent"
_BEYOND = (
    (SCORES, "attacks without gradients", "W08"),
    (TRANSFER, "images made on another model", "W09"),
)
"""What may break images that no white-box attack breaks, and the rule about it."""
_SOME = 0.002
"""The share of the images that both rules pass over."""


def entries(board: Board) -> Iterator[dict[str, Any]]:
    """The numbers of Table 3: median distance and accuracy of every attack and model.

    A score attack that was run on a model at the budget only has an accuracy, and no median.
    """
    eps, _ = budget(board, "linf")
    data = {cell.data for cell in board.cells}
    searched = set()
    for knowledge, attack, found in attacks_of(board, "linf", UNTARGETED):
        for m, model in enumerate(found.models):
            searched.add((knowledge, attack, model))
            median = quantile(found.ends[m][found.known[m]])
            about = WORDS[knowledge], attack, model
            yield _entry(about, median, found.held(eps)[m], found.known[m], eps, data)
    for attack in ORDER[SCORES]:
        with suppress(UnknownNameError):
            found = progress(board, attack, "linf", UNTARGETED)
            for m, model in enumerate(found.models):
                if (SCORES, attack, model) not in searched and found.known[m].any():
                    held = found.known[m] & np.isinf(found.ends[m])
                    about = WORDS[SCORES], attack, model
                    yield _entry(about, np.nan, held, found.known[m], eps, data)


def _entry(
    about: tuple[str, str, str], median: float, held: Mask, known: Mask, eps: float, data: set[str]
) -> dict[str, Any]:
    rate = Rate.of(int(held.sum()), int(known.sum()))
    printed = TABLE_3.get(about) if "cifar10" in data else None
    knowledge, attack, model = about
    return {
        "knowledge": knowledge,
        "attack": attack,
        "model": model,
        "median": median,
        "accuracy": rate.value,
        "accuracy_low": rate.low,
        "accuracy_high": rate.high,
        "images": rate.count,
        "eps": eps,
        "printed_model": MODELS[model] if printed else "",
        "printed_median": printed[0] if printed else np.nan,
        "printed_accuracy": printed[1] / 100 if printed else np.nan,
    }


def table_3(board: Board) -> Grid:
    """Table 3 of the publication for these models, beside the printed values."""
    found = list(entries(board))
    if not found:
        raise UnknownNameError("no attack of Table 3 was run in linf, untargeted")
    names = [*(model.name for model in board.models), *board.absent]
    by_place = {(one["knowledge"], one["attack"], one["model"]): one for one in found}
    rows = []
    for knowledge, attack in dict.fromkeys((k, a) for k, a, _ in by_place):
        cells = (by_place.get((knowledge, attack, name)) for name in names)
        shown = (
            _pair(one, ABSENT if name in board.absent else "not run")
            for one, name in zip(cells, names, strict=True)
        )
        rows.append((f"{knowledge} {attack}", *shown))
    _, written = budget(board, "linf")
    counts = sorted({one["images"] for one in found})
    among = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    note = (
        f"Median distance over all images / accuracy in percent at {written}, untargeted, of "
        f"{among} images of {board.cells[0].data}. An image that is misclassified when clean has "
        "distance 0, one that was never broken infinity. "
    )
    if any(np.isnan(one["median"]) for one in found):
        note += "Without a median: run at the budget only. "
    if any(one["printed_model"] for one in found):
        note += "In brackets: printed in the publication for its own network of that kind. "
    note += _substitutes(board)
    return Grid(
        "Table 3: median distance and accuracy", ("attack", *names), tuple(rows), note,
        rows_of(found),
    )  # fmt: skip


def _pair(one: Mapping[str, Any] | None, nothing: str) -> str:
    if one is None:
        return nothing
    printed = ""
    if one["printed_model"]:
        printed = f" ({_size(one['printed_median'])}/{100 * one['printed_accuracy']:.1f})"
    return f"{_size(one['median'])}/{100 * one['accuracy']:.1f}{printed}"


def _size(value: float) -> str:
    if np.isnan(value):
        return "-"
    return f"{value:.3f}".replace("0.", ".", 1) if np.isfinite(value) else "inf"


def _substitutes(board: Board) -> str:
    pairs: dict[str, list[str]] = {}
    for cell in board.cells:
        for model, source in zip(cell.models, cell.sources, strict=True):
            mine = pairs.setdefault(board.name_of(source), []) if source else []
            mine += [] if model in mine else [model]
    words = [f"{source} attacks {', '.join(models)}" for source, models in pairs.items()]
    return f"Substitutes: {'; '.join(words)}." if words else ""


def success(board: Board) -> Grid:
    """Success rates at the standard budgets, each with its denominator in words."""
    found = list(_success(board))
    if not found:
        raise UnknownNameError("no attack was run at a standard budget")
    rows = tuple(
        (f"{one['norm']} {one['goal']}, {one['knowledge']} {one['attack']}, {one['model']}",
         *_in_words(one))
        for one in found
    )  # fmt: skip
    note = (
        "An untargeted attack is rated among the images that were classified correctly before. The "
        "publication rates a targeted attack among all images, its code among those not classified "
        "as the target already: an image that is misclassified when clean counts where it is "
        "brought to its target. No targeted rate says how robust a model is."
    )
    heads = ("attack on model", "success rate", "with another denominator")
    return Grid("Success rates", heads, rows, note, rows_of(found))


def _in_words(one: Mapping[str, Any]) -> tuple[str, str]:
    """A success rate with the denominator of its goal, and with the other one."""
    of_all = f"{100 * one['of_all']:.1f} % of all {one['images']:,}"
    if one["goal"] == UNTARGETED:
        return f"{100 * one['of_correct']:.1f} % of {one['correct']:,} correct when clean", of_all
    return of_all, f"{100 * one['of_others']:.1f} % of {one['others']:,} not the target already"


def _success(board: Board) -> Iterator[dict[str, Any]]:
    for norm in ("linf", "l2"):
        for goal in (UNTARGETED, TARGETED):
            for knowledge, attack, found in attacks_of(board, norm, goal):
                eps, _ = budget(board, norm)
                yield from _rates(found, eps, norm, goal, WORDS[knowledge], attack)


def _rates(
    found: Ends, eps: float, norm: str, goal: str, knowledge: str, attack: str
) -> Iterator[dict[str, Any]]:
    for m, model in enumerate(found.models):
        known = found.known[m]
        right = known & found.correct[m]
        held = int(found.held(eps)[m].sum())
        broken = right & (found.ends[m] <= eps * (1 + ROUNDING))
        images, correct = int(known.sum()), int(right.sum())
        must_agree(images, correct, held, int(broken.sum()))
        aimed = found.aimed[m] if goal == TARGETED else np.where(broken, found.ends[m], np.inf)
        reached = known & (aimed <= eps * (1 + ROUNDING))
        others = known & (aimed > 0) if goal == TARGETED else right
        yield {
            "norm": norm,
            "goal": goal,
            "knowledge": knowledge,
            "attack": attack,
            "model": model,
            "images": images,
            "correct": correct,
            "broken": int(broken.sum()),
            "reached": int(reached.sum()),
            "others": int(others.sum()),
            "of_correct": _part(broken, right),
            "of_all": _part(reached, known),
            "of_others": _part(reached & others, others),
        }


def _part(some: Mask, of: Mask) -> float:
    return float(some.sum() / of.sum()) if of.any() else np.nan


def must_agree(images: int, correct: int, held: int, broken: int) -> None:
    """``Acc = Acc_clean (1 - ASR)``: both are counted from the same distances."""
    assert held == correct - broken and held <= correct <= images, (images, correct, held, broken)


def worst_cases(board: Board) -> Grid:
    """The share of images that no attack broke, within one norm, goal and budget."""
    levels: list[tuple[str, Sequence[str]]] = [
        (WORDS[one], (one,)) for one in (WHITE, TRANSFER, SCORES, DECISIONS)
    ]
    found = []
    for norm in ("linf", "l2"):
        for goal in (UNTARGETED, TARGETED):
            for level, knowledge in (*levels, ("all", tuple(ORDER))):
                for model, (ids, ends) in worst(board, norm, goal, knowledge).items():
                    if len(ids):
                        found.append(_left(norm, goal, level, model, ends, budget(board, norm)[0]))
    if not found:
        raise UnknownNameError("no attack was run")
    names = [model.name for model in board.models]
    heads = dict.fromkeys((one["norm"], one["goal"], one["knowledge"]) for one in found)
    by_place = {(one["norm"], one["goal"], one["knowledge"], one["model"]): one for one in found}
    rows = tuple(
        (f"{norm} {goal}, {level}", *(_share(by_place.get((norm, goal, level, n))) for n in names))
        for norm, goal, level in heads
    )
    note = (
        "Percent of the images that are classified correctly and withstood every attack of that "
        "knowledge at the standard budget, image by image; of the images judged under all of them. "
        "A transfer is no measure of robustness."
    )
    return Grid("Worst case", ("threat", *names), rows, note, rows_of(found))


def _left(
    norm: str, goal: str, level: str, model: str, ends: Numbers, eps: float
) -> dict[str, Any]:
    rate = Rate.of(int((ends > eps * (1 + ROUNDING)).sum()), len(ends))
    about = {"norm": norm, "goal": goal, "knowledge": level, "model": model}
    return {**about, "accuracy": rate.value, "accuracy_low": rate.low,
            "accuracy_high": rate.high, "images": rate.count}  # fmt: skip


def _share(one: Mapping[str, Any] | None) -> str:
    return "" if one is None else f"{100 * one['accuracy']:.1f} % of {one['images']:,}"


def readings(board: Board) -> list[str]:
    """How Table 3 is not to be read."""
    try:
        eps, written = budget(board, "linf")
    except UnknownNameError:
        return []
    found = []
    white = worst(board, "linf", UNTARGETED, (WHITE,))
    for knowledge, words, rule in _BEYOND:
        black = worst(board, "linf", UNTARGETED, (knowledge,))
        for model in (one for one in white if one in black):
            (ids, ends), (others, theirs) = white[model], black[model]
            common, one, other = np.intersect1d(ids, others, return_indices=True)
            held = ends[one] > eps * (1 + ROUNDING)
            broken = int((held & (theirs[other] <= eps * (1 + ROUNDING))).sum())
            if broken > _SOME * len(common):
                found.append(
                    f"On {model} {words} break {broken:,} of {len(common):,} images that every "
                    f"white-box attack leaves: its white-box figures are no worst case ({rule})."
                )
    found.append(
        "A BIM of 20 steps overstates: on the publication's own PGD-AT and TRADES networks it "
        "leaves 48.3 and 56.8 %, AutoAttack 44.0 and 53.1 %."
    )
    every = {m: ends for m, (ids, ends) in worst(board, "linf", UNTARGETED).items() if len(ids)}
    if every:
        shares = ", ".join(
            f"{model} {100 * (ends > eps * (1 + ROUNDING)).mean():.1f} % of {len(ends):,}"
            for model, ends in every.items()
        )
        found.append(f"The worst case of each column at linf {written}: {shares}.")
    return found


TABLES = (
    Table("table3", table_3),
    Table("worst", worst_cases),
    Table("success", success, long=True),
)

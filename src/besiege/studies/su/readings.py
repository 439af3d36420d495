"""Sentences beside the tables: how they are not to be read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from besiege.bench.board import Board
from besiege.core.errors import UnknownNameError
from besiege.metrics.clever import refuted_by
from besiege.studies.su.reading import (
    FGSM,
    LINF,
    RANDOM,
    estimates,
    setting,
    sizes_of,
)
from besiege.studies.su.tables import success_rate

ENOUGH = 8
"""Models from which on laws and families can be told from chance."""


def readings(board: Board) -> list[str]:
    """What a reader of this run has to know."""
    found = [
        "Images at eps 0.1 to 0.3 are far outside of what one would overlook: these matrices say "
        "which networks are alike, not which are safe.",
        "A mean over successes says nothing about the images where the attack failed; the median "
        "over all images does.",
        "Transfer is no robustness: no matrix shows how a model withstands an attack on itself but "
        "in its diagonal.",
        "Each model was trained once: what differs between two of one family may be their seeds.",
    ]
    data = {cell.data for cell in board.cells}
    if "imagenet-sample" in data:
        found.append(
            "imagenet-sample has one image of each class, and they may be training images of these "
            "networks: accuracies here are no validation accuracies. S1 is also answered with the "
            "published ones."
        )
    return [*found, *_few(board), *_falling(board), *_refuted(board)]


def _few(board: Board) -> Iterator[str]:
    """How many models it would take."""
    try:
        count = len(sizes_of(board, LINF, RANDOM).models)
    except UnknownNameError:
        return
    if count < ENOUGH:
        yield (
            f"{count} models are few: a rank correlation of {count} models has a p-value of "
            f"{_least_p(count):.2g} at least, and families need two models each. With {ENOUGH} "
            f"models it can be as low as {_least_p(ENOUGH):.1g}; the publication had 18."
        )


def _least_p(count: int) -> float:
    """The smallest two-sided p-value of a permutation test of so many models."""
    return 2.0 / float(np.prod(np.arange(1, count + 1, dtype=float)))


def _falling(board: Board) -> Iterator[str]:
    """Whether targeted success of FGSM falls as eps grows, as in figure 1a."""
    rates: dict[float, list[float]] = {}
    for eps in (0.1, 0.2, 0.3):
        try:
            one = setting(board, FGSM, RANDOM, eps=eps)
        except UnknownNameError:
            continue
        found = [success_rate(board, one, m) for m in range(len(board.cell(one.cell).models))]
        rates[eps] = [rate.value for rate in found if rate is not None]
    if len(rates) < 2 or len({len(mine) for mine in rates.values()}) > 1:
        return
    table = np.array([*rates.values()])
    falls = int((table[-1] < table[0]).sum())
    means = ", ".join(
        f"{100 * float(np.mean(mine)):.1f} % at {eps:g}" for eps, mine in rates.items()
    )
    what = "falls as eps grows on" if falls else "does not fall as eps grows on any of"
    count = f"{falls} of {table.shape[1]} networks" if falls else f"these {table.shape[1]} networks"
    yield f"Targeted success of FGSM {what} {count} (figure 1a); means over networks: {means}."


def _refuted(board: Board) -> Iterator[str]:
    """How many CLEVER scores an attack refutes."""
    total, refuted = 0, 0
    for cell in board.cells:
        if estimates(cell):
            known = np.isfinite(cell.estimate) & cell.correct
            total += int(known.sum())
            refuted += int((refuted_by(cell.estimate, cell.smallest) & known).sum())
    if total:
        yield (
            f"{refuted:,} of {total:,} CLEVER scores exceed a perturbation that was found: they "
            "are estimates, never bounds. The table of estimates lists these images."
        )

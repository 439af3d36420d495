"""The figures of the study: success against parameters, the law, and matrices of transfer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from besiege.bench.board import Board
from besiege.bench.display import Figure, HeatMap, Ruled, Scatter, Spot
from besiege.core.errors import UnknownNameError
from besiege.metrics.frontier import Line
from besiege.metrics.outcomes import Numbers
from besiege.studies.su.laws import Fitted, laws_of
from besiege.studies.su.reading import (
    CW,
    EAD,
    ESTIMATE,
    FGSM,
    IFGSM,
    LINF,
    RANDOM,
    Setting,
    families,
    settings_of,
)
from besiege.studies.su.tables import counted, matrices_of, success_rate
from besiege.studies.su.transfer import TransferMatrix

_NUMBERS = {FGSM: "3", IFGSM: "4, 9 and 10", EAD: "5", CW: "8"}
"""The figures of the publication with the matrices of each attack."""
_CORNERS = 25
"""Corners of a fitted curve."""


def figures(board: Board) -> list[Figure]:
    """The figures for the models of a board, with the numbers of the publication."""
    found = [*_success(board), *_laws(board)]
    for attack, number in _NUMBERS.items():
        found += _matrices(board, attack, number)
    return [*found, *_families(board)]


# Figure 1.


def _success(board: Board) -> Iterator[Figure]:
    parameters = {one.name: one.parameters for one in board.models}
    panels = []
    for one in settings_of(board):
        spots = []
        for m, model in enumerate(board.cell(one.cell).models):
            rate, size = success_rate(board, one, m), parameters.get(model)
            if rate is not None and size:
                spots.append(
                    Spot(model, float(size), 100 * rate.value, 100 * rate.low, 100 * rate.high)
                )
        if spots:
            panels.append(Scatter(one.title, "parameters", "success, %", tuple(spots), True))
    if panels:
        yield Figure("1", "Success against the number of parameters", tuple(panels), _OF_RIGHT)


_OF_RIGHT = (
    "Of the images that each model classifies correctly, with 95 % intervals. A large success at a "
    "large eps measures no model."
)


# Figure 2.


def _laws(board: Board) -> Iterator[Figure]:
    found = [*laws_of(board)]
    groups = [("2", RANDOM, False)] if any(one.sizes.goal == RANDOM for one in found) else []
    others = [*dict.fromkeys((one.sizes.goal, one.control) for one in found)]
    groups += [
        (f"2, {goal}{', common images' if control else ''}", goal, control)
        for goal, control in others
        if (goal, control) != (RANDOM, False)
    ]
    for name, goal, control in groups:
        some = [one for one in found if (one.sizes.goal, one.control) == (goal, control)]
        panels = tuple(_law(one) for one in sorted(some, key=lambda each: each.median))
        among = ", on images that all models classify correctly" if control else ""
        title = f"Distortion against accuracy, {goal}{among}"
        yield Figure(name, title, panels, _NOTE)


_NOTE = (
    "Joined: the frontier, models that no other beats in both. Lines are least squares on "
    "ln(1 - accuracy), drawn between the accuracies of these models only; the published line is of "
    "networks for ImageNet. Medians are infinite, and not drawn, where more than half of the "
    "images withstood. CLEVER is an estimate, never a bound."
)


def _law(one: Fitted) -> Scatter:
    law = one.law
    accuracy = 100 * (1 - law.error)
    spots = tuple(
        Spot(model, float(x), float(y), float(y), float(y))
        for model, x, y in zip(one.sizes.models, accuracy, law.distortion, strict=True)
        if np.isfinite(y)
    )
    drawn = {spot.model for spot in spots}
    front = tuple(
        name
        for name, on in zip(one.sizes.models, law.frontier.member, strict=True)
        if on and name in drawn
    )
    lines = [_ruled("fit of the frontier", "fit", law.on_frontier, law.error)]
    lines += [_ruled("fit of all models", "all", law.of_all, law.error)]
    if one.printed is not None and not one.median:
        slope, intercept = one.printed
        published = Line((slope,) * 3, (intercept,) * 3, 1.0, 6)
        lines.append(_ruled("published", "printed", published, law.error))
    unit = "estimate" if one.sizes.name == ESTIMATE else "perturbation"
    unit = "perturbation" if one.sizes.name == LINF else unit
    return Scatter(
        f"{one.sizes.name}, {one.kind}",
        "clean accuracy, %",
        f"{unit}: {one.sizes.name}",
        spots,
        front=front,
        lines=tuple(line for line in lines if line is not None),
    )


def _ruled(label: str, kind: str, line: Line | None, error: Numbers) -> Ruled | None:
    """A line between the accuracies of the models."""
    if line is None:
        return None
    some = np.exp(np.linspace(np.log(error.max()), np.log(error.min()), _CORNERS))
    corners = tuple((float(100 * (1 - e)), line(float(e))) for e in some)
    return Ruled(label, kind, corners)


# Matrices.


def _matrices(board: Board, attack: str, number: str) -> Iterator[Figure]:
    panels = tuple(_heat(one, matrix) for one, matrix in matrices_of(board) if one.attack == attack)
    if panels:
        note = (
            "In percent of all images of the source, those that it classifies correctly. Outlined: "
            f"the white-box attack. The mean is that over the others. {counted(board)} Pointing at "
            "a cell shows the share of images that the target classifies correctly before; "
            "besiege export RUN FILE --table matrices has all of it."
        )
        yield Figure(number, f"Transfer between models: {attack}", panels, note)


def _heat(one: Setting, matrix: TransferMatrix) -> HeatMap:
    words = tuple(
        tuple(
            f"{source} to {target}: {_share(matrix.of_right[s, t])} of {matrix.right[s, t]:,} that "
            f"it classifies correctly{_q(matrix.q[s, t])}"
            for t, target in enumerate(matrix.models)
        )
        for s, source in enumerate(matrix.models)
    )
    return HeatMap(
        one.title, matrix.models, matrix.models, "crafted on ↓ judged on →", matrix.rate, words,
        matrix.rows.value,
    )  # fmt: skip


def _share(value: float) -> str:
    return f"{100 * value:.1f} %" if np.isfinite(value) else "none"


def _q(value: float) -> str:
    return f", q {value:.2g}" if np.isfinite(value) else ""


def _families(board: Board) -> Iterator[Figure]:
    try:
        panels = tuple(
            _by_family(one, matrix, list(families(board, matrix.models).values()))
            for one, matrix in matrices_of(board)
        )
    except UnknownNameError:
        return
    if panels:
        note = "Mean over pairs of different models, in percent of all images of the source."
        yield Figure("", "Transfer between families", panels, note)


def _by_family(one: Setting, matrix: TransferMatrix, family: Sequence[str]) -> HeatMap:
    names, of = tuple(dict.fromkeys(family)), np.array(family)
    others = ~np.eye(len(of), dtype=bool)
    value = np.full((len(names), len(names)), np.nan)
    words = []
    for s, source in enumerate(names):
        row = []
        for t, target in enumerate(names):
            pairs = (of[:, None] == source) & (of == target) & others
            if pairs.any():
                value[s, t] = matrix.rate[pairs].mean()
            row.append(f"{source} to {target}: {pairs.sum()} pairs of models")
        words.append(tuple(row))
    return HeatMap(one.title, names, names, "crafted on ↓ judged on →", value, tuple(words))

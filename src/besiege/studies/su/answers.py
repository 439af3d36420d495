"""The claims S1 to S9 of Su et al. as effects on a board, positive in the claimed direction.

Distortions are the medians over the images that a model classifies correctly, infinite where no
attack succeeded. Images are resampled for all models together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from besiege.bench.board import Board, BoardCell
from besiege.core.errors import UnknownNameError, near
from besiege.metrics.frontier import LEAST, law_of, medians, rank_correlation
from besiege.metrics.paired import LEVEL
from besiege.metrics.resampling import Resampling, resamples_of
from besiege.studies.answers import Measured
from besiege.studies.effects import place_of
from besiege.studies.su.transfer import Crossed

Numbers = NDArray[np.float64]
FAMILY = "family"
"""The tag that names a model's family."""
MEASURES = 0.8
"""A rank correlation from which on one figure stands for another (S9)."""
_PERMUTATIONS = 5000


def slope(
    board: Board, cell: str, errors: Mapping[str, float] | None = None, *, level: float = LEVEL
) -> Measured:
    """S1: distortion rises with ln(error), relative to the mean distortion of the models.

    The line through the frontier or, with fewer than three models on it, through all. `errors` are
    published ones, by model.
    """
    found = board.cell(cell)
    given = None if errors is None else [errors[model] for model in found.models]
    wrong, sizes = found.known & ~found.correct, _sizes(found)
    law = law_of(wrong, sizes, found.correct, level=level, error=given, median=True)
    line = law.on_frontier or law.of_all
    if line is None:
        return _open(sizes.shape[1], level, law.why)
    unit = float(law.distortion[np.isfinite(law.distortion)].mean())
    value, low, high = (end / unit for end in line.slope)
    through = "the frontier" if line is law.on_frontier else "all models"
    said = f"Line through {through}, {line.models} models, R2 {line.r2:.2f}."
    return Measured(value, low, high, sizes.shape[1], level, caveat=said)


def families_apart(board: Board, cell: str, *, level: float = LEVEL) -> Measured:
    """S2: the share of the variance of log distortions between families, over that of chance.

    Against permutations of the models over the families.
    """
    found = board.cell(cell)
    family = _families(board, found.models)
    sizes = _sizes(found)
    once = Resampling(np.ones((1, sizes.shape[1]), np.float32))
    (middle,) = medians(once, sizes, found.correct)
    known = np.isfinite(middle) & (middle > 0)
    names, where, counts = np.unique(family[known], return_inverse=True, return_counts=True)
    if len(names) < 2 or (counts > 1).sum() < 2:
        return _open(sizes.shape[1], level, "Two families of two models each are needed at least.")
    logs = np.log(middle[known])
    generator = np.random.default_rng(0)
    orders = generator.permuted(np.tile(np.arange(len(logs)), (_PERMUTATIONS, 1)), axis=1)
    chance = np.array([_between(logs[order], where) for order in orders])
    value = _between(logs, where)
    farther = int((chance >= value - 1e-12).sum())
    low, high = value - np.quantile(chance, level), value - np.quantile(chance, 1 - level)
    p = (1 + farther) / (1 + _PERMUTATIONS)
    alone = ", ".join(names[counts == 1])
    said = f"{value:.0%} of the variance lies between families, p {p:.3g} by permutation."
    said += f" One model only: {alone}." if alone else ""
    mean = float(value - chance.mean())
    return Measured(mean, float(low), float(high), sizes.shape[1], level, sizes.shape[1], said)


def deeper(
    board: Board, cell: str, pairs: Sequence[tuple[str, str]], *, level: float = LEVEL
) -> Measured:
    """S3: on how many more images the deeper model of a pair needs the larger perturbation.

    The mean over pairs (deeper, shallower) of one family, on images that both classify correctly.
    """
    found, sizes = board.cell(cell), _sizes(board.cell(cell))
    one, other = (np.array([place_of(found, pair[side]) for pair in pairs]) for side in (0, 1))
    both = found.correct[one] & found.correct[other]
    sign = np.where(both, (sizes[one] > sizes[other]) * 1.0 - (sizes[one] < sizes[other]), 0.0)
    drawn = _drawn(sizes.shape[1], level)
    each = sign.sum(1) / both.sum(1)
    said = ", ".join(f"{a} over {b} {v:+.2f}" for (a, b), v in zip(pairs, each, strict=True))
    return _measured(each.mean(), drawn.means(sign, both).mean(1), sizes.shape[1], level, said)


def stripes(given: Crossed, sources: Sequence[str], *, level: float = LEVEL) -> Measured:
    """S4: by how much the lowest row mean of some sources exceeds the highest of the others."""
    mine = np.isin(given.models, sources)
    if not mine.any() or mine.all():
        raise UnknownNameError(f"the sources {', '.join(sources)} are none, or all, of the models")
    value, many = (_row_means(rates) for rates in _rates(given, level))
    return _measured(
        (value[:, mine].min(1) - value[:, ~mine].max(1))[0],
        many[:, mine].min(1) - many[:, ~mine].max(1),
        given.hit.shape[2],
        level,
    )


def within_families(given: Crossed, family: Mapping[str, str], *, level: float = LEVEL) -> Measured:
    """S5: mean transfer within families less that between families."""
    names = np.array([family[model] for model in given.models])
    same = names[:, None] == names
    inside = same & ~np.eye(len(names), dtype=bool)
    if not inside.any() or same.all():
        return _open(given.hit.shape[2], level, "No two families, or none with two models.")
    value, many = (
        rates[:, inside].mean(1) - rates[:, ~same].mean(1) for rates in _rates(given, level)
    )
    return _measured(value[0], many, given.hit.shape[2], level)


def in_order(matrices: Sequence[Crossed], *, level: float = LEVEL) -> Measured:
    """S6: the smallest step of mean transfer down a list, from what should transfer most."""
    _alike(matrices)
    both = [_rates(one, level) for one in matrices]
    value, many = (np.stack([_mean(pair[side]) for pair in both]) for side in (0, 1))
    steps, moved = value[:-1] - value[1:], many[:-1] - many[1:]
    said = "Mean transfer " + ", ".join(f"{one:.0%}" for one in value[:, 0]) + "."
    return _measured(steps.min(0)[0], moved.min(0), matrices[0].hit.shape[2], level, said)


def untargeted_above(untargeted: Crossed, targeted: Crossed, *, level: float = LEVEL) -> Measured:
    """S7: mean untargeted transfer less mean targeted transfer."""
    return in_order((untargeted, targeted), level=level)


def asymmetry(given: Crossed, source: str, target: str, *, level: float = LEVEL) -> Measured:
    """S8: transfer from one model to another less that in the other direction."""
    for name in (source, target):
        if name not in given.models:
            raise UnknownNameError(
                f"no model of the matrix is '{name}': {near(name, given.models)}"
            )
    s, t = (given.models.index(name) for name in (source, target))
    value, many = (rates[:, s, t] - rates[:, t, s] for rates in _rates(given, level))
    return _measured(value[0], many, given.hit.shape[2], level)


def no_measure(board: Board, confident: str, search: str, *, level: float = LEVEL) -> Measured:
    """S9: how far the rank correlation of failures at a high confidence with distortion is below
    0.8, from which on the one would stand for the other.
    """
    cell, found = board.cell(confident), board.cell(search)
    if cell.models != found.models:
        raise UnknownNameError(f"'{confident}' and '{search}' have other models")
    if len(cell.models) < LEAST:
        return _open(cell.known.shape[1], level, f"{LEAST} models are needed at least.")
    if not np.array_equal(cell.samples, found.samples):
        raise UnknownNameError(f"'{confident}' and '{search}' have other images")
    sizes, kept = _sizes(found), np.where(cell.correct, cell.left[:, 0], False).astype(float)
    drawn = _drawn(sizes.shape[1], level)
    once = Resampling(np.ones((1, sizes.shape[1]), np.float32))
    (value,), many = (
        np.array(
            [
                _rho(one, other)
                for one, other in zip(
                    draws.means(kept, cell.correct),
                    medians(draws, sizes, found.correct),
                    strict=True,
                )
            ]
        )
        for draws in (once, drawn)
    )
    said = f"Rank correlation {value:.2f} over {len(cell.models)} models."
    return _measured(MEASURES - value, MEASURES - many, sizes.shape[1], level, said)


# Boards and matrices.


def crossed_of(board: Board, cells: Mapping[str, str], white: str, attack: int = 0) -> Crossed:
    """What images crafted on each source do to all models, from the cells of a board.

    Parameters
    ----------
    board : Board
        The results.
    cells : mapping
        By the name of the source, the cell whose images were crafted on it.
    white : str
        The cell of the white-box attack, which has the diagonal.
    attack : int
        The place of the attack in all these cells.

    An image that the target misclassifies without an attack counts as fooled.
    """
    own, models = board.cell(white), tuple(cells)
    shape = (len(models), len(models), len(own.samples))
    hit, right = np.zeros(shape, bool), np.zeros(shape, bool)
    for s, source in enumerate(models):
        for t, target in enumerate(models):
            cell = own if s == t else board.cell(cells[source])
            if not np.array_equal(cell.samples, own.samples):
                raise UnknownNameError(f"'{cell.name}' and '{white}' have other images")
            place = place_of(cell, target)
            right[s, t] = cell.correct[place]
            hit[s, t] = cell.success[place, attack] | ~cell.correct[place]
    diagonal = np.arange(len(models))
    return Crossed(models, right[diagonal, diagonal], hit, right)


def _sizes(cell: BoardCell) -> Numbers:
    """The smallest perturbations, ``[models, images]``."""
    return np.asarray(cell.smallest)


def _families(board: Board, models: Sequence[str]) -> NDArray[np.str_]:
    tags = {model.name: model.tags.get(FAMILY, "") for model in board.models}
    missing = [model for model in models if not tags.get(model)]
    if missing:
        raise UnknownNameError(f"{', '.join(missing)} has no tag '{FAMILY}'")
    return np.array([tags[model] for model in models])


def _between(values: Numbers, where: NDArray[np.intp]) -> float:
    """The share of the variance that lies between groups."""
    counts = np.bincount(where)
    means = np.bincount(where, values) / counts
    whole = np.square(values - values.mean()).sum()
    return float((counts * np.square(means - values.mean())).sum() / whole) if whole > 0 else 0.0


def _rates(given: Crossed, level: float) -> tuple[Numbers, Numbers]:
    """The rates of transfer ``[1, sources, targets]``, and those of all resamples."""
    n, images = len(given.models), given.hit.shape[2]
    made = np.broadcast_to(given.made[:, None], given.hit.shape).reshape(n * n, images)
    hit = given.hit.reshape(n * n, images)
    once = Resampling(np.ones((1, images), np.float32))
    first, many = (draw.means(hit, made) for draw in (once, _drawn(images, level)))
    return (
        np.asarray(first, np.float64).reshape(-1, n, n),
        np.asarray(many, np.float64).reshape(-1, n, n),
    )


def _row_means(rates: Numbers) -> Numbers:
    """Means over the other targets of each source, ``[resamples, sources]``."""
    n = rates.shape[1]
    return np.asarray((rates.sum(2) - np.einsum("bii->bi", rates)) / (n - 1))


def _mean(rates: Numbers) -> Numbers:
    return np.asarray(_row_means(rates).mean(1))


def _alike(matrices: Sequence[Crossed]) -> None:
    first = matrices[0]
    for one in matrices:
        if one.models != first.models or one.hit.shape != first.hit.shape:
            raise UnknownNameError("the matrices have other models or images")


def _drawn(images: int, level: float) -> Resampling:
    return Resampling.of(images, resamples_of(level))


def _rho(one: NDArray[np.generic], other: NDArray[np.generic]) -> float:
    return rank_correlation(np.asarray(one, np.float64), np.asarray(other, np.float64))


def _measured(
    value: float, many: NDArray[np.generic], images: int, level: float, said: str = ""
) -> Measured:
    tails = ((1 - level) / 2, (1 + level) / 2)
    low, high = np.quantile(many.astype(np.float64), tails)
    return Measured(float(value), float(low), float(high), images, level, caveat=said)


def _open(images: int, level: float, why: str) -> Measured:
    """Nothing can be said: every effect is possible, and more images do not help."""
    return Measured(0.0, -np.inf, np.inf, images, level, needed=images, caveat=why)

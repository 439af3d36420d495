"""The claims S1 to S9 of Su et al. as effects, positive in the claimed direction.

Distortions are the medians over the images that a model classifies correctly, infinite where no
attack succeeded. Images are resampled for all models together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from besiege.core.errors import UnknownNameError, near
from besiege.metrics.frontier import LEAST, law_of, medians, rank_correlation
from besiege.metrics.paired import LEVEL, Difference, mcnemar, paired_interval
from besiege.metrics.resampling import Resampling, resamples_of
from besiege.studies.answers import Measured
from besiege.studies.su.reading import Sizes
from besiege.studies.su.transfer import Crossed

Numbers = NDArray[np.float64]
MEASURES = 0.8
"""A rank correlation from which on one figure stands for another (S9)."""
_PERMUTATIONS, _ROUNDING = 5000, 1e-12
SHOWN = 6
"""Parts of an effect that a sentence lists."""


def slope(
    found: Sizes, errors: Mapping[str, float] | None = None, *, level: float = LEVEL
) -> Measured:
    """S1: distortion rises with ln(error), relative to the mean distortion of the models.

    The line through all models: along a frontier distortion falls with accuracy by definition.
    The interval holds the differences from what chance gives these models in any other order, too.
    `errors` are published ones, by model.
    """
    given = None if errors is None else [errors[model] for model in found.models]
    wrong, sizes = found.known & ~found.correct, found.size
    _must_be_right_somewhere(found.models, found.among)
    law = law_of(wrong, sizes, found.among, level=level, error=given, median=True)
    line = law.of_all
    if line is None:
        return _open(sizes.shape[1], level, law.why)
    unit = float(law.distortion.mean())
    value, low, high = (end / unit for end in line.slope)
    away = np.log(law.error) - np.log(law.error).mean()
    chance = (law.distortion / unit)[_orders(len(away))] @ away / np.square(away).sum()
    least, most = _beyond(value, chance, (1 - level) / 2)
    said = f"Line through all {line.models} models, R2 {line.r2:.2f}."
    if law.on_frontier is not None:
        said += (
            f" Along the frontier, {law.on_frontier.models} models, where it rises by definition: "
            f"{law.on_frontier.slope[0] / unit:+.2f}."
        )
    if law.rank is not None:
        said += f" Spearman over all {len(law.error)}: {law.rank.value:+.2f}, p {law.rank.p:.3g}."
    # More images do not make more models.
    needed = sizes.shape[1] if least < low or most > high else None
    return Measured(value, min(low, least), max(high, most), sizes.shape[1], level, needed, said)


def families_apart(found: Sizes, family: Mapping[str, str], *, level: float = LEVEL) -> Measured:
    """S2: the share of the variance of log distortions between families, over that of chance.

    Against permutations of the models over the families.
    """
    names, images = np.array([family[model] for model in found.models]), found.size.shape[1]
    once = Resampling(np.ones((1, images), np.float32))
    (middle,) = medians(once, _endless(found), found.among)
    known = np.isfinite(middle) & (middle > 0)
    groups, where, counts = np.unique(names[known], return_inverse=True, return_counts=True)
    if len(groups) < 2 or (counts > 1).sum() < 2:
        return _open(images, level, "Two families of two models each are needed at least.")
    logs = np.log(middle[known])
    chance = np.array([_between(logs[order], where) for order in _orders(len(logs))])
    value = _between(logs, where)
    farther = int((chance >= value - _ROUNDING).sum())
    low, high = _beyond(value, chance, 1 - level)
    p = (1 + farther) / (1 + _PERMUTATIONS)
    alone = ", ".join(groups[counts == 1])
    said = f"{value:.0%} of the variance lies between families, p {p:.3g} by permutation."
    said += f" One model only: {alone}." if alone else ""
    mean = float(value - chance.mean())
    return Measured(mean, low, high, images, level, images, said)


def deeper(found: Sizes, pairs: Sequence[tuple[str, str]], *, level: float = LEVEL) -> Measured:
    """S3: on how many more images the deeper model of a pair needs the larger perturbation.

    The mean over pairs (deeper, shallower) of one family, on images that both classify correctly.
    """
    sizes, right = _endless(found), found.among
    one, other = (np.array([_place(pair[side], found.models) for pair in pairs]) for side in (0, 1))
    both = right[one] & right[other]
    if not both.any(1).all():
        raise UnknownNameError("no image is classified correctly by both models of a pair")
    sign = np.where(both, (sizes[one] > sizes[other]) * 1.0 - (sizes[one] < sizes[other]), 0.0)
    drawn = _drawn(sizes.shape[1], level)
    each = sign.sum(1) / both.sum(1)
    parts = [f"{a} over {b} {v:+.2f}" for (a, b), v in zip(pairs, each, strict=True)]
    many = np.nan_to_num(drawn.means(sign, both)).mean(1)
    return _measured(each.mean(), many, sizes.shape[1], level, f"{_listed(parts)}.")


def stripes(
    matrices: Sequence[Crossed], sources: Sequence[str], *, level: float = LEVEL
) -> Measured:
    """S4: by how much the lowest row mean of some sources exceeds the highest of the others.

    Of several attacks the least: the stripes are those of every attack.
    """
    _alike(matrices)
    mine = np.isin(matrices[0].models, sources)
    if not mine.any() or mine.all():
        raise UnknownNameError(f"the sources {', '.join(sources)} are none, or all, of the models")
    value, many, parts = np.inf, None, []
    for one in matrices:
        rows, drawn = (_row_means(rates) for rates in _rates(one, level))
        leads = [each[:, mine].min(1) - each[:, ~mine].max(1) for each in (rows, drawn)]
        best = one.models[int(rows[0].argmax())]
        share = float((drawn.argmax(1) == int(rows[0].argmax())).mean())
        parts.append(f"{best} leads in {share:.0%} of the resamples")
        value = min(value, float(leads[0][0]))
        many = leads[1] if many is None else np.minimum(many, leads[1])
    assert many is not None, "there is a matrix"
    return _measured(value, many, matrices[0].hit.shape[2], level, f"{_listed(parts)}.")


def within_families(given: Crossed, family: Mapping[str, str], *, level: float = LEVEL) -> Measured:
    """S5: mean transfer within families less that between families."""
    names = np.array([family[model] for model in given.models])
    same = names[:, None] == names
    inside = same & ~np.eye(len(names), dtype=bool)
    if not inside.any() or same.all():
        return _open(given.hit.shape[2], level, "No two families, or none with two models.")
    rates, drawn = _rates(given, level)
    value, many = (one[:, inside].mean(1) - one[:, ~same].mean(1) for one in (rates, drawn))
    said = f"{rates[0][inside].mean():.0%} within, {rates[0][~same].mean():.0%} between families."
    return _measured(value[0], many, given.hit.shape[2], level, said)


def in_order(
    matrices: Sequence[Crossed], words: Sequence[str] = (), *, level: float = LEVEL
) -> Measured:
    """S6: the smallest step of mean transfer down a list, from what should transfer most."""
    _alike(matrices)
    both = [_rates(one, level) for one in matrices]
    value, many = (np.stack([_mean(pair[side]) for pair in both]) for side in (0, 1))
    steps, moved = value[:-1] - value[1:], many[:-1] - many[1:]
    named = words or [""] * len(matrices)
    means = [f"{name} {one:.0%}".strip() for name, one in zip(named, value[:, 0], strict=True)]
    said = f"Mean transfer {', '.join(means)}."
    return _measured(steps.min(0)[0], moved.min(0), matrices[0].hit.shape[2], level, said)


def untargeted_above(untargeted: Crossed, targeted: Crossed, *, level: float = LEVEL) -> Measured:
    """S7: mean untargeted transfer less mean targeted transfer."""
    return in_order((untargeted, targeted), (), level=level)


def asymmetry(given: Crossed, source: str, target: str, *, level: float = LEVEL) -> Measured:
    """S8: transfer from one model to another less that in the other direction.

    On the images that both classify correctly (Tango's score interval).
    """
    s, t = _place(source, given.models), _place(target, given.models)
    both = given.made[s] & given.made[t]
    if not both.any():
        raise UnknownNameError(f"no image is classified correctly by '{source}' and '{target}'")
    there, back = given.hit[s, t][both], given.hit[t, s][both]
    change = Difference.of(there, back)
    only = change.only_first, change.only_second
    low, high = paired_interval(*only, change.count, level)
    said = (
        f"{source} to {target} {there.mean():.0%}, back {back.mean():.0%}, p {mcnemar(*only):.2g}."
    )
    return Measured(change.value, low, high, change.count, level, caveat=said)


def no_measure(confident: Sizes, found: Sizes, *, level: float = LEVEL) -> Measured:
    """S9: how far the rank correlation of failures at a high confidence with distortion is below
    0.8, from which on the one would stand for the other.
    """
    _must_be_right_somewhere(found.models, found.among)
    if confident.models != found.models:
        raise UnknownNameError(f"'{confident.name}' and '{found.name}' have other models")
    images = found.size.shape[1]
    if len(found.models) < LEAST:
        return _open(images, level, f"{LEAST} models are needed at least.")
    if not np.array_equal(confident.samples, found.samples):
        raise UnknownNameError(f"'{confident.name}' and '{found.name}' have other images")
    sizes, drawn = _endless(found), _drawn(images, level)
    among = confident.among
    kept = np.where(among, ~np.isfinite(confident.size), 0.0)
    once = Resampling(np.ones((1, images), np.float32))
    (value,), many = (
        np.array(
            [
                _rho(one, other)
                for one, other in zip(
                    draws.means(kept, among), medians(draws, sizes, found.among), strict=True
                )
            ]
        )
        for draws in (once, drawn)
    )
    said = f"Rank correlation {value:.2f} over {len(found.models)} models."
    return _measured(MEASURES - value, MEASURES - many, images, level, said, shares=False)


# Sizes and matrices.


def _endless(found: Sizes) -> Numbers:
    """The distances, infinite where unknown: such images are not counted."""
    return np.where(np.isnan(found.size), np.inf, found.size)


def _must_be_right_somewhere(models: Sequence[str], right: NDArray[np.bool_]) -> None:
    """Refuse a model without an image that it classifies correctly: nothing was made on it."""
    for name, mine in zip(models, right, strict=True):
        if not mine.any():
            raise UnknownNameError(f"'{name}' classifies none of these images correctly")


def _place(model: str, models: Sequence[str]) -> int:
    if model not in models:
        raise UnknownNameError(f"no model here is '{model}': {near(model, models)}")
    return models.index(model)


def _orders(models: int) -> NDArray[np.intp]:
    """Models in orders of chance, ``[permutations, models]``."""
    generator = np.random.default_rng(0)
    one = np.tile(np.arange(models), (_PERMUTATIONS, 1))
    return np.asarray(generator.permuted(one, axis=1))


def _beyond(value: float, chance: Numbers, tail: float) -> tuple[float, float]:
    """How far a value is from both tails of chance; infinitely where it has none so thin.

    What only rounding tells apart is equal: the order of the models themselves is one of chance.
    """
    low, high = value - np.quantile(chance, 1 - tail), value - np.quantile(chance, tail)
    most, least = (np.abs(chance - end) < _ROUNDING for end in (chance.max(), chance.min()))
    return (
        -np.inf if most.mean() > tail else float(low) - _ROUNDING,
        np.inf if least.mean() > tail else float(high) + _ROUNDING,
    )


def _between(values: Numbers, where: NDArray[np.intp]) -> float:
    """The share of the variance that lies between groups."""
    counts = np.bincount(where)
    means = np.bincount(where, values) / counts
    whole = np.square(values - values.mean()).sum()
    return float((counts * np.square(means - values.mean())).sum() / whole) if whole > 0 else 0.0


def _rates(given: Crossed, level: float) -> tuple[Numbers, Numbers]:
    """The rates of transfer ``[1, sources, targets]``, and those of all resamples."""
    n, images = len(given.models), given.hit.shape[2]
    _must_be_right_somewhere(given.models, given.made)
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
    if not matrices:
        raise UnknownNameError("there is no matrix of transfer")
    first = matrices[0]
    for one in matrices:
        if one.models != first.models or one.hit.shape != first.hit.shape:
            raise UnknownNameError("the matrices have other models or images")


def _drawn(images: int, level: float) -> Resampling:
    return Resampling.of(images, resamples_of(level))


def _rho(one: NDArray[np.generic], other: NDArray[np.generic]) -> float:
    return rank_correlation(np.asarray(one, np.float64), np.asarray(other, np.float64))


def _listed(parts: Sequence[str]) -> str:
    more = f", and {len(parts) - SHOWN} more" if len(parts) > SHOWN else ""
    return ", ".join(parts[:SHOWN]) + more


def _measured(
    value: float,
    many: NDArray[np.generic],
    images: int,
    level: float,
    said: str = "",
    *,
    shares: bool = True,
) -> Measured:
    """An effect with its interval; the two-sided p-value is that of the resamples.

    Resamples of images that all behave alike do not differ. What no image showed may still befall
    a share of others, of `shares`: one that ``-ln(tail) / images`` would hardly ever stay unseen.
    """
    tail = (1 - level) / 2
    drawn = many.astype(np.float64)
    if (unknown := np.isnan(drawn)).mean() > tail:
        return _open(images, level, f"{said} A model is correct on too few images to resample.")
    drawn = drawn[~unknown]
    low, high = (float(end) for end in np.quantile(drawn, (tail, 1 - tail)))
    unseen = -np.log(tail) / images if shares else 0.0
    low, high = min(low, value - unseen), max(high, value + unseen)
    least = min((drawn <= 0).mean(), (drawn >= 0).mean())
    drawn_p, unseen_p = 2 * float(least), 2 * np.exp(-images * abs(value)) if shares else 0.0
    p = min(1.0, max(drawn_p, unseen_p, 1 / len(drawn)))
    words = f"p {p:.2g}." if p > 1 / len(drawn) else f"p below {p:.1g}."
    return Measured(float(value), low, high, images, level, caveat=f"{said} {words}".strip())


def _open(images: int, level: float, why: str) -> Measured:
    """Nothing can be said: every effect is possible, and more images do not help."""
    return Measured(0.0, -np.inf, np.inf, images, level, needed=images, caveat=why)

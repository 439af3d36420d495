"""Maxima of samples as draws of a reverse Weibull law, and its end point.

The largest of many bounded numbers follows a reverse Weibull law: with the end point ``a``, the
shape ``c`` and the scale ``s``, ``P(X <= x) = exp(-((a - x) / s)^c)`` for ``x <= a``. CLEVER takes
its end point as the largest gradient near an image.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from besiege.core.errors import InputError

Numbers = NDArray[np.float64]
Mask = NDArray[np.bool_]

LEAST = 10
"""The fewest maxima that a fit takes: three parameters from fewer say nothing."""
SAME = 1e-6
"""Maxima that differ by less than this share of the largest differ by rounding only."""
_NEAREST, _FARTHEST = 1e-6, 1e3
"""Where the end point is searched beyond the largest maximum, in units of the range of maxima."""
_GRID, _SECTIONS, _NEWTON, _POLISH = 24, 34, 5, 30
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, eq=False)
class ReverseWeibull:
    """Fits by maximum likelihood, one for every row of maxima.

    Attributes
    ----------
    location : array
        The end points; the largest maximum itself where all maxima are equal.
    shape, scale : array
        The other parameters; NaN where all maxima are equal.
    p : array
        The p-values of Kolmogorov and Smirnov's test. Since the parameters were fitted to the same
        maxima, p is larger than that of a law given before: a small one speaks against the fit, a
        large one hardly for it.
    constant : array of bool
        Whether all maxima are equal, as on a linear model: then the end point is exact.
    endless : array of bool
        Whether the likelihood is largest at the farthest end point that is tried: the maxima do not
        show an end, and the end point is a lower limit.
    """

    location: Numbers
    shape: Numbers
    scale: Numbers
    p: Numbers
    constant: Mask
    endless: Mask

    def log_likelihood(self, maxima: ArrayLike) -> Numbers:
        """The logarithm of the likelihood of each row of maxima."""
        short = self.location[:, None] - np.atleast_2d(np.asarray(maxima, np.float64))
        c, s = self.shape[:, None], self.scale[:, None]
        logs = np.log(short / s)
        return np.asarray((np.log(c / s) + (c - 1) * logs - np.exp(c * logs)).sum(1))


def fit_reverse_weibull(maxima: ArrayLike) -> ReverseWeibull:
    """Fit a reverse Weibull law to every row of ``[rows, batches]`` by maximum likelihood.

    For an end point ``a``, ``a - x`` is Weibull: its best shape solves one monotone equation, and
    its best scale follows. The end point is then searched, in the logarithm of its distance from
    the largest maximum. Shapes are at least 1: below, the likelihood is unbounded at the largest
    maximum, which is then no estimate.

    Parameters
    ----------
    maxima : array of shape (rows, batches)
        Finite numbers, at least 10 in each row.

    Examples
    --------
    >>> draws = 3 - np.random.default_rng(0).weibull(4.0, (1, 2000))
    >>> found = fit_reverse_weibull(draws)
    >>> bool(abs(found.location[0] - 3) < 0.1), bool(found.p[0] > 0.05)
    (True, True)

    References
    ----------
    Weng et al. 2018, "Evaluating the robustness of neural networks: an extreme value theory
    approach"; Smith 1985, Biometrika 72.
    """
    values = np.atleast_2d(np.asarray(maxima, np.float64))
    if values.ndim != 2 or values.shape[1] < LEAST:
        raise InputError(
            f"{values.shape[-1]} maxima are too few to fit an end point: use {LEAST} batches at "
            "least"
        )
    if not np.isfinite(values).all():
        raise InputError("maxima must be finite numbers: the gradients of the model are not")
    top = values.max(1)
    span = top - values.min(1)
    constant = span <= SAME * np.abs(top)
    found = ReverseWeibull(
        top.copy(),
        np.full(len(values), np.nan),
        np.full(len(values), np.nan),
        np.full(len(values), np.nan),
        constant,
        np.zeros(len(values), bool),
    )
    rows = np.flatnonzero(~constant)
    if len(rows):
        # In units of the range, from the largest maximum down: 0 to 1 in every row.
        below = (top[rows, None] - values[rows]) / span[rows, None]
        beyond, endless = _end(below)
        shape, scale = _shape_and_scale(below + np.exp(beyond)[:, None])
        found.location[rows] = top[rows] + np.exp(beyond) * span[rows]
        found.shape[rows], found.scale[rows] = shape, scale * span[rows]
        found.p[rows] = _kolmogorov(below + np.exp(beyond)[:, None], shape, scale)
        found.endless[rows] = endless
    return found


def _end(below: Numbers) -> tuple[Numbers, Mask]:
    """The logarithm of how far the end point is beyond the largest maximum, and where none ends."""
    grid = np.linspace(np.log(_NEAREST), np.log(_FARTHEST), _GRID)
    shape = np.ones(len(below))
    table = np.empty((_GRID, len(below)))
    for place, at in enumerate(grid):  # neighbours have similar shapes: few steps from the last one
        table[place], shape = _profile(below, np.full(len(below), at), shape)
    best = table.argmax(0)
    low = grid[np.maximum(best - 1, 0)]
    high = grid[np.minimum(best + 1, _GRID - 1)]
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    start = _shape(below + np.exp(grid[best])[:, None], np.ones(len(below)), _POLISH)
    one, other = _profile(below, left, start)[0], _profile(below, right, start)[0]
    for _ in range(_SECTIONS):
        closer = one > other  # the maximum lies left of `right`
        low, high = np.where(closer, low, left), np.where(closer, right, high)
        new = np.where(closer, high - _GOLDEN * (high - low), low + _GOLDEN * (high - low))
        value, start = _profile(below, new, start)
        one, other = np.where(closer, value, other), np.where(closer, one, value)
        left, right = np.where(closer, new, right), np.where(closer, left, new)
    return np.where(one > other, left, right), best == _GRID - 1


def _profile(below: Numbers, beyond: Numbers, start: Numbers) -> tuple[Numbers, Numbers]:
    """The largest mean log-likelihood for an end point, and the shape that has it."""
    logs = np.log(below + np.exp(beyond)[:, None])
    most = logs.max(1, keepdims=True)
    logs = logs - most  # powers of numbers up to 1 do not overflow
    shape = _newton(logs, start, _NEWTON)
    power = np.log(np.exp(shape[:, None] * logs).mean(1))
    value = np.log(shape) - power + (shape - 1) * logs.mean(1) - 1
    return value - most[:, 0], shape


def _shape(short: Numbers, start: Numbers, steps: int) -> Numbers:
    logs = np.log(short)
    return _newton(logs - logs.max(1, keepdims=True), start, steps)


def _newton(logs: Numbers, start: Numbers, steps: int) -> Numbers:
    """The best shape of Weibull draws with these logarithms, at least 1.

    It solves ``sum(y^c log y) / sum(y^c) - 1 / c = mean(log y)``, whose left side rises with c.
    """
    mean, shape = logs.mean(1), start
    for _ in range(steps):
        weight = np.exp(shape[:, None] * logs)
        total = weight.sum(1)
        weight *= logs
        first = weight.sum(1) / total
        weight *= logs
        second = weight.sum(1) / total - first**2
        height = first - 1 / shape - mean
        moved = shape - height / (np.maximum(second, 0) + shape**-2.0)
        shape = np.maximum(np.clip(moved, shape / 3, 4 * shape), 1.0)
    return shape


def _shape_and_scale(short: Numbers) -> tuple[Numbers, Numbers]:
    """The best shape and scale of every row, to the last digits."""
    shape = _shape(short, np.ones(len(short)), _POLISH)
    most = short.max(1)
    mean = np.exp(shape[:, None] * np.log(short / most[:, None])).mean(1)
    return shape, most * mean ** (1 / shape)


def _kolmogorov(short: Numbers, shape: Numbers, scale: Numbers) -> Numbers:
    """The p-value of the largest distance between the law and the distribution of the maxima."""
    from scipy.stats import kstwo  # slow to import, and reading a run does without

    ascending = np.sort(short, axis=1)[:, ::-1]  # the maxima themselves ascend
    law = np.exp(-((ascending / scale[:, None]) ** shape[:, None]))
    count = short.shape[1]
    steps = np.arange(count + 1) / count
    distance = np.maximum((steps[1:] - law).max(1), (law - steps[:-1]).max(1))
    return np.asarray(kstwo.sf(distance, count))

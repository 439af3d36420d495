"""Two models on the same samples: the difference of their accuracies, and whether it is real.

A comparison on the same samples is decided by the samples on which the two differ; the others say
nothing about the difference, and an interval of two separate rates would be too wide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from besiege.core.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Numbers = NDArray[np.float64]

LEVEL, ALPHA, POWER = 0.95, 0.05, 0.9
_HALVINGS = 60


@dataclass(frozen=True)
class Difference:
    """The difference of two accuracies on the same samples: that of the first less the second's.

    Attributes
    ----------
    value, low, high : float
        The difference and its 95 % interval (Tango's score interval).
    p : float
        The exact two-sided p-value of McNemar's test that there is no difference. An exact test is
        a little stricter than an interval that covers 95 % on average: with few differing samples
        the interval may leave out 0 where p is still above 0.05.
    only_first, only_second : int
        Samples that only the first, and only the second, classifies correctly under attack.
    count : int
        Number of samples.

    Examples
    --------
    >>> one = Difference.of([1, 1, 1, 1, 1, 1, 0, 1], [0, 0, 0, 0, 0, 0, 0, 1])
    >>> one.value, one.only_first, round(one.p, 4)
    (0.75, 6, 0.0312)
    """

    value: float
    low: float
    high: float
    p: float
    only_first: int
    only_second: int
    count: int

    @classmethod
    def of(cls, first: ArrayLike, second: ArrayLike) -> Difference:
        """The difference of two vectors of outcomes, aligned by sample."""
        import numpy as np  # slow to import, and kept figures do without

        one, other = np.asarray(first, bool), np.asarray(second, bool)
        if one.shape != other.shape or one.ndim != 1 or not one.size:
            raise InputError(
                f"outcomes of the shapes {one.shape} and {other.shape} are not those of the same "
                "samples: give one value per sample, in the same order"
            )
        return cls.counted(int((one & ~other).sum()), int((other & ~one).sum()), one.size)

    @classmethod
    def counted(cls, only_first: int, only_second: int, count: int) -> Difference:
        """The difference by the numbers of samples on which the two differ."""
        low, high = paired_interval(only_first, only_second, count)
        p = mcnemar(only_first, only_second)
        value = (only_first - only_second) / count
        return cls(value, low, high, p, only_first, only_second, count)


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p-value of McNemar's test.

    Without a difference each of the ``n`` samples on which the two differ is a fair coin, so p is
    twice the binomial tail ``P(X <= min)`` of ``n`` tosses, at most 1.

    Examples
    --------
    >>> [round(mcnemar(*pair), 4) for pair in ((5, 0), (6, 0), (30, 15), (60, 40))]
    [0.0625, 0.0312, 0.0357, 0.0569]

    References
    ----------
    McNemar 1947.
    """
    from scipy.special import betainc  # slow to import

    differing, fewer = only_first + only_second, min(only_first, only_second)
    if differing == 0:
        return 1.0
    # P(X <= k) of a binomial variable with n tosses at 1/2 is I_{1/2}(n - k, k + 1).
    return float(min(1.0, 2 * betainc(differing - fewer, fewer + 1, 0.5)))


def paired_interval(
    only_first: int, only_second: int, count: int, level: float = LEVEL
) -> tuple[float, float]:
    """The score interval of a difference of paired proportions.

    It holds the differences ``d`` that the score test does not reject. With ``b`` and ``c`` samples
    that only the first and only the second has, of ``n``, that test compares
    ``(b - c - n d)^2`` with ``z^2 n (2 q + d (1 - d))``, where ``q`` is the most likely probability
    of the second kind for that ``d``. It covers 95 % where a handful of samples differ, and more
    where fewer do.

    Examples
    --------
    >>> low, high = paired_interval(7, 1, 100)
    >>> round(low, 3), round(high, 3)
    (0.006, 0.129)

    References
    ----------
    Tango 1998, Statistics in Medicine 17.
    """
    if count < 1 or min(only_first, only_second) < 0 or only_first + only_second > count:
        raise InputError(
            f"{only_first} and {only_second} differing samples of {count} cannot be: give counts"
        )
    b, c, n, z = float(only_first), float(only_second), float(count), normal_quantile(level)

    def deviates(d: float) -> bool:
        return bool(_deviates(b, c, n, d, z))

    value = (b - c) / n
    return _end(deviates, value, -1.0), _end(deviates, value, 1.0)


def paired_intervals(
    only_first: ArrayLike, only_second: ArrayLike, count: ArrayLike, z: ArrayLike
) -> tuple[Numbers, Numbers]:
    """`paired_interval` of many differences at once; `z` takes the place of the level's quantile.

    Examples
    --------
    >>> low, high = paired_intervals([7, 0], [1, 0], 100, 1.959964)
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.006, -0.037], [0.129, 0.037])
    """
    import numpy as np

    given = (np.asarray(each, dtype=np.float64) for each in (only_first, only_second, count, z))
    b, c, n, z = np.broadcast_arrays(*given)
    ends = []
    for end in (-1.0, 1.0):
        inside, outside = (b - c) / n, np.full(b.shape, end)
        whole = ~_deviates(b, c, n, outside, z)
        for _ in range(_HALVINGS):
            middle = (inside + outside) / 2
            beyond = _deviates(b, c, n, middle, z)
            inside, outside = np.where(beyond, inside, middle), np.where(beyond, middle, outside)
        ends.append(np.where(whole, end, inside))
    return ends[0], ends[1]


def _deviates(b: Any, c: Any, n: Any, d: Any, z: Any) -> Any:
    """Whether the score test rejects the difference `d`, of numbers or of arrays."""
    return abs(b - c - n * d) > z * _root(n * score_variance(b, c, n, d))


def score_variance(b: Any, c: Any, n: Any, d: Any) -> Any:
    """The variance of one sample's difference by the score test of a true difference `d`.

    Of numbers or of arrays, by the counts of `paired_interval`. It depends on shares only: the test
    with `k` times as many samples has the same.
    """
    linear = (2 * n - b + c) * d - b - c
    q = (_root(linear * linear + 8 * n * c * d * (1 - d)) - linear) / (4 * n)
    return 2 * q + d * (1 - d)


def _root(square: Any) -> Any:
    """The square root; rounding may leave a square slightly below 0."""
    return ((square + abs(square)) / 2) ** 0.5


def _end(is_outside: Callable[[float], bool], inside: float, outside: float) -> float:
    """The end of an interval between a point inside it and one that may be outside."""
    if not is_outside(outside):
        return outside
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if is_outside(middle) else (middle, outside)
    return inside


def normal_quantile(level: float) -> float:
    """How many standard errors to both sides hold this share of a normal distribution.

    Examples
    --------
    >>> round(normal_quantile(0.95), 4)
    1.96
    """
    return NormalDist().inv_cdf((1 + level) / 2)  # importing that of scipy takes half a second


def holm(ps: Sequence[float]) -> list[float]:
    """P-values corrected for the number of comparisons, in the same order.

    The smallest is multiplied by how many there are, the next by one less, and so on; none is
    smaller than one before it. The chance that any true difference of zero gets one below a level
    is then at most that level.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]

    References
    ----------
    Holm 1979.
    """
    import numpy as np

    order = np.argsort(ps, kind="stable")
    corrected = np.empty(len(ps))
    factors = np.arange(len(ps), 0, -1)
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(np.asarray(ps)[order] * factors))
    return [float(p) for p in corrected]


def benjamini_hochberg(ps: Sequence[float]) -> list[float]:
    """P-values corrected for a large table of comparisons, in the same order.

    The largest stays, the next is multiplied by ``m / (m - 1)``, and so on up to ``m`` for the
    smallest of ``m``; none is larger than one after it. Of the differences with a value below 0.05,
    about 5 % at most are false on average. Use `holm` for a few comparisons that were declared
    before: it limits the chance of a single false one.

    Examples
    --------
    >>> benjamini_hochberg([0.01, 0.04, 0.03])
    [0.03, 0.04, 0.04]

    References
    ----------
    Benjamini and Hochberg 1995.
    """
    import numpy as np

    order = np.argsort(ps, kind="stable")[::-1]
    corrected = np.empty(len(ps))
    factors = len(ps) / np.arange(len(ps), 0, -1)
    corrected[order] = np.minimum(1.0, np.minimum.accumulate(np.asarray(ps)[order] * factors))
    return [float(p) for p in corrected]


def samples_needed(difference: Difference, comparisons: int = 1) -> int | None:
    """About how many samples would show a difference of this size, with 90 % power.

    None where the two do not differ at all, so that no number can be given. The level of 5 % is
    divided by the number of comparisons. For McNemar's test with a continuity correction.

    Examples
    --------
    >>> samples_needed(Difference.counted(7, 1, 100))
    262

    References
    ----------
    Miettinen 1968; the correction is that of Fleiss et al. 2003.
    """
    size = abs(difference.value)
    if size == 0:
        return None
    differing = (difference.only_first + difference.only_second) / difference.count
    level = (1 - LEVEL) / comparisons
    spread = normal_quantile(1 - level) * math.sqrt(differing)
    spread += NormalDist().inv_cdf(POWER) * math.sqrt(max(differing - size * size, 0.0))
    plain = (spread / size) ** 2
    return math.ceil(plain / 4 * (1 + math.sqrt(1 + 4 / (plain * size))) ** 2)

"""Exact binomial confidence intervals of rates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from besiege.core.errors import InputError

Numbers = NDArray[np.float64]


def clopper_pearson(successes: int, count: int, level: float = 0.95) -> tuple[float, float]:
    """The exact interval of a binomial rate (Clopper and Pearson 1934).

    With a = 1 - level, k successes of n: low = BetaInv(a/2; k, n - k + 1), or 0 when k = 0;
    high = BetaInv(1 - a/2; k + 1, n - k), or 1 when k = n. It covers the choice of images for
    this attack; it does not cover the difference to stronger attacks.

    Parameters
    ----------
    successes, count : int
        k of n, with 0 <= k <= n and n >= 1.
    level : float
        Coverage, between 0 and 1.

    Returns
    -------
    (float, float)
        Lowest and highest rate, both within [0, 1].

    Examples
    --------
    >>> low, high = clopper_pearson(500, 1000)
    >>> f"{low:.4f} {high:.4f}"
    '0.4685 0.5315'
    """
    if count < 1 or not 0 <= successes <= count:
        raise InputError(
            f"{successes} of {count} is no rate: give 0 <= successes <= count, count >= 1"
        )
    if not 0 < level < 1:
        raise InputError(f"the level is {level}, but coverage is between 0 and 1, such as 0.95")
    low, high = exact_intervals(np.asarray(successes), count, level)
    return float(low), float(high)


def exact_intervals(
    hits: NDArray[np.int64], count: int | NDArray[np.int64], level: float | Numbers = 0.95
) -> tuple[Numbers, Numbers]:
    """The intervals of `clopper_pearson` of many counts at once, of one total or of one each."""
    from scipy.special import betaincinv  # slow to import, and kept figures do without

    hits = np.asarray(hits)
    tail = (1 - level) / 2
    misses = count - hits
    with np.errstate(all="ignore"):
        low = np.where(hits > 0, betaincinv(np.maximum(hits, 1), misses + 1, tail), 0.0)
        high = np.where(misses > 0, betaincinv(hits + 1, np.maximum(misses, 1), 1 - tail), 1.0)
    return low, high


def count_for(share: float, half: float, level: float = 0.95) -> int:
    """About how many samples give an interval of ``half`` to each side of a share.

    The exact interval at that share, averaged over both sides; rounded up to two digits, since the
    share of other samples is not known better.

    Examples
    --------
    >>> count_for(0.5, 0.03), count_for(0.5, 0.01), count_for(0.0, 0.01)
    (1100, 9800, 190)
    """
    if not 0 < half < 0.5:
        raise InputError(f"the half width is {half}, but it must be between 0 and 0.5")

    def too_few(count: int) -> bool:
        low, high = clopper_pearson(round(share * count), count, level)
        return high - low > 2 * half

    below, above = 0, 1
    while too_few(above):
        below, above = above, 2 * above
    while above - below > max(1, above // 1000):
        middle = (below + above) // 2
        below, above = (middle, above) if too_few(middle) else (below, middle)
    return two_digits(above)


def two_digits(count: int) -> int:
    """A number rounded up to two digits.

    Examples
    --------
    >>> two_digits(1034), two_digits(97)
    (1100, 97)
    """
    step = int(10 ** max(0, len(str(count)) - 2))
    return -(-count // step) * step


def round_numbers(low: float, high: float, about: int) -> list[float]:
    """Round numbers that divide a range into about `about` parts.

    Examples
    --------
    >>> round_numbers(0, 40, 4)
    [0.0, 10.0, 20.0, 30.0, 40.0]
    """
    span = high - low
    if not span > 0:
        return [low]
    raw = span / max(about, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(m for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


@dataclass(frozen=True, repr=False)
class Rate:
    """A share of a number of samples, with its interval: ``hits`` of ``count``.

    It compares with numbers, and with other rates, by its value; `at_least` compares the lower end
    of its interval. ``float(rate)`` is its value, and a format such as ``f"{rate:.3f}"`` is that of
    the value.

    Two rates are equal if all their fields are: 5 of 10 is not 50 of 100, though neither is
    smaller, and both equal 0.5.

    Examples
    --------
    >>> rate = Rate.of(500, 1000)
    >>> print(rate)
    50.0 % [46.9, 53.1]
    >>> rate > 0.45, rate == 0.5, float(rate), f"{rate:.3f}"
    (True, True, 0.5, '0.500')
    >>> rate.at_least(0.48)
    50.0 % [46.9, 53.1]: the lower limit 46.9 % is below 48 %
    """

    value: float
    low: float
    high: float
    count: int
    hits: int
    about = ""  # what `at_least` prints beside the rate; a field of `MeasuredRate` only

    @classmethod
    def of(cls, successes: int, count: int, level: float = 0.95) -> Rate:
        """The rate of successes in `count`, with its Clopper-Pearson interval."""
        low, high = clopper_pearson(successes, count, level)
        return cls(successes / count, low, high, count, successes)

    def at_least(self, share: float) -> AtLeast:
        """Whether the lower end of the interval is at least `share`, a number from 0 to 1.

        The lower end, not the value: with few samples a good value may be luck. The result is true
        or false, and prints the reason. ``rate >= share`` compares the value.
        """
        if not 0 <= share <= 1:
            hint = f": write {share / 100:g} for {share:g} %" if 1 < share <= 100 else ""
            raise InputError(f"the share is {share}, but shares are numbers from 0 to 1{hint}")
        return AtLeast(self, share, about=self.about)

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"

    def __repr__(self) -> str:
        return f"{self} of {self.count:,}"

    def __format__(self, form: str) -> str:
        return format(self.value, form) if form else str(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Rate):
            return self._fields() == other._fields()
        return self.value == other if isinstance(other, Real) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.value)  # as that of the number it equals

    def __lt__(self, other: Rate | float) -> bool:
        return self.value < _value(other) if isinstance(other, Rate | Real) else NotImplemented

    def __le__(self, other: Rate | float) -> bool:
        return self.value <= _value(other) if isinstance(other, Rate | Real) else NotImplemented

    def __gt__(self, other: Rate | float) -> bool:
        return self.value > _value(other) if isinstance(other, Rate | Real) else NotImplemented

    def __ge__(self, other: Rate | float) -> bool:
        return self.value >= _value(other) if isinstance(other, Rate | Real) else NotImplemented

    def _fields(self) -> tuple[float, ...]:
        return self.value, self.low, self.high, self.count, self.hits


@dataclass(frozen=True, eq=False, repr=False)
class MeasuredRate(Rate):
    """A rate that knows where it is from: `at_least` prints its cost and its page, too."""

    about: str = ""


def _value(other: Rate | float) -> float:
    return other.value if isinstance(other, Rate) else other


@dataclass(frozen=True, repr=False)
class AtLeast:
    """Whether a rate reaches a share: true or false, and printed with the reason.

    Attributes
    ----------
    rate : Rate
        The rate.
    share : float
        The share it must reach, from 0 to 1.
    point : bool
        Whether the value decides; otherwise the lower end of the interval does.
    about : str
        What else to print.

    Examples
    --------
    >>> found = AtLeast(Rate.of(450, 1000), 0.45, point=True)
    >>> bool(found), str(found)
    (True, '45.0 % [41.9, 48.1]: the value 45.0 % is at least 45 %')
    """

    rate: Rate
    share: float
    point: bool = False
    about: str = ""

    def __bool__(self) -> bool:
        return (self.rate.value if self.point else self.rate.low) >= self.share

    @property
    def reason(self) -> str:
        """The comparison in words, with as many digits as show it."""
        what, compared = (
            ("value", self.rate.value) if self.point else ("lower limit", self.rate.low)
        )
        verb = "is at least" if self else "is below"
        return f"the {what} {_percent(compared, self.share)} {verb} {100 * self.share:g} %"

    def __repr__(self) -> str:
        return f"{self.rate}: {self.reason}" + (f"; {self.about}" if self.about else "")


def _percent(value: float, than: float) -> str:
    """A share in percent, rounded such that it compares with another as the share itself does."""
    digits = (digits for digits in range(1, 16) if _agrees(value, than, digits))
    return f"{100 * value:.{next(digits, 16)}f} %"


def _agrees(value: float, than: float, digits: int) -> bool:
    return (round(100 * value, digits) >= round(100 * than, 12)) == (value >= than)

"""Exact binomial confidence intervals of rates."""

from __future__ import annotations

from dataclasses import dataclass

from besiege.core.errors import InputError


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
    from scipy.special import betaincinv  # slow to import, and kept figures do without

    tail = (1 - level) / 2
    failures = count - successes
    low = float(betaincinv(successes, failures + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, failures, 1 - tail)) if failures else 1.0
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
    step = int(10 ** max(0, len(str(above)) - 2))
    return -(-above // step) * step


@dataclass(frozen=True)
class Rate:
    """A share of a number of samples, with its interval: ``hits`` of ``count``.

    Examples
    --------
    >>> str(Rate.of(500, 1000))
    '50.0 % [46.9, 53.1]'
    """

    value: float
    low: float
    high: float
    count: int
    hits: int

    @classmethod
    def of(cls, successes: int, count: int, level: float = 0.95) -> Rate:
        """The rate of successes in `count`, with its Clopper-Pearson interval."""
        low, high = clopper_pearson(successes, count, level)
        return cls(successes / count, low, high, count, successes)

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"

"""Answers to claims: yes, no, cannot tell or not run, and what they rest on."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Literal

from besiege.core.errors import InputError
from besiege.metrics.intervals import two_digits
from besiege.metrics.paired import LEVEL, POWER, normal_quantile

Verdict = Literal["yes", "no", "cannot tell", "not run"]


@dataclass(frozen=True)
class Measured:
    """What a run says about a claim.

    Attributes
    ----------
    value, low, high : float
        The effect with its interval, positive in the claimed direction.
    count : int
        Number of images, or of what `unit` says.
    level : float
        The level of the interval, 0.95 for a single claim.
    needed : int, optional
        About how many images would tell; by default by the width of the interval.
    caveat : str
        What limits the answer.
    unit : str
        What the effect was measured on: claims about models, or about attacks, count these.
    """

    value: float
    low: float
    high: float
    count: int
    level: float = LEVEL
    needed: int | None = None
    caveat: str = ""
    unit: str = "images"


@dataclass(frozen=True)
class Answer:
    """The answer to a claim.

    Attributes
    ----------
    id, claim : str
        The claim.
    verdict : str
        ``yes``, ``no``, ``cannot tell`` or ``not run``; see `decide`.
    smallest, denied : float
        The smallest effect that the claim means, and the one that it denies, usually 0.
    effect : Measured, optional
        What was measured; None where the claim was not run.
    needed : int, optional
        About how many images, or what the effect was measured on, would tell where these cannot.
    paper : str
        The value of the publication.
    caveat : str
        What limits the answer, or why it was not run.
    """

    id: str
    claim: str
    verdict: Verdict
    smallest: float
    denied: float = 0.0
    effect: Measured | None = None
    needed: int | None = None
    paper: str = ""
    caveat: str = ""

    @property
    def unit(self) -> str:
        """What the effect was measured on, such as images."""
        return "images" if self.effect is None else self.effect.unit

    def plain(self) -> dict[str, Any]:
        """The answer as JSON."""
        return asdict(self)


def level_of_each(claims: int) -> float:
    """The level of each interval, such that those of all claims hold together with 95 %.

    ``1 - 0.05 / m`` of `m` claims (Bonferroni). A verdict is false only where the interval misses
    the true effect, so any of them is false in at most 5 % of all experiments.

    Examples
    --------
    >>> level_of_each(1), level_of_each(10)
    (0.95, 0.995)
    """
    return 1 - (1 - LEVEL) / claims


def decide(low: float, high: float, smallest: float, *, denied: float = 0.0) -> Verdict:
    """Whether an interval says that an effect is there.

    Parameters
    ----------
    low, high : float
        The interval of the effect, positive in the claimed direction, of the level
        `level_of_each`.
    smallest : float
        The smallest effect that the claim means. One that is there and smaller is a ``no``.
    denied : float
        The effect that the claim denies, below `smallest`: usually none.

    Returns
    -------
    str
        ``no`` if the interval excludes the smallest effect, and so all that the claim means;
        ``yes`` if it excludes the denied one; ``cannot tell`` otherwise.

    Examples
    --------
    >>> decide(0.02, 0.08, 0.01), decide(-0.01, 0.005, 0.01), decide(-0.01, 0.05, 0.01)
    ('yes', 'no', 'cannot tell')
    """
    if not low <= high or not denied < smallest:
        raise InputError(
            f"the interval [{low}, {high}] and the effects {denied} and {smallest} decide nothing: "
            "give each pair in ascending order"
        )
    if high < smallest:
        return "no"
    return "yes" if low > denied else "cannot tell"


def images_needed(measured: Measured, smallest: float, denied: float = 0.0) -> int:
    """About how many images would tell, nine times of ten, if the effect is as measured.

    The interval shrinks with the root of the number of images. It must leave out the denied
    effect, or the smallest one, whichever is farther from the measured one.

    Examples
    --------
    >>> images_needed(Measured(0.02, -0.01, 0.05, 100), 0.01)
    620
    """
    farther = max(measured.value - denied, smallest - measured.value)
    half = (measured.high - measured.low) / 2
    usual = normal_quantile(measured.level)
    times = (half / farther * (usual + NormalDist().inv_cdf(POWER)) / usual) ** 2
    return two_digits(max(math.ceil(measured.count * times), measured.count + 1))

"""Radii from votes under noise: the certificate of randomised smoothing, as functions of counts.

Cohen, Rosenfeld and Kolter (2019): where the class that was chosen has ``n_A`` of n fresh votes,
its probability is at least ``p_A = BetaInv(alpha; n_A, n - n_A + 1)`` with confidence 1 - alpha,
and no perturbation of l2 norm below ``R = sigma Phi^-1(p_A)`` changes the smoothed class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from besiege.core.errors import InputError
from besiege.core.fields import check_fields, number, whole_number

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Poll:
    """How many votes a certificate of smoothing counts.

    Parameters
    ----------
    n : int
        Fresh votes that estimate the probability of the class.
    n0 : int
        Votes that choose the class.
    alpha : float
        Probability that the certificate of an image is wrong.
    """

    n: int = whole_number(100_000)
    n0: int = whole_number(100)
    alpha: float = number(0.001, above=0, below=1)

    def __post_init__(self) -> None:
        check_fields(self)


def lower_bound(hits: ArrayLike, n: int, alpha: float = 0.001) -> Numbers:
    """The one-sided Clopper-Pearson bound of a probability, ``BetaInv(alpha; k, n - k + 1)``.

    It is the lower end of the two-sided interval of level ``1 - 2 alpha``.

    Examples
    --------
    >>> f"{float(lower_bound(990, 1000)):.6f}"
    '0.976036'
    """
    counts = np.asarray(hits, dtype=np.int64)
    if n < 1 or bool((counts < 0).any()) or bool((counts > n).any()):
        raise InputError(f"votes are {counts.tolist()} of {n}: give counts from 0 to n, n >= 1")
    _must_be_probability(alpha)
    from scipy.special import betaincinv  # slow to import, and kept figures do without

    some = np.maximum(counts, 1)
    return np.where(counts > 0, betaincinv(some, n - some + 1, alpha), 0.0)


def radius(hits: ArrayLike, n: int, deviations: Sequence[float], alpha: float = 0.001) -> Numbers:
    """The certified l2 radius, ``Phi^-1(p_A) / sqrt(sum 1 / s^2)``; 0 where it abstains.

    Parameters
    ----------
    hits : array of int
        Votes for the class that was chosen with other draws.
    n : int
        Number of votes.
    deviations : sequence of float
        Standard deviations of the Gaussian noise of all copies of the image that one vote is a
        function of: ``(sigma,)`` of randomised smoothing, and two of RandMix, by the lemma of
        Neyman and Pearson on the pair of copies.
    alpha : float
        Probability that the certificate is wrong.

    Examples
    --------
    >>> f"{float(radius(990, 1000, [0.25])):.4f} {float(radius(990, 1000, [0.25, 0.25])):.4f}"
    '0.4945 0.3497'
    """
    from scipy.special import ndtri  # slow to import, and kept figures do without

    if not deviations or any(not 0 < one < math.inf for one in deviations):
        raise InputError(
            f"the deviations of the noise are {list(deviations)}: give finite numbers above 0"
        )
    low = lower_bound(hits, n, alpha)
    width = 1 / math.sqrt(sum(one**-2 for one in deviations))
    return np.where(low > 0.5, width * ndtri(np.maximum(low, 0.5)), 0.0)


def _must_be_probability(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise InputError(
            f"alpha is {alpha}, but the probability of a wrong certificate is between 0 and 1, "
            "such as 0.001"
        )

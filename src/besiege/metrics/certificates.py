"""Certificates of randomised smoothing from counts of votes, and certified accuracy.

Cohen, Rosenfeld and Kolter (2019): where the class that was chosen has ``n_A`` of n fresh votes,
its probability is at least ``p_A = BetaInv(alpha; n_A, n - n_A + 1)`` with confidence 1 - alpha,
and no perturbation of l2 norm below ``R = sigma Phi^-1(p_A)`` changes the smoothed class. These are
pure functions of counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from besiege.bounds.votes import lower_bound, radius
from besiege.core.errors import InputError
from besiege.metrics.curves import Curve
from besiege.metrics.intervals import exact_intervals

Numbers = NDArray[np.float64]
ABSTAINS = -1
"""The prediction of an image whose certificate abstains."""


@dataclass(frozen=True)
class Certificates:
    """What is certified of every image.

    Attributes
    ----------
    chosen, prediction : array of int
        The class that was chosen, and the same or `ABSTAINS` where it has no radius.
    hits : array of int
        Votes for it among `n` fresh ones.
    low : array
        Lower bound of its probability, with confidence ``1 - alpha``.
    radius : array
        l2 radius within which the smoothed classifier does not change its class; 0 where it
        abstains.
    linf : array
        linf radius that follows, ``radius / sqrt(size)``: weaker by far than certificates that are
        made for linf.
    n, alpha, size
        Votes, error probability, and pixel values of an image.
    deviations : tuple of float
        Noise of all copies that one vote is a function of, see `radius`.
    labels : array of int, optional
        The true classes.
    """

    chosen: NDArray[np.int64]
    prediction: NDArray[np.int64]
    hits: NDArray[np.int64]
    low: Numbers
    radius: Numbers
    linf: Numbers
    n: int
    alpha: float
    size: int
    deviations: tuple[float, ...]
    labels: NDArray[np.int64] | None = None

    @property
    def abstains(self) -> NDArray[np.bool_]:
        """Where nothing is certified."""
        found: NDArray[np.bool_] = self.prediction == ABSTAINS
        return found

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether each prediction is the label; an abstention never is."""
        if self.labels is None:
            raise InputError("the certificates have no labels to compare with: pass labels=")
        return np.asarray(np.equal(self.prediction, self.labels), dtype=np.bool_)

    def accuracy(self, at: Sequence[float] | Numbers | None = None) -> Curve:
        """Certified accuracy against the l2 radius, see `certified_accuracy`."""
        return certified_accuracy(self.radius, self.right, at)

    @property
    def false(self) -> float:
        """The number of wrong certificates to expect at most: alpha for each that was given."""
        return self.alpha * int((~self.abstains).sum())


def certificates(
    chosen: ArrayLike,
    hits: ArrayLike,
    n: int,
    deviations: Sequence[float],
    size: int,
    alpha: float = 0.001,
    labels: ArrayLike | None = None,
) -> Certificates:
    """Certificates from votes.

    Parameters
    ----------
    chosen, hits : array of int
        The class of each image, chosen with other draws, and its votes.
    n : int
        Number of votes.
    deviations : sequence of float
        Noise of all copies that one vote is a function of, in pixel values, see `radius`.
    size : int
        Pixel values of an image.
    alpha : float
        Probability that a certificate is wrong, for each image.
    labels : array of int, optional
        The true classes.

    Examples
    --------
    >>> found = certificates([3, 7], [990, 520], 1000, [0.25], size=3072)
    >>> found.prediction.tolist(), found.radius.round(4).tolist()
    ([3, -1], [0.4945, 0.0])
    """
    classes, votes = (np.asarray(one, dtype=np.int64) for one in (chosen, hits))
    low, reach = lower_bound(votes, n, alpha), radius(votes, n, deviations, alpha)
    given = np.where(reach > 0, classes, ABSTAINS)
    across = reach / math.sqrt(size)
    noise = tuple(map(float, deviations))
    truth = None if labels is None else np.asarray(labels, dtype=np.int64)
    if truth is not None and truth.shape != classes.shape:
        raise InputError(f"{classes.shape} predictions were given with {truth.shape} labels")
    return Certificates(classes, given, votes, low, reach, across, n, alpha, size, noise, truth)


def certified_accuracy(
    radii: ArrayLike, right: ArrayLike, at: Sequence[float] | Numbers | None = None
) -> Curve:
    """The share of all images that are classified correctly with a radius of at least r.

    Abstentions and wrong predictions count as wrong at every radius, 0 included.

    Parameters
    ----------
    radii : array
        Certified radius of every image.
    right : array of bool
        Whether the certified class is the label.
    at : sequence of float, optional
        The radii r, ascending; by default 0 and every radius where the share falls.

    Examples
    --------
    >>> certified_accuracy([0.5, 0.3, 0.9, 0.0], [True, True, False, False], [0.0, 0.3, 0.4]).value
    array([0.5 , 0.5 , 0.25])
    """
    reach, good = np.asarray(radii, dtype=np.float64), np.asarray(right, dtype=bool)
    if reach.shape != good.shape or reach.ndim != 1 or not len(reach):
        raise InputError(
            f"{reach.shape} radii were given with {good.shape} answers: give one of each per image"
        )
    held = np.sort(reach[good])
    if at is None:
        # Just beyond a radius the image is no longer certified.
        at = np.unique(np.concatenate(([0.0], np.nextafter(held, np.inf))))
    x = np.asarray(at, dtype=np.float64)
    left = len(held) - np.searchsorted(held, x, side="left")
    low, high = exact_intervals(left, len(reach))
    return Curve(x, left / len(reach), low, high, len(reach))


@dataclass(frozen=True)
class Envelope:
    """The largest of several curves at every radius: of a family of models, never of one.

    Attributes
    ----------
    x, value : array
        Radii, and the largest share.
    best : tuple of str
        The name of the curve that has it.
    label : str
        What a chart must call it.
    """

    x: Numbers
    value: Numbers
    best: tuple[str, ...]
    label: str


def upper_envelope(curves: Mapping[str, Curve]) -> Envelope:
    """The upper envelope of certified accuracies of several models, such as one for each sigma.

    No model reaches it, since the noise is chosen in advance and not for each radius. It has no
    interval: the largest of several estimates is too large.

    Examples
    --------
    >>> low, high = ([0.3, 0.3], [True, False]), ([0.9, 0.9], [True, False])
    >>> found = upper_envelope({"0.25": certified_accuracy(*low), "0.5": certified_accuracy(*high)})
    >>> found.label
    'upper envelope of 0.25, 0.5: the best of several models at each radius'
    """
    if len(curves) < 2:
        raise InputError("an envelope is one of several curves: give two or more")
    counts = {curve.count for curve in curves.values()}
    if len(counts) > 1:
        raise InputError(f"the curves are of {sorted(counts)} images: give curves of the same ones")
    x = np.unique(np.concatenate([curve.x for curve in curves.values()]))
    names = list(curves)
    values = np.stack([[curves[name].at(point) for point in x] for name in names])
    best = tuple(names[place] for place in values.argmax(0))
    label = f"upper envelope of {', '.join(names)}: the best of several models at each radius"
    return Envelope(x, values.max(0), best, label)

"""Accuracy against strength: steps, queries, or passes of attacks that search a minimum.

Each function gives what `besiege.metrics.bands` takes: where every image is broken, or which images
are left at every point.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from besiege.core.errors import InputError
from besiege.core.threat import Norm

Numbers = NDArray[np.float64]


def broken_at(first: ArrayLike, success: ArrayLike, left: ArrayLike, last: float = 0) -> Numbers:
    """The step or query at which each image was broken, as the ends of `accuracy_bands`.

    Parameters
    ----------
    first : array of shape (..., images)
        The step or query of the first success; negative where the attack saw none.
    success : array of bool of the same shape
        Whether the judge confirmed a success of this attack.
    left : array of bool of the same shape
        Whether the image is classified correctly after it. An image without a success that is not
        left was misclassified when clean, or broken by an earlier attack of a suite: it is broken
        from the start.
    last : float
        The end of the run, at least the largest of `first`. A success that only the judge saw
        counts there.

    Returns
    -------
    array
        0 where broken from the start, infinite where left.

    Examples
    --------
    >>> broken_at([3, -1, -1, -1], [1, 1, 0, 0], [0, 0, 0, 1], last=10).tolist()
    [3.0, 10.0, 0.0, inf]
    """
    seen, won, stays = (np.asarray(each) for each in (first, success, left))
    end = max(last, seen.max(initial=0))
    ends = np.where(won.astype(bool), np.where(seen < 0, end, seen), 0.0)
    return np.where(stays.astype(bool), np.inf, ends)


def left_after(descent: ArrayLike, eps: float) -> NDArray[np.bool_]:
    """Which images are left at a budget after numbers of passes, as the outcomes of `share_bands`.

    Parameters
    ----------
    descent : array of shape (..., images, marks)
        The smallest distance within each number of passes, as ``besiege.attack(...).descent``;
        infinite before the first success, 0 where an image is misclassified when clean.
    eps : float
        The budget.

    Returns
    -------
    array of shape (..., marks, images)

    Examples
    --------
    >>> left_after([[np.inf, 0.5, 0.2], [0.3, 0.3, 0.3]], eps=0.3).tolist()
    [[True, False], [True, False], [False, False]]
    """
    table = np.asarray(descent, dtype=np.float64)
    if table.ndim < 2:
        raise InputError(f"the descent has the shape {table.shape}, not [..., images, marks]")
    return np.asarray(np.swapaxes(table > eps, -1, -2))


def per_value(distances: ArrayLike, norm: str, size: int) -> Numbers:
    """Distances that compare between images of different sizes.

    An l2 distance is divided by the square root of the number of pixel values (the root mean square
    of the perturbation). Those in linf are the same for all sizes; in l0 and l1 they are divided by
    the number of pixel values.

    Examples
    --------
    >>> per_value([1.2], "l2", 36).round(3).tolist(), per_value([0.03], "linf", 36).tolist()
    ([0.2], [0.03])
    """
    if size < 1:
        raise InputError(f"images of {size} pixel values: give at least one")
    divisors = {Norm.L2: math.sqrt(size), Norm.Linf: 1.0}
    return np.asarray(distances, dtype=np.float64) / divisors.get(Norm(norm), float(size))

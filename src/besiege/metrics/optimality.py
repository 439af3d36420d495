"""AttackBench's optimality: how close an attack comes to the best of all attacks.

Everything is a function of the smallest distances: one for each sample, 0 where it was
misclassified when clean, infinite where the attack failed. Curves of accuracy against the budget
are step functions, so their areas are exact sums, without a grid.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from besiege.core.errors import InputError

Distances = NDArray[np.float64]


def envelope(distances: ArrayLike) -> Distances:
    """The smallest distance that any attack found, sample by sample.

    Parameters
    ----------
    distances : array
        ``[attacks, samples]``, infinite where an attack failed.

    Returns
    -------
    array
        ``[samples]``.

    Examples
    --------
    >>> envelope([[0.1, np.inf, 0.4], [0.2, 0.3, np.inf]]).tolist()
    [0.1, 0.3, 0.4]
    """
    table = np.asarray(distances, dtype=np.float64)
    if table.ndim != 2 or not len(table):
        raise InputError(
            f"distances have the shape {table.shape}, but [attacks, samples] with at least one "
            "attack is expected"
        )
    return np.asarray(np.stack([_checked(row) for row in table]).min(0), dtype=np.float64)


def area(distances: ArrayLike, limit: float) -> float:
    """The area under accuracy against the budget, from 0 to a limit.

    The integral of the share of samples farther than e, for e from 0 to E, which is
    ``mean(min(d_i, E))``.

    Parameters
    ----------
    distances : array
        ``[samples]``: 0 where misclassified when clean, infinite where the attack failed.
    limit : float
        The budget ``E`` at which it ends. Areas with different limits are not comparable.

    Returns
    -------
    float
        In the unit of the distances: the mean distance, capped at the limit. Divided by the limit
        it is the mean accuracy over all budgets up to the limit.

    Examples
    --------
    >>> area([0.0, 0.25, 0.25, np.inf], limit=0.5)
    0.25
    """
    found = _checked(distances)
    if not (np.isfinite(limit) and limit >= 0):
        raise InputError(f"the limit is {limit!r}, but a finite number from 0 is needed")
    if not len(found):
        raise InputError("there are no distances: give at least one")
    return float(np.minimum(found, limit).mean())


def fall(best: ArrayLike) -> float:
    """The budget at which the best attacks have broken every sample that they break at any size.

    It is the largest of the finite distances, 0 where there is none.

    Examples
    --------
    >>> fall([0.0, 0.1, 0.7, np.inf])
    0.7
    """
    found = _checked(best)
    return float(found[np.isfinite(found)].max(initial=0.0))


def local_optimality(found: ArrayLike, best: ArrayLike, limit: float | None = None) -> float:
    """How close one attack comes to the best of all, on one model.

    With the areas ``A`` under the attack's curve and ``A*`` under that of the envelope,
    both up to the budget ``E`` at which the envelope ends (`fall`), and the clean accuracy
    ``c``,

    ``1 - (A - A*) / (c E - A*)``

    is 1 for an attack that equals the envelope and 0 for one that breaks nothing up to ``E``.

    Parameters
    ----------
    found : array
        The attack's distances, ``[samples]``: 0 where a sample was misclassified when clean,
        infinite where the attack failed.
    best : array
        The envelope of all attacks, this one included. The result depends on these attacks: state
        them with it.
    limit : float, optional
        Where the areas end; by default at the largest distance of the envelope. Samples that no
        attack broke do not matter.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> local_optimality([0.25, 0.5], best=[0.25, 0.5])
    1.0
    >>> local_optimality([0.375, np.inf], best=[0.25, 0.5])
    0.5

    References
    ----------
    Cinà et al., AttackBench: evaluating gradient-based attacks for adversarial examples, 2025.
    """
    mine, bound = _checked(found), _checked(best)
    if mine.shape != bound.shape:
        raise InputError(
            f"the attack has {mine.size} distances and the envelope {bound.size}: both must be of "
            "the same samples, in the same order"
        )
    if bool((mine < bound).any()):
        raise InputError(
            "the attack has smaller distances than the envelope, which must be the smallest of "
            "all attacks, this one included: use `envelope`"
        )
    end = fall(bound) if limit is None else limit
    least = area(bound, end)
    worst = float((bound > 0).mean()) * end
    # All samples have one distance, or none is broken: only equality can be said. Means round.
    if worst - least <= 1e-9 * worst:
        return float(np.array_equal(mine, bound))
    return float(np.clip(1 - (area(mine, end) - least) / (worst - least), 0.0, 1.0))


def global_optimality(scores: Sequence[float]) -> float:
    """How close one attack comes to the best of all over several models: the mean of local ones.

    Parameters
    ----------
    scores : sequence of float
        `local_optimality` of the attack on every model, all against envelopes of the same attacks.

    Examples
    --------
    >>> global_optimality([1.0, 0.5])
    0.75
    """
    found = np.asarray(scores, dtype=np.float64)
    if found.ndim != 1 or not len(found) or not bool(((found >= 0) & (found <= 1)).all()):
        raise InputError(
            f"the scores are {scores!r}, but one number between 0 and 1 for each model is needed"
        )
    return float(found.mean())


def _checked(distances: ArrayLike) -> Distances:
    found = np.asarray(distances, dtype=np.float64)
    if found.ndim != 1:
        raise InputError(f"distances have the shape {found.shape}, but [samples] is expected")
    if not bool((found >= 0).all()):
        raise InputError(
            "some distances are negative or not numbers: a failure is infinite, and a sample that "
            "is misclassified when clean has distance 0"
        )
    return found

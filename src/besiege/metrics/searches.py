"""Rules about searches for the smallest change: what others found must not be smaller."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from besiege.core.errors import Finding
from besiege.metrics.evidence import Evidence, Mask

ROUNDING = 1e-6
"""By how much, as a share of it, a distance must be smaller to count as smaller."""
MISSED = 0.01
"""The share of distances above a budget that attacks with that budget may prove wrong."""


def w21_consistency(evidence: Evidence) -> Iterator[Finding]:
    """An image without a perturbation within the budget must not fall to attacks with that budget.

    Where attacks search for the smallest perturbation, other evaluations are needed: `comparing`.
    """
    if evidence.curve is None or evidence.eps is None:
        return
    ids, ends = evidence.smallest([evidence.curve])
    broken = [evidence.broken_ids(trial) for trial in evidence.trials]
    fallen = np.isin(ids, np.concatenate(broken)) if broken else np.zeros(len(ids), bool)
    yield from beyond(ends, evidence.eps, fallen, f"the search '{evidence.curve.text}'")


def beyond(ends: NDArray[np.float64], eps: float, fallen: Mask, searcher: str) -> Iterator[Finding]:
    """Say how many distances above a budget are wrong, where they are too many."""
    far = ends > eps * (1 + ROUNDING)
    wrong = int((far & fallen).sum())
    if wrong > max(1, MISSED * int(far.sum())):
        yield Finding(
            "W21",
            f"{searcher} found no change within {eps:.4g} for {int(far.sum())} samples, but "
            f"{wrong} of them fell to attacks with that budget.",
            "As a search for the smallest change it is too weak: distances and their curve are too "
            "good. Give it more steps, or add other attacks that look for the smallest change.",
        )

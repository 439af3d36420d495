"""The warning rule about searches for the smallest perturbation that are too weak."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from besiege.core.errors import Finding
from besiege.metrics.chance import share_above, weighed
from besiege.metrics.evidence import Evidence, Mask

ROUNDING = 1e-6
"""Relative difference from which on a distance counts as smaller."""
MISSED = 0.01
"""Largest share of distances above a budget that attacks with that budget may disprove."""


def w21_consistency(evidence: Evidence) -> Iterator[Finding]:
    """Attacks with a budget must not break images whose smallest perturbation is said to be larger.

    Evaluations without a budget are compared with others: see `comparing`.
    """
    if evidence.curve is None or evidence.eps is None:
        return
    ids, ends = evidence.smallest([evidence.curve])
    broken = [evidence.broken_ids(trial) for trial in evidence.trials]
    hit = np.isin(ids, np.concatenate(broken)) if broken else np.zeros(len(ids), bool)
    curve = "It only draws the curve: --curve full gives it more steps, --no-curve leaves it out."
    search = f"the search '{evidence.curve.text}'"
    for found in beyond(ends, evidence.eps, hit, search, curve):
        if found.level == "warning":
            # Robust accuracy is that of all attacks, and the curve takes their successes, too.
            yield replace(found, level="note")


_MORE = "Give it more steps, or add other attacks that search for the smallest perturbation."


def beyond(
    ends: NDArray[np.float64], eps: float, broken: Mask, search: str, advice: str = _MORE
) -> Iterator[Finding]:
    """Report distances above a budget that attacks with that budget disprove, if too many."""
    far = ends > eps * (1 + ROUNDING)
    count, wrong = int(far.sum()), int((far & broken).sum())
    yield from weighed(
        share_above(wrong, count, MISSED),
        count,
        Finding(
            "W21",
            f"{search} found no perturbation within {eps:.4g} for {count} samples, but attacks "
            f"with that budget broke {wrong} of them.",
            f"The search is too weak: its distances and its curve overstate robustness. {advice}",
        ),
    )

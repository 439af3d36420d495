"""Rules about searches for the smallest change: what others found must not be smaller."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from besiege.core.errors import Finding
from besiege.metrics.evidence import Evidence, Mask
from besiege.metrics.rows import places

ROUNDING = 1e-6
"""By how much, as a share of it, a distance must be smaller to count as smaller."""
MISSED = 0.01
"""The share of distances above a budget that attacks with that budget may prove wrong."""


def w20_norm_order(evidence: Evidence) -> Iterator[Finding]:
    """What was found in another norm must not be smaller in this one.

    A change is at most as large in linf as in l2, and at most sqrt(pixels) times as large in l2 as
    in linf. Where the smallest ones of two searches are in another order, the image that one of
    them found is smaller in the norm of the other: so it is the images that are compared.
    """
    ids, ends = evidence.smallest()
    for other in evidence.beside:
        if other.norm == evidence.norm or not other.searched or not len(ids):
            continue
        theirs = np.full(len(ids), np.inf)
        rows = other.rows.where(np.isin(other.rows["sample"], ids))
        where = places(ids, rows["sample"])
        np.minimum.at(theirs, where, rows[evidence.norm].astype(np.float64))
        missed = int((theirs < ends * (1 - ROUNDING)).sum())
        if missed:
            yield Finding(
                "W20",
                f"for {missed} of {len(ids)} samples an attack against '{other.threat}' found a "
                f"change that is smaller in {evidence.norm} than the smallest found here.",
                "The attacks here fall short of what is possible, so that these distances are too "
                "large: give them more steps, or add others (the suite minimum).",
            )


def w21_consistency(evidence: Evidence) -> Iterator[Finding]:
    """What a search finds no change for within a budget must not fall to attacks with it."""
    if evidence.curve is None:
        return
    if evidence.eps is not None:
        ids, ends = evidence.smallest([evidence.curve])
        broken = [evidence.broken_ids(trial) for trial in evidence.trials]
        fallen = np.isin(ids, np.concatenate(broken)) if broken else np.zeros(len(ids), bool)
        yield from _beyond(ends, evidence.eps, fallen, f"the search '{evidence.curve.text}'")
        return
    ids, ends = evidence.smallest()
    for other in evidence.beside:
        if other.norm == evidence.norm and other.eps is not None:
            within = other.rows[other.norm] <= other.eps * (1 + ROUNDING)
            fallen = np.isin(ids, other.rows["sample"][within])
            yield from _beyond(ends, other.eps, fallen, "the attacks here")


def _beyond(
    ends: NDArray[np.float64], eps: float, fallen: Mask, searcher: str
) -> Iterator[Finding]:
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

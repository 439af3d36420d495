"""What is proved beside what attacks found: a floor and a ceiling of robust accuracy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from besiege.core.errors import Finding
from besiege.metrics.evidence import Evidence, Mask
from besiege.metrics.intervals import Rate
from besiege.metrics.registry import Case
from besiege.metrics.rows import Rows, places
from besiege.metrics.values import Certified, CertifiedCurve

STAGE = "certify"
"""The kind of task whose rows are certificates."""
WITHIN = 1 - 1e-6
"""A smallest perturbation must be below this share of a proved radius to contradict it: a judged
image may exceed its budget by as much."""


def certified_figures(case: Case) -> Certified | None:
    """Proved, broken and open images; None without certificates."""
    evidence = case.evidence
    rows = _rows(evidence)
    if rows is None:
        return None
    where = places(evidence.clean["sample"], rows["sample"])
    known = evidence.covered_by_all()[where] & (where >= 0)
    if not known.any():
        return None
    stands, right = evidence.standing()[where][known], evidence.right[where][known]
    proved = _proved(rows)[known]
    count, broken = int(known.sum()), int((~stands).sum())
    return Certified(
        _method(rows),
        Rate.of(int(right.sum()), count),
        Rate.of(count - broken, count),
        Rate.of(int(proved.sum()), count),
        int((proved & stands).sum()),
        broken,
        int((stands & ~proved).sum()),
        len(contradictions(evidence)),
        _curve(evidence, rows),
    )


def contradictions(evidence: Evidence) -> NDArray[np.int64]:
    """The ids of samples for which a proof and an attack cannot both be right."""
    rows = _rows(evidence)
    if rows is None:
        return np.zeros(0, np.int64)
    broken = [evidence.broken_ids(trial) for trial in evidence.trials]
    wrong = evidence.clean["sample"][~evidence.right]
    bad = _proved(rows) & np.isin(rows["sample"], np.concatenate([wrong, *broken]))
    ids, ends = evidence.smallest()
    if len(ids):
        where = places(rows["sample"], ids)
        radius = np.where(where >= 0, rows["radius"].astype(float)[where], np.nan)
        below = rows["below"].astype(float)[where]
        nearest = np.fmax(radius, np.where(where >= 0, below, np.nan))
        smaller = ids[(ends < WITHIN * nearest) & (nearest > 0)]
        bad |= np.isin(rows["sample"], smaller)
    found: NDArray[np.int64] = rows["sample"][bad].astype(np.int64)
    return found


def w30_contradicted(evidence: Evidence) -> Iterator[Finding]:
    """What is proved cannot be broken."""
    bad = contradictions(evidence)
    if len(bad):
        some = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        yield Finding(
            "W30",
            f"{len(bad)} images are proved to be robust and broken by an attack (samples {some}).",
            "One of the two is wrong, so neither figure must be quoted. Judge the images again "
            "(besiege report), and report it as a bug: a bound or the judge has an error.",
            "stop",
        )


def _rows(evidence: Evidence) -> Rows | None:
    rows = evidence.others.get(STAGE)
    return rows if rows is not None and rows.count else None


def _proved(rows: Rows) -> Mask:
    proved: Mask = rows["outcome"] == "proved"
    return proved


def _method(rows: Rows) -> str:
    return str(rows["method"][0])


def _curve(evidence: Evidence, rows: Rows) -> CertifiedCurve | None:
    """Both accuracies at every radius that was tried, over the images of the attacks' curve."""
    radius = np.fmax(rows["radius"].astype(float), rows["below"].astype(float))
    known = ~np.isnan(radius)
    if not known.all() or (radius > 0).sum() == 0:
        return None
    ids, ends = evidence.smallest()
    attacked = None
    if len(ids):
        where = places(rows["sample"], ids)
        ids, ends = ids[where >= 0], ends[where >= 0]
        radius = radius[where[where >= 0]]
    right = np.isin(
        rows["sample"] if not len(ids) else ids, evidence.clean["sample"][evidence.right]
    )
    x = np.unique(np.concatenate([[0.0], radius]))
    certified = [float((right & (radius >= r * WITHIN)).mean()) for r in x]
    if len(ids):
        # A perturbation of exactly this size is within it.
        attacked = tuple(float((right & (ends > r)).mean()) for r in x)
    return CertifiedCurve(tuple(x.tolist()), tuple(certified), attacked, len(radius))

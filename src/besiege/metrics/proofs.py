"""What is proved beside what attacks found: a floor and a ceiling of robust accuracy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from besiege.bounds.votes import lower_bound
from besiege.core.errors import Finding
from besiege.metrics.defense_values import Certified, CertifiedCurve, Votes
from besiege.metrics.evidence import Evidence, Mask
from besiege.metrics.intervals import Rate
from besiege.metrics.registry import Case
from besiege.metrics.rows import Rows, places

STAGE = "certify"
"""The kind of task whose rows are certificates."""
VOTES = "hits"
"""A column that only certificates by votes have."""
WITHIN = 1 - 1e-6
"""A smallest perturbation must be below this share of a proved radius to contradict it: a judged
image may exceed its budget by as much."""
PARTS = 8
"""The curves have values at multiples of this share of the budget, up to it."""


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
    proved = _proved(evidence, rows)[known]
    count, broken = int(known.sum()), right & ~stands
    bad = contradictions(evidence)
    # Where the deployed vote abstains its answer is not right, whatever is proved of the ideal one.
    held = proved & (stands | np.isin(rows["sample"][known], bad))
    return Certified(
        _method(evidence, rows),
        Rate.of(int(right.sum()), count),
        Rate.of(int(stands.sum()), count),
        Rate.of(int(held.sum()), count),
        int((proved & stands).sum()),
        int(broken.sum()),
        int((stands & ~proved).sum()),
        len(bad),
        _curve(evidence, rows),
        _votes(rows),
        _spared(evidence),
    )


def contradictions(evidence: Evidence) -> NDArray[np.int64]:
    """The ids of samples for which a proof and an attack cannot both be right."""
    rows = _rows(evidence)
    if rows is None:
        return np.zeros(0, np.int64)
    broken = [evidence.broken_ids(trial) for trial in evidence.trials]
    misread = ~evidence.right
    if VOTES in rows and evidence.rejects:
        misread &= ~evidence.clean["rejected"].astype(bool)  # an abstention is no other class
    wrong = evidence.clean["sample"][misread]
    bad = _proved(evidence, rows) & np.isin(rows["sample"], np.concatenate([wrong, *broken]))
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
        if len(bad) <= _expected(evidence):
            yield Finding(
                "W30",
                f"{len(bad)} images are certified by votes and broken (samples {some}).",
                "Certificates of smoothing are wrong with a small probability, and so is the vote "
                "that is deployed: this is no more than both explain. Give more votes, or a "
                "smaller alpha.",
                "note",
            )
            return
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


def _proved(evidence: Evidence, rows: Rows) -> Mask:
    """What is proved at the budget; a record of votes is about every budget."""
    proved: Mask = rows["outcome"] == "proved"
    if VOTES in rows and evidence.eps is not None:
        proved &= rows["radius"].astype(float) >= evidence.eps * WITHIN
    return proved


def _method(evidence: Evidence, rows: Rows) -> str:
    name = str(rows["method"][0])
    from_l2 = VOTES in rows and evidence.norm == "linf"
    return f"{name}, its l2 radius divided by the root of {evidence.pixels:,}" if from_l2 else name


def _spared(evidence: Evidence) -> int:
    """How many samples no attack was run on, because they are proved."""
    ids = [trial.rows["sample"][trial.spared] for trial in evidence.attacks]
    return len(np.unique(np.concatenate(ids))) if ids else 0


def _votes(rows: Rows) -> Votes | None:
    """What certificates by votes rest on; None for others."""
    if VOTES not in rows:
        return None
    n, alpha = int(rows["n"][0]), float(rows["alpha"][0])
    given = lower_bound(rows[VOTES].astype(np.int64), n, alpha) > 0.5
    certain = int((rows["radius"].astype(float) > 0).sum())
    return Votes(n, alpha, certain, int((~given).sum()), alpha * int(given.sum()))


def _expected(evidence: Evidence) -> float:
    """How many contradictions chance explains, with 99.9 %: 0 where proofs are certain."""
    from scipy.stats import binom  # slow to import, and kept figures do without

    rows = _rows(evidence)
    votes = None if rows is None else _votes(rows)
    if votes is None:
        return 0.0
    # The certificate and the deployed vote each err with the probability alpha.
    return float(binom.ppf(0.999, votes.certified, 2 * votes.alpha))


def _curve(evidence: Evidence, rows: Rows) -> CertifiedCurve | None:
    """Both accuracies at all radii that were proved, and at eighths of the budget.

    They are over the images of the attacks' curve.
    """
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
    x = _sizes(radius, evidence.eps)
    certified = [float((right & (radius >= r * WITHIN)).mean()) for r in x]
    if len(ids):
        # A perturbation of exactly this size is within it, and so is one that rounding made larger.
        attacked = tuple(float((right & (ends * WITHIN > r)).mean()) for r in x)
    return CertifiedCurve(tuple(x.tolist()), tuple(certified), attacked, len(radius))


def _sizes(radius: NDArray[np.float64], eps: float | None) -> NDArray[np.float64]:
    """Zero, all radii, and the eighths of the budget that differ from them."""
    found = np.unique(np.concatenate([[0.0], radius]))
    if eps is None:
        return found
    shares = eps / PARTS * np.arange(1, PARTS + 1)
    new = [one for one in shares if not np.isclose(one, found, rtol=1 - WITHIN, atol=0).any()]
    return np.sort(np.concatenate([found, new]))

"""The adversarial image that stands for each broken sample, where several attacks broke it."""

from __future__ import annotations

import numpy as np

from besiege.metrics.distances import smallest
from besiege.metrics.evidence import Evidence
from besiege.metrics.rows import Rows, places


def representatives(evidence: Evidence) -> Rows:
    """One adversarial image per broken sample: that of the strongest attack that broke it.

    Without a budget it is the image of the smallest perturbation. ``trial`` is the attack's place
    in the list and ``row`` the place in its table; samples are in the order of the clean rows.
    """
    samples = evidence.clean["sample"]
    trial = np.full(len(samples), -1, np.int64)
    row = np.full(len(samples), -1, np.int64)
    if evidence.eps is None and not evidence.chained:
        best = smallest(evidence)
        for number, one in enumerate(evidence.trials):
            mine = best["sample"][(best["row"] >= 0) & (best["attack"] == one.text)]
            where = places(samples, mine)
            trial[where], row[where] = number, places(one.rows["sample"], mine)
    else:
        known = evidence.covered_by_all()
        left = [int(evidence.left_by(one)[known].sum()) for one in evidence.trials]
        order = sorted(range(len(left)), key=left.__getitem__)
        for number in reversed(order):  # the strongest attack is written last
            one = evidence.trials[number]
            broken = np.flatnonzero(evidence.broken(one))
            where = places(samples, one.rows["sample"][broken])
            trial[where[where >= 0]], row[where[where >= 0]] = number, broken[where >= 0]
    found = Rows({"sample": samples, "label": evidence.clean["label"], "trial": trial, "row": row})
    return found.where(trial >= 0)

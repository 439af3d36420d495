"""Queries per image of query-based attacks."""

from __future__ import annotations

import numpy as np

from besiege.metrics.attack_values import AttackQueries
from besiege.metrics.registry import Case

ASKING = ("score", "decision")
"""The access of attacks that are paid for in queries."""


def query_figures(case: Case) -> tuple[AttackQueries, ...]:
    """Queries of every query-based attack, over the correctly classified images it ran on.

    Misclassified images are left out: one query shows that there is nothing to attack. In a suite
    an attack runs on the images that the ones before it left.
    """
    evidence = case.evidence
    right = evidence.clean["sample"][evidence.right]
    found = []
    for trial in (trial for trial in evidence.trials if trial.access in ASKING):
        attacked = np.isin(trial.rows["sample"], right) & ~trial.spared
        asked = trial.rows["queries"][attacked]
        first = trial.rows["first_query"][evidence.broken(trial)]
        first = first[first >= 0]  # a success that only the judge saw has no first query
        if len(asked):
            found.append(
                AttackQueries(
                    trial.text,
                    len(asked),
                    float(asked.mean()),
                    float(np.median(asked)),
                    float(np.median(first)) if len(first) else None,
                )
            )
    return tuple(found)

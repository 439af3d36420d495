"""A defense that the attacker ignores beside one that the attacker knows, on the same images."""

from __future__ import annotations

from besiege.metrics.defense_values import DefenseFigures
from besiege.metrics.intervals import Rate
from besiege.metrics.registry import Case


def defense_figures(case: Case) -> DefenseFigures | None:
    """Accuracy under the oblivious attacks, and under these and the attacks on the defense.

    None without both kinds, and in a suite in which another attack ran before an oblivious one:
    that one saw only what was left.
    """
    evidence = case.evidence
    tried = [one for one in evidence.attacks if one.rows.count]
    oblivious = [one for one in tried if one.oblivious]
    through = [one for one in tried if not one.oblivious and one.access != "transfer"]
    if not oblivious or not through:
        return None
    if evidence.chained and not all(one.oblivious for one in tried[: len(oblivious)]):
        return None
    known = evidence.covered_by_all()
    if not known.any():
        return None
    count = int(known.sum())
    left = (evidence.standing(some)[known] for some in (oblivious, None))
    return DefenseFigures(*(Rate.of(int(one.sum()), count) for one in left))

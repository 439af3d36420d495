"""Replays beside adaptive attacks: what images that were not made on a model do to it (W32)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from besiege.core.errors import Finding
from besiege.metrics.attack_values import ReplayFigures
from besiege.metrics.evidence import Evidence, Trial
from besiege.metrics.figures import rate
from besiege.metrics.intervals import Rate
from besiege.metrics.registry import Case
from besiege.metrics.rows import places


def replay_figures(case: Case) -> tuple[ReplayFigures, ...]:
    """What replayed images do, each beside what the attacks on the model itself leave."""
    evidence = case.evidence
    return tuple(_of(evidence, one) for one in evidence.trials if one.origin and one.rows.count)


def adaptive(evidence: Evidence) -> list[Trial]:
    """The attacks on the model itself: neither crafted on another one nor made elsewhere."""
    return [one for one in evidence.attacks if one.access != "transfer" and one.rows.count]


def _of(evidence: Evidence, trial: Trial) -> ReplayFigures:
    origin, rows = trial.origin, trial.rows
    assert origin is not None
    right = rows["prediction"] == rows["label"]
    if "rejected" in rows:
        right &= ~rows["rejected"].astype(bool)
    own = [] if origin.same else adaptive(evidence)
    alike = [one for one in own if one.text == origin.attack]
    return ReplayFigures(
        trial.text,
        origin.model,
        origin.attack,
        origin.passed,
        origin.same,
        rate(int(rows["reached"].sum()), rows.count),
        rate(int(right.sum()), rows.count),
        *(_left(evidence, trial, some) for some in (own, alike)),
    )


def _left(evidence: Evidence, trial: Trial, own: list[Trial]) -> Rate | None:
    """The share of the replayed samples that attacks on the model leave; None without attacks.

    Only of samples that all of these were judged on: others are not robust, but not attacked.
    """
    if not own:
        return None
    where = places(evidence.clean["sample"], trial.rows["sample"])
    known = np.logical_and.reduce([evidence.covered(one) for one in own])[where]
    stands = np.logical_and.reduce([evidence.left_by(one) for one in own])[where]
    return rate(int(stands[known].sum()), int(known.sum()))


def w32_not_adaptive(evidence: Evidence) -> Iterator[Finding]:
    """Images made on another model must not stand without an attack on the model itself."""
    replayed = [one for one in evidence.trials if one.origin and not one.origin.same]
    if not replayed or adaptive(evidence):
        return
    yield Finding(
        "W32",
        f"'{replayed[0].text}' was made on another model, and no attack on this one was judged.",
        "What a model withstands of such images is transfer, never robustness, and any retrained "
        "model withstands most of them: attack the model itself, and quote both figures together.",
        "stop",
    )

"""Which attack broke each sample first, and what had been spent on it by then."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from besiege.metrics.evidence import Evidence
from besiege.metrics.rows import Rows, places
from besiege.metrics.values import Stage

COSTS = ("queries", "forwards", "backwards")
Counts = NDArray[np.int64]


def fates(evidence: Evidence) -> Rows:
    """What became of every sample, one row each, in the order they were seen clean.

    ``fate`` is 'wrong' (when clean already), 'broken', 'standing', or 'unknown' where not every
    attack was judged; ``attack`` is the text of the attack that broke it first, in the order in
    which the attacks were listed. ``queries``, ``forwards`` and ``backwards`` are what had been
    spent on it up to the break, earlier attacks included, or in all where it stands; ``step`` and
    ``distance`` are those of the break, -1 and NaN without one.

    Forwards and backwards are those of the whole attack where it keeps on after a success, as
    attacks on victims that answer by chance do.
    """
    samples = evidence.clean["sample"]
    place = first_place(evidence)
    spent: dict[str, Counts] = {what: np.zeros(len(samples), np.int64) for what in COSTS}
    step = np.full(len(samples), -1, np.int64)
    distance = np.full(len(samples), np.nan)
    for number, trial in enumerate(evidence.trials):
        where = places(samples, trial.rows["sample"])
        rows, where = trial.rows.where(where >= 0), where[where >= 0]
        counts = evidence.right[where] & ((place[where] < 0) | (place[where] >= number))
        rows, where = rows.where(counts), where[counts]
        breaks = place[where] == number
        hit = rows["first_query"]
        for what in COSTS:
            # A success that only the judge saw has no query of its own: it took all of them.
            asked = (
                np.where(breaks & (hit >= 0), hit, rows[what]) if what == "queries" else rows[what]
            )
            spent[what][where] += asked
        step[where[breaks]] = rows["first_step"][breaks]
        distance[where[breaks]] = rows[evidence.norm][breaks]
    names = np.array([trial.text for trial in evidence.trials] + [""])
    stands = evidence.standing() & evidence.covered_by_all()
    fate = np.where(place >= 0, "broken", np.where(stands, "standing", "unknown"))
    return Rows(
        {
            "sample": samples,
            "label": evidence.clean["label"],
            "fate": np.where(evidence.right, fate, "wrong"),
            "attack": names[place],  # -1 is the empty one
            "step": step,
            "distance": distance,
            **spent,
        }
    )


def first_place(evidence: Evidence) -> Counts:
    """The place in the list of the attack that broke each sample first; -1 where none did."""
    place = np.full(evidence.count, -1, np.int64)
    for number in reversed(range(len(evidence.trials))):
        broken = np.isin(evidence.clean["sample"], evidence.broken_ids(evidence.trials[number]))
        place[broken] = number
    return place


def cascade_figures(
    evidence: Evidence, seconds: Mapping[str, float] | None = None
) -> tuple[Stage, ...]:
    """For every attack in its order: what stood before it, what it broke, what it left.

    ``before`` is ``broken + left + unknown``; unknown are samples it was not judged on.
    ``queries_to_break`` is the median over what it was first to break, of its own queries.
    """
    place, stages = first_place(evidence), []
    for number, trial in enumerate(evidence.trials):
        before = evidence.right & ((place < 0) | (place >= number))
        left = before & (place != number)
        unknown = left & ~evidence.covered(trial)
        mine = np.isin(trial.rows["sample"], evidence.clean["sample"][place == number])
        asked = trial.rows["first_query"][mine]
        asked = asked[asked >= 0]
        stages.append(
            Stage(
                trial.text,
                int(before.sum()),
                int((before & (place == number)).sum()),
                int((left & ~unknown).sum()),
                int(unknown.sum()),
                float(np.median(asked)) if len(asked) else None,
                seconds=(seconds or {}).get(trial.text, 0.0),
                **{what: int(trial.rows[what].sum()) for what in COSTS},
            )
        )
    return tuple(stages)

"""The first attack that broke each sample, and the cost up to then."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from besiege.metrics.attack_values import Stage
from besiege.metrics.evidence import Evidence
from besiege.metrics.rows import Rows, places

COSTS = ("queries", "forwards", "backwards")
Counts = NDArray[np.int64]


def fates(evidence: Evidence) -> Rows:
    """The result of all attacks on every sample, one row each, in the order of the clean rows.

    ``fate`` is 'wrong' (misclassified when clean), 'broken', 'standing', or 'unknown' where not
    every attack was judged; ``attack`` is the text of the first attack that broke it, in the order
    of the list. ``queries``, ``forwards`` and ``backwards`` are the cost up to the success, earlier
    attacks included, or the whole cost of a sample that stands; ``step`` and ``distance`` are those
    of the success, -1 and NaN without one.

    Forward and backward passes are those of the whole attack where it continues after a success,
    as attacks on stochastic victims do.
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
            # A success that only the judge saw has no first query: it took all queries.
            early = breaks & (hit >= 0) & (what == "queries")
            spent[what][where] += np.where(early, hit, rows[what])
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
            "attack": names[place],  # the last name, of place -1, is empty
            "step": step,
            "distance": distance,
            **spent,
        }
    )


def first_place(evidence: Evidence) -> Counts:
    """The place in the list of the first attack that broke each sample; -1 without one."""
    place = np.full(evidence.count, -1, np.int64)
    for number in reversed(range(len(evidence.trials))):
        broken = np.isin(evidence.clean["sample"], evidence.broken_ids(evidence.trials[number]))
        place[broken] = number
    return place


def cascade_figures(
    evidence: Evidence, seconds: Mapping[str, float] | None = None
) -> tuple[Stage, ...]:
    """For every attack in order: unbroken samples before it, broken ones, and unbroken ones after.

    ``before`` is ``broken + left + unknown``; unknown are samples it was not judged on, although it
    was meant for them.
    ``queries_to_break`` is the median of its own queries over the samples that it broke first.
    """
    samples, place, stages = evidence.clean["sample"], first_place(evidence), []
    for number, trial in enumerate(evidence.trials):
        before = evidence.right & ((place < 0) | (place >= number))
        left = before & (place != number)
        unknown = left & ~evidence.covered(trial) & (not trial.partial)
        mine = np.isin(trial.rows["sample"], samples[place == number])
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
                spared=int(np.isin(samples[before], trial.rows["sample"][trial.spared]).sum()),
                **{what: int(trial.rows[what].sum()) for what in COSTS},
            )
        )
    return tuple(stages)

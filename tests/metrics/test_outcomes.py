"""Outcomes of a search as arrays: the best so far, for attacks that recorded it."""

from __future__ import annotations

import numpy as np
from tests.metrics.test_distances import evidence, trial

from besiege.metrics.distances import BEST, IN_ALL
from besiege.metrics.outcomes import Outcomes

INF = np.inf
NOTED = {
    f"{BEST}1": [INF, 0.9, INF, INF, INF],
    f"{BEST}2": [0.9, 0.5, INF, 0.1, INF],
    f"{BEST}3": [0.6, 0.5, INF, 0.1, INF],
    f"{BEST}6": [0.5, 0.4, INF, 0.1, INF],
    IN_ALL: [0.5, 0.4, 0.6, 0.1, INF],
}


def test_the_best_within_numbers_of_passes() -> None:
    """Sample 13 was not broken for the judge, and 14 is misclassified when clean."""
    mine = trial("mine", [0.5, 0.4, 0.6, INF, INF], "b", **NOTED)
    silent = trial("silent", [0.2, 0.4, 0.6, INF, INF], "c")
    found = Outcomes.of(evidence(mine, silent))
    assert found.passes.tolist() == [1, 2, 5, 10], "ten passes were spent on every sample"
    expected = [
        [INF, 0.9, 0.6, 0.5],
        [0.9, 0.5, 0.5, 0.4],
        [INF, INF, INF, 0.6],
        [INF] * 4,
        [0.0] * 4,
    ]
    assert np.array_equal(found.best[0], np.array(expected, np.float32))
    assert np.isnan(found.best[1]).all(), "not recorded is not known, also of a clean error"
    assert found.searched.tolist() == [0.2, 0.4, 0.6, INF, 0.0]
    assert Outcomes.of(evidence(silent)).best.shape == (1, 5, 0)

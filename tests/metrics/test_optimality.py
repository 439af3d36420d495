from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from besiege.core.errors import InputError
from besiege.metrics import area, envelope, global_optimality, local_optimality
from besiege.metrics.optimality import fall

INF = np.inf


def by_steps(distances: list[float], limit: float) -> float:
    """The area as an integral over the stretches between distances, one by one."""
    points = sorted({0.0, limit, *(d for d in distances if d < limit)})
    stretches = pairwise(points)
    share = [float(np.mean(np.array(distances) > low)) * (high - low) for low, high in stretches]
    return sum(share)


def test_the_area_is_the_integral_of_the_step_function() -> None:
    # Accuracy 3/4 up to 1, 1/2 up to 3, 1/4 from there on.
    assert area([0.0, 1.0, 3.0, INF], limit=4.0) == 0.75 + 0.5 * 2 + 0.25
    random = np.random.default_rng(0)
    for _ in range(20):
        found = random.exponential(size=30).round(1)
        found[random.random(30) < 0.2] = INF
        assert area(found, 1.5) == pytest.approx(by_steps(found.tolist(), 1.5))


def test_local_optimality_by_hand() -> None:
    # One of four is wrong when clean: c = 3/4, e0 = 4, the envelope's area (1 + 2 + 4) / 4.
    best = [0.0, 1.0, 2.0, 4.0]
    assert fall(best) == 4.0
    found = [0.0, 2.0, 2.0, INF]  # area (2 + 2 + 4) / 4: what lies beyond e0 counts as e0
    assert local_optimality(found, best) == pytest.approx(1 - (2.0 - 1.75) / (3.0 - 1.75))
    assert local_optimality([0.0, INF, INF, INF], best) == 0.0
    assert local_optimality(best, best) == 1.0


def test_the_envelope_has_one_and_worse_is_smaller() -> None:
    random = np.random.default_rng(1)
    for _ in range(20):
        table = random.exponential(size=(4, 25))
        table[random.random(table.shape) < 0.2] = INF
        table[:, :3] = 0.0
        best = envelope(table)
        scores = [local_optimality(row, best) for row in table]
        assert local_optimality(best, best) == 1.0 and all(0 <= s <= 1 for s in scores)
        worse = table[0].copy()
        worse[5:10] *= 1.5
        assert local_optimality(worse, best) <= scores[0]
        failed = np.where(np.arange(25) < 8, INF, table[0])
        failed[:3] = 0.0
        assert local_optimality(failed, best) <= scores[0]
        # Of three times the size all is the same.
        assert local_optimality(3 * table[0], 3 * best) == pytest.approx(scores[0])


def test_what_no_attack_broke_counts_for_neither_side() -> None:
    best, found = [0.0, 1.0, 2.0], [0.0, 1.5, INF]
    with_others = local_optimality([*found, INF, INF], [*best, INF, INF])
    assert with_others == pytest.approx(local_optimality(found, best))


def test_where_all_falls_at_once_an_attack_equals_the_envelope_or_does_not() -> None:
    assert local_optimality([0.5, 0.5], [0.5, 0.5]) == 1.0
    assert local_optimality([0.5, INF], [0.5, 0.5]) == 0.0
    assert local_optimality([0.0, INF], [0.0, INF]) == 1.0


def test_the_global_one_is_the_mean_over_models() -> None:
    assert global_optimality([0.25, 0.75]) == 0.5


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (lambda: local_optimality([0.1], [0.1, 0.2]), "same samples"),
        (lambda: local_optimality([0.1], [0.2]), "this one included"),
        (lambda: local_optimality([-0.1], [0.2]), "negative"),
        (lambda: local_optimality([np.nan], [0.2]), "not numbers"),
        (lambda: area([0.1], INF), "finite"),
        (lambda: area([], 1.0), "no distances"),
        (lambda: envelope([0.1, 0.2]), "attacks, samples"),
        (lambda: global_optimality([]), "each model"),
    ],
)
def test_wrong_input_is_refused(what: object, said: str) -> None:
    assert callable(what)
    with pytest.raises(InputError, match=said):
        what()


@pytest.mark.parametrize(("samples", "distance"), [(6, 0.1), (34, 1 / 255), (7, 0.3)])
def test_where_all_fall_at_once_a_failure_is_none(samples: int, distance: float) -> None:
    best = [distance] * samples
    assert local_optimality([np.inf] * samples, best) == 0.0
    assert local_optimality(best, best) == 1.0

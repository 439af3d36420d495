from __future__ import annotations

import numpy as np
import pytest

from besiege.core.errors import InputError
from besiege.metrics import Evidence, Rows, Trial, against_cost, quantile
from besiege.metrics.attack_values import Descent
from besiege.metrics.distances import BEST, IN_ALL, distance_figures, smallest
from besiege.metrics.figures import budget_curves, budget_figures, gallery, steps_figures

INF = np.inf
COUNT = 5


def rows(**columns: object) -> Rows:
    return Rows({name: np.asarray(column) for name, column in columns.items()})


def trial(text: str, l2: list[float], record: str, **more: object) -> Trial:
    """Sample 14 is wrong when clean."""
    won = np.isfinite(l2)
    found = rows(
        sample=[10, 11, 12, 13, 14],
        success=won,
        l2=np.where(won, l2, 0.0),
        linf=np.where(won, np.array(l2) / 2, 0.0),
        first_step=[0] * COUNT,
        queries=[6] * COUNT,
        backwards=[4] * COUNT,
        prediction=[1] * COUNT,
        confidence=[0.5] * COUNT,
        record=[record] * COUNT,
        row=range(COUNT),
    )
    return Trial(text, found.having(**{n: np.asarray(c) for n, c in more.items()}), steps=3)


ONE = trial("one", [0.2, 0.4, 0.6, INF, 0.0], "b")
TWO = trial("two", [0.3, 0.1, INF, INF, 0.0], "c")


def evidence(*trials: Trial) -> Evidence:
    clean = rows(
        sample=[10, 11, 12, 13, 14],
        label=[0, 1, 0, 1, 1],
        prediction=[0, 1, 0, 1, 0],
        confidence=[0.9] * COUNT,
        correct=[True] * 4 + [False],
        record=["a"] * COUNT,
        row=range(COUNT),
    )
    return Evidence(clean, trials, False, "l2", None, (0.0, 1.0), 4, 2, curve=trials[0])


def test_a_quantile_is_a_budget_at_which_that_share_has_fallen() -> None:
    found = [0.4, 0.1, 0.2, 0.3]
    assert [quantile(found, q) for q in (0.25, 0.5, 0.51, 0.9, 1.0)] == [0.1, 0.2, 0.3, 0.4, 0.4]
    assert quantile([0.1, INF]) == 0.1 and quantile([0.1, INF, INF]) == INF
    assert quantile(np.arange(1, 11), 0.9) == 9, "not one more by rounding"
    with pytest.raises(InputError):
        quantile([])


def test_figures_are_of_the_same_samples_and_infinite_ones_are_said() -> None:
    found = distance_figures(evidence(ONE, TWO))
    assert found is not None
    assert (found.count, found.broken) == (5, 3)
    one, two = found.attacks
    everything = found.all
    # Smallest of all: 0 (wrong when clean), 0.1, 0.2, 0.6 and never.
    assert everything.median == 0.2 and everything.area_to == 0.6
    assert everything.area == pytest.approx((0.0 + 0.1 + 0.2 + 0.6 + 0.6) / 5)
    assert everything.mean is None and everything.p90 is None
    assert everything.unbroken == 1
    assert one.median == 0.4 and two.median == 0.3
    assert (one.best, two.best) == (2, 1)
    assert (one.unbroken, two.unbroken) == (1, 2)
    areas = (one.area, everything.area)
    assert one.optimality == pytest.approx(1 - (areas[0] - areas[1]) / (0.8 * 0.6 - areas[1]))
    assert one.cost is None, "records of before it was noted"


def test_the_smallest_change_of_each_sample_with_the_norms_of_its_image() -> None:
    found = smallest(evidence(ONE, TWO))
    assert found["sample"].tolist() == [10, 11, 12, 13, 14]
    assert found["distance"].tolist() == [0.2, 0.1, 0.6, INF, 0.0]
    assert found["attack"].tolist() == ["one", "two", "one", "", ""]
    assert found["linf"].tolist() == [0.1, 0.05, 0.3, INF, 0.0]
    assert found["record"].tolist() == ["b", "c", "b", "", ""]


def test_each_attack_has_its_curve_and_no_curve_of_steps() -> None:
    case = evidence(ONE, TWO)
    together, each = budget_figures(case), budget_curves(case)
    assert together is not None and [c.attack for c in each] == ["one", "two"]
    assert together.x == (0.0, 0.1, 0.2, 0.6)
    assert each[1].x == (0.0, 0.1, 0.3) and each[1].value == (0.8, 0.6, 0.4)
    assert all(
        low <= v <= high
        for low, v, high in zip(each[1].low, each[1].value, each[1].high, strict=True)
    )
    assert budget_curves(evidence(ONE)) == ()
    assert steps_figures(case) == ()


def test_the_gallery_shows_what_is_nearest_to_the_median() -> None:
    shown = gallery(evidence(ONE, TWO))
    assert [item.sample for item in shown] == [11, 10, 12], "from small to large"
    assert [item.attack for item in shown] == ["two", "one", "one"]
    assert shown[0].distances == {"l2": 0.1, "linf": 0.05}
    many = trial("many", [0.1, 0.4, 0.5, 0.9, 0.0], "d")
    assert gallery(evidence(many))[0].sample == 10


def test_the_median_against_cost_starts_infinite_and_falls() -> None:
    table = [[INF, 0.5, 0.2], [0.3, 0.3, 0.3], [INF, INF, 0.4]]
    assert against_cost(table).tolist() == [INF, 0.5, 0.3]
    assert against_cost(table, 1.0).tolist() == [INF, INF, 0.4]
    with pytest.raises(InputError, match="marks"):
        against_cost([0.1, 0.2])


def test_cost_from_records_of_different_lengths() -> None:
    noted = {
        f"{BEST}1": [INF, INF, INF, INF, 0.0],
        f"{BEST}2": [0.5, 0.4, INF, 0.1, 0.0],
        # The record of the first two rows was done by then.
        f"{BEST}10": [np.nan, np.nan, 0.6, 0.1, 0.0],
    }
    mine = trial("mine", [0.5, 0.4, 0.6, INF, 0.0], "b", **noted)
    found = distance_figures(evidence(mine))
    assert found is not None
    # The judge found no success for sample 13: what was claimed of it does not count.
    cost = found.attacks[0].cost
    assert cost == Descent((1, 2, 10), (None, 0.5, 0.5), 0.5, 10.0)
    assert found.attacks[0].median == 0.5


def test_the_descent_ends_with_what_the_whole_run_found_and_the_judge_measured() -> None:
    noted = {
        f"{BEST}1": [INF, INF, 0.7, INF, INF],
        f"{BEST}2": [0.9, 0.5, 0.3, 0.1, 0.0],
        # Found after the last number of passes that is noted.
        IN_ALL: [0.5, 0.4, 0.3, 0.1, 0.0],
    }
    mine = trial("mine", [0.5, 0.4, 0.6, INF, 0.0], "b", **noted)
    found = distance_figures(evidence(mine))
    assert found is not None
    cost = found.attacks[0].cost
    # Of sample 12 a change of 0.3 was claimed, and the judge measured 0.6.
    assert cost is not None and cost.median == (None, 0.6)
    assert cost.in_all == found.attacks[0].median == 0.5


def test_attacks_one_after_the_other_add_up_their_passes() -> None:
    def noted(one: list[float], two: list[float]) -> dict[str, list[float]]:
        return {f"{BEST}1": one, f"{BEST}10": two, IN_ALL: two}

    first = trial("first", [0.4, 0.4, 0.4, 0.4, 0.0], "b", **noted([INF] * 5, [0.4] * 4 + [0.0]))
    second = trial(
        "second", [0.1, 0.1, 0.6, 0.6, 0.0], "c", **noted([0.6] * 5, [0.1] * 2 + [0.6] * 3)
    )
    found = distance_figures(evidence(first, second))
    assert found is not None
    cost = found.all.cost
    assert cost is not None and cost.passes == (1, 2, 5, 10, 20) and cost.spent == 20.0
    # The second begins when the ten passes of the first are over, and is known after ten more.
    assert cost.median == (None, None, None, 0.4, 0.1)
    turned = distance_figures(evidence(second, first))
    assert turned is not None and turned.all.cost is not None
    assert turned.all.cost.median == (0.6, 0.6, 0.6, 0.1, 0.1)
    assert turned.all.cost.in_all == cost.in_all == 0.1
    # Where records of one of them do not say, nothing is said of all.
    third = trial("third", [0.1, 0.1, 0.6, 0.6, 0.0], "d")
    found = distance_figures(evidence(first, third))
    assert found is not None and found.all.cost is None

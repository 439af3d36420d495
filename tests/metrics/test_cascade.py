"""Which attack broke a sample first, at what cost: small cases that can be counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from besiege.metrics import Evidence, Rows, Trial
from besiege.metrics.attack_utility import attack_utility_figures
from besiege.metrics.cascade import cascade_figures, fates, first_place
from besiege.metrics.figures import attack_figures
from besiege.metrics.registry import Case

RIGHT = [True, True, True, True, False]


def trial(text: str, samples: list[int], broken: list[int], **columns: list[float]) -> Trial:
    """An attack that asked 10 of each sample, and 3 where it broke it."""
    success = np.isin(samples, broken)
    hit = np.where(success, 3, -1)
    table: dict[str, Any] = {
        "sample": np.array(samples),
        "success": success,
        "first_query": hit,
        "first_step": np.where(success, 2, -1),
        "queries": np.where(success, 4, 10),
        "forwards": np.where(success, 5, 11),
        "backwards": np.where(success, 6, 12),
        "linf": np.where(success, 0.5, 0.0),
        **{name: np.array(values) for name, values in columns.items()},
    }
    return Trial(text, Rows(table))


def evidence(*trials: Trial, chained: bool = False) -> Evidence:
    clean = Rows(
        {"sample": np.array([7, 3, 9, 1, 5]), "label": np.arange(5), "correct": np.array(RIGHT)}
    )
    return Evidence(clean, trials, chained, "linf", 0.5, (0.0, 1.0), 4, 10)


LISTED = evidence(trial("a", [1, 3, 5, 7, 9], [3, 5]), trial("b", [9, 7, 5, 3, 1], [3, 9, 5]))
CHAINED = evidence(trial("a", [1, 3, 5, 7, 9], [3, 5]), trial("b", [9, 7, 1], [9]), chained=True)


def test_the_first_in_the_list_counts() -> None:
    for case in (LISTED, CHAINED):
        assert first_place(case).tolist() == [-1, 0, 1, -1, -1]
        found = fates(case)
        assert found["sample"].tolist() == [7, 3, 9, 1, 5]
        assert found["fate"].tolist() == ["standing", "broken", "broken", "standing", "wrong"]
        assert found["attack"].tolist() == ["", "a", "b", "", ""]
        assert found["step"].tolist() == [-1, 2, 2, -1, -1]
        assert np.isnan(found["distance"]).tolist() == [True, False, False, True, True]


def test_the_cost_is_all_that_was_spent_up_to_the_break() -> None:
    for case in (LISTED, CHAINED):
        found = fates(case)
        assert found["queries"].tolist() == [20, 3, 13, 20, 0]
        assert found["forwards"].tolist() == [22, 5, 16, 22, 0]
        assert found["backwards"].tolist() == [24, 6, 18, 24, 0]


def test_a_success_that_only_the_judge_saw_took_all_queries() -> None:
    late = trial("a", [1, 3, 5, 7, 9], [3], first_query=[-1] * 5)
    assert fates(evidence(late))["queries"].tolist() == [10, 4, 10, 10, 0]


def test_what_was_not_judged_is_unknown_and_never_left() -> None:
    case = evidence(trial("a", [1, 3, 5, 7, 9], [3]), trial("b", [9, 7], [9]), chained=True)
    assert fates(case)["fate"].tolist() == ["standing", "broken", "broken", "unknown", "wrong"]
    first, second = cascade_figures(case)
    assert (first.before, first.broken, first.left, first.unknown) == (4, 1, 3, 0)
    assert (second.before, second.broken, second.left, second.unknown) == (3, 1, 1, 1)


def test_the_stages_add_up() -> None:
    for case in (LISTED, CHAINED):
        first, second = cascade_figures(case)
        assert (first.before, first.broken, first.left) == (4, 1, 3)
        assert (second.before, second.broken, second.left) == (3, 1, 2)
        assert first.queries_to_break == 3.0 and first.unknown == 0
    assert cascade_figures(LISTED)[1].forwards == 3 * 5 + 2 * 11
    idle = evidence(trial("a", [1, 3, 5, 7, 9], []))
    assert cascade_figures(idle)[0].queries_to_break is None


def counted(case: Evidence) -> list[tuple[int, int | None]]:
    found = attack_figures(Case(case))
    assert not case.chained or [one.broken for one in found] == [
        stage.broken for stage in cascade_figures(case)
    ], "one count of one attack"
    return [(one.broken, one.alone) for one in found]


def test_no_image_of_a_suite_is_broken_by_one_attack_only() -> None:
    """The second attack never saw what the first broke, so that only a list can tell."""
    assert counted(LISTED) == [(1, 0), (2, 1)]
    assert counted(CHAINED) == [(1, None), (1, None)]


def test_a_suite_counts_an_image_once_that_it_attacks_again() -> None:
    """Of a stochastic model, 3 is attacked again: some draws were right."""
    again = trial("b", [3, 9, 7, 1], [3, 9], linf=[0.1, 0.5, 0.0, 0.0])
    case = evidence(trial("a", [1, 3, 5, 7, 9], [3, 5]), again, chained=True)
    assert counted(case) == [(1, None), (1, None)]
    assert attack_figures(Case(case))[1].median_distance == 0.5, "of the image that it broke first"
    assert [one.count for one in attack_utility_figures(Case(case))] == [1, 1]

"""The check of attacks without gradients names what broke images that the others left."""

from __future__ import annotations

import numpy as np
import pytest
from tests.metrics.test_warnings import N, evidence, trial

from besiege.core.examination import Check
from besiege.metrics.evidence import Trial
from besiege.metrics.examination import KNOWING, examination_figures
from besiege.metrics.registry import Case
from besiege.metrics.rows import Rows

LEFT = 100
"""Samples that PGD leaves: the last ones."""


def guard(broken: slice, **more: object) -> Trial:
    success = np.zeros(N, bool)
    success[N - LEFT :][broken] = True
    return trial(
        "guard", 0, guard=True, columns={"success": success}, **{"access": "score", **more}
    )


def check(*guards: Trial) -> Check:
    case = evidence(trial("pgd", N - LEFT), *guards, others={"examine": Rows({})})
    found = examination_figures(Case(case))
    assert found is not None
    return found.checks[0]


@pytest.mark.parametrize(
    ("noise", "square", "other", "rule"),
    [
        (0, 0, 0, ""),
        (2, 0, 0, ""),
        (3, 0, 0, "W10"),
        (4, 3, 0, "W10"),
        (4, 0, 3, "W10"),
        (3, 3, 0, "W08"),
        (0, 9, 0, "W08"),
        (0, 1, 5, "W08"),
        (0, 0, 5, "W09"),
    ],
)
def test_the_rule_is_that_of_what_broke_most(
    noise: int, square: int, other: int, rule: str
) -> None:
    both = noise + square
    found = check(
        guard(slice(noise), access="decision", random=True),
        guard(slice(noise, both)),
        guard(slice(both, both + other), access="transfer"),
    )
    assert (found.rule, found.outcome) == (rule, "failed" if rule else "passed")
    assert found.number == f"{noise + square + other} of {LEFT} images"
    assert ("random points" in found.seen) == (rule == "W10")
    assert ("other attacks" in found.seen) == (rule == "W10" and square + other > 0)


@pytest.mark.parametrize(
    ("left", "broken", "outcome", "allowed"),
    [
        (25, 1, "passed", True),
        (25, 2, "failed", False),
        (50, 1, "passed", False),
        (100, 2, "passed", False),
        (100, 3, "failed", False),
    ],
)
def test_a_single_image_is_allowed_and_the_check_says_so(
    left: int, broken: int, outcome: str, allowed: bool
) -> None:
    success = np.zeros(N, bool)
    success[N - broken :] = True
    square = trial("square", 0, guard=True, columns={"success": success}, access="score")
    case = evidence(trial("pgd", N - left), square, others={"examine": Rows({})})
    found = examination_figures(Case(case))
    assert found is not None
    one = found.checks[0]
    assert one.outcome == outcome
    assert ("a single image is allowed" in one.number) == allowed
    assert "a single image is allowed" in one.meaning
    if outcome == "failed":
        assert one.seen.endswith(f"; at most {left // 50 or 1} of them may be broken.")


def ignoring(broken: int) -> Trial:
    """An attack that ignores the defense, which breaks the last samples only."""
    success = np.arange(N) >= N - broken
    text = "oblivious(pgd)"
    return trial(text, 0, columns={"success": success}, access="transfer", oblivious=True)


def test_an_attack_that_ignores_the_defense_is_not_one_without_gradients() -> None:
    case = evidence(trial("pgd", N - LEFT), ignoring(9), others={"examine": Rows({})})
    found = examination_figures(Case(case))
    assert found is not None
    first, second = found.checks[:2]
    assert (first.outcome, first.rule) == ("not run", "")
    assert (second.name, second.outcome, second.rule) == (KNOWING, "failed", "W48")
    assert second.number == f"9 of {LEFT} images" and "9 of the 100 images" in second.seen


@pytest.mark.parametrize(
    ("broken", "chained", "outcome"),
    [(2, False, "passed"), (3, False, "failed"), (3, True, "")],
)
def test_attacks_that_know_the_defense_must_find_no_less(
    broken: int, chained: bool, outcome: str
) -> None:
    trials = (trial("pgd", N - LEFT), ignoring(broken))
    found = examination_figures(
        Case(evidence(*trials, chained=chained, others={"examine": Rows({})}))
    )
    assert found is not None
    outcomes = {one.name: one.outcome for one in found.checks}
    assert outcomes.get(KNOWING, "") == outcome, "in a suite, others never saw what it broke"


def test_without_an_attack_on_the_model_itself_nothing_is_compared() -> None:
    found = examination_figures(Case(evidence(ignoring(9), others={"examine": Rows({})})))
    assert found is not None and KNOWING not in {one.name for one in found.checks}

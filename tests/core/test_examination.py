from __future__ import annotations

import pytest

from besiege.core.errors import Finding, Level
from besiege.core.examination import MEANINGS, Check, Examination
from besiege.evaluation import active, nearby, sameness, slope_checks
from besiege.metrics.examination import ACTIVE, KNOWING, _without_gradients


def test_every_check_says_what_it_does() -> None:
    names = {slope_checks.OF_THE_ANSWERS, slope_checks.WITHIN_THE_BUDGET, nearby.NAME, active.NAME}
    names |= {sameness.NAME, sameness.AGAIN, ACTIVE, KNOWING}
    (rest,) = set(MEANINGS) - names
    assert names < set(MEANINGS) and rest in str(_without_gradients.__code__.co_consts)
    assert Check("another", "passed").meaning == ""


def test_the_summary_names_what_failed_and_what_was_not_run() -> None:
    checks = (Check("a", "passed"), Check("b", "failed"), Check("c", "not run"))
    assert Examination(checks).summary == (
        "3 checks: 1 passed, 1 failed, 1 not run; failed: b; not run: c"
    )
    assert Examination(checks[:1]).summary == "1 checks: 1 passed"


def test_what_was_not_asked_is_neither_yes_nor_hidden_by_a_stop() -> None:
    asked = Examination((Check("a", "passed"),), "transfer attacks only")
    assert asked.enough == "not asked" and asked.answer.count("transfer attacks only") == 1
    assert asked.summary == "transfer attacks only; 1 checks: 1 passed"
    stopped = Examination((Check("a", "failed"),), "transfer attacks only")
    assert stopped.enough == "no" and "transfer" not in stopped.summary


def test_unknown_says_whether_the_figures_may_be_quoted() -> None:
    unknown = Examination((Check("a", "passed"), Check("c", "not run")))
    assert "may be quoted with that word" in unknown.answer


@pytest.mark.parametrize(
    ("id", "level", "enough"),
    [
        ("W05", "warning", "unknown"),
        ("W24", "note", "yes"),
        ("W22", "stop", "no"),
        ("W21", "warning", "unknown"),
    ],
)
def test_an_open_finding_is_no_yes(id: str, level: Level, enough: str) -> None:
    passed = Examination((Check("a", "passed"),))
    found = passed.beside([Finding(id, "seen.", "advice.", level)])
    assert found.enough == enough
    assert (id in found.answer and id in found.summary) == (enough != "yes")
    assert "did not pass" not in found.answer, "all checks passed"


def test_both_reasons_for_unknown_are_named() -> None:
    checks = (Check("a", "passed"), Check("c", "not run"))
    found = Examination(checks).beside([Finding(id, "", "") for id in ("W05", "W08", "W05")])
    assert found.summary == "2 checks: 1 passed, 1 not run; not run: c; open: W05, W08"
    assert "did not pass and the warnings that are open: W05, W08." in found.answer


def test_a_stop_of_a_rule_does_not_blame_the_checks() -> None:
    stop = [Finding("W35", "", "", "stop")]
    found = Examination((Check("a", "passed"),)).beside(stop)
    assert found.answer == "The figures of this evaluation must not be quoted: W35."
    failed = Examination((Check("a", "failed"),)).beside(stop)
    assert "not strong enough" in failed.answer and "W35" not in failed.summary

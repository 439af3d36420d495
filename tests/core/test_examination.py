from __future__ import annotations

from besiege.core.examination import MEANINGS, Check, Examination
from besiege.evaluation import active, nearby, sameness, slope_checks
from besiege.metrics.examination import ACTIVE, _without_gradients


def test_every_check_says_what_it_does() -> None:
    names = {slope_checks.OF_THE_ANSWERS, slope_checks.WITHIN_THE_BUDGET, nearby.NAME, active.NAME}
    names |= {sameness.NAME, sameness.AGAIN, ACTIVE}
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

"""Verdicts of gates, from figures alone."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from tests.docs.test_warnings import rules
from tests.report.sample import MODEL, evaluation, four, rate, threat

from besiege.core.errors import Finding, InputError, Level
from besiege.metrics import EvaluationFigures
from besiege.metrics.gates import (
    STOPPING,
    FailUnder,
    NotWorse,
    Verdict,
    checked_rules,
    judged,
    titles,
)
from besiege.metrics.paired import Difference

STOP: Level = get_args(Level)[0]
WITHOUT = evaluation(warnings=[])


def outcomes(verdicts: list[Verdict]) -> list[tuple[str, str]]:
    return [(one.check, one.outcome) for one in verdicts]


def stopped(*ids: str) -> EvaluationFigures:
    return evaluation(warnings=[Finding(one, "it is so.", "do not.", STOP) for one in ids])


def test_the_lower_limit_decides_or_the_value() -> None:
    found = evaluation(robust=rate(200, 400), warnings=[])  # 50 % [45.0, 55.0]
    low = found.robust.low if found.robust else 0.0
    for gate, outcome in (
        (FailUnder(low), "passed"),
        (FailUnder(low + 1e-9), "failed"),
        (FailUnder(0.5, point=True), "passed"),
        (FailUnder(0.5 + 1e-9, point=True), "failed"),
    ):
        (figures, verdict) = judged([found], [gate])
        assert figures.passed and verdict.outcome == outcome
        assert verdict.about == "zoo:digits-natural against linf:0.15"
        assert "robust accuracy 50.0 % [45.0, 55.0]: the " in verdict.reason
    failed = judged([found], [FailUnder(0.48)])[1]
    assert str(failed) == (
        "fail-under 48 failed: zoo:digits-natural against linf:0.15: robust accuracy 50.0 % "
        "[45.0, 55.0]: the lower limit 45.0 % is below 48 %"
    )


def test_nothing_judged_passes_nothing() -> None:
    found = judged([evaluation(robust=None, warnings=[])], [FailUnder(0.0)])
    assert found[1].outcome == "failed" and "no image was judged" in found[1].reason


def test_figures_that_must_not_be_quoted_stop_unless_allowed() -> None:
    found = [stopped("W14", "W22"), WITHOUT]
    assert outcomes(judged(found)) == [
        ("figures W14", "stop"),
        ("figures W22", "stop"),
        ("figures", "passed"),
    ]
    assert outcomes(judged(found, allowed=["W14"])) == [
        ("figures W22", "stop"),
        ("figures", "passed"),
    ]
    both = judged(found, allowed=["W14", "W22"])
    assert all(one.passed for one in both) and both[0].reason == "W14 and W22 allowed"
    twice = evaluation(warnings=[Finding("W11", f"{n}.", "no.", STOP) for n in ("one", "two")])
    (verdict,) = judged([twice])
    assert verdict.reason == "the figures must not be quoted (W11): one. two."
    seconds = [one.seconds for one in judged([stopped("W14", "W22")])]
    assert seconds == [9.7, 0.0], "the time of an evaluation counts once"


def test_a_warning_does_not_stop() -> None:
    assert all(one.passed for one in judged([evaluation()]))


def test_no_gate_is_decided_on_an_incomplete_evaluation() -> None:
    lacking = Finding("FAILED", "'pgd' failed: ValueError: no", "Run it again.", STOP)
    found = replace(WITHOUT, complete=False, warnings=(lacking,))
    gate = NotWorse("old", {WITHOUT.name: Difference.counted(0, 0, 397)})
    verdicts = judged([found, WITHOUT], [FailUnder(0.9), gate])
    assert [one.outcome for one in verdicts] == [
        *("incomplete", "passed"),
        *("incomplete", "failed"),
        *("incomplete", "passed"),
    ]
    assert "ValueError: no. Run it again." in verdicts[0].reason
    assert "cannot be decided" in verdicts[2].reason
    again = judged([found], allowed=["FAILED", "W14"])
    assert outcomes(again) == [("figures", "incomplete")], "nothing makes it complete"


def compared(*pairs: tuple[int, int]) -> list[Verdict]:
    """The verdicts of evaluations that gained and lost so many of 400 samples."""
    found = [
        evaluation(name=str(n), threat=threat(f"l2:{n}", n), warnings=[]) for n in range(len(pairs))
    ]
    differences = {str(n): Difference.counted(*pair, 400) for n, pair in enumerate(pairs)}
    return judged(found, [NotWorse("old", differences)])[len(pairs) :]


def test_worse_is_significantly_worse() -> None:
    assert compared((0, 6))[0].outcome == "failed"  # p = 0.031
    assert compared((0, 5))[0].outcome == "passed"  # p = 0.0625
    assert compared((60, 0))[0].outcome == "passed", "better is not worse"
    assert compared((0, 0))[0].reason.startswith("not worse: +0.0 points [")
    said = compared((0, 6))[0].reason
    assert said == "worse: -1.5 points [-3.2, -0.5] on the same 400 images, p = 0.031"
    unsure = compared((0, 5))[0].reason
    assert unsure.startswith("not significantly worse: -1.2 points [-2.9, ")
    assert "p = 0.062; about " in unsure and unsure.endswith(" images could tell")


def test_several_comparisons_are_corrected_together() -> None:
    # 0.031 alone is significant, and one of two is not: 2 x 0.031.
    both = compared((0, 6), (0, 0))
    assert [one.outcome for one in both] == ["passed", "passed"]
    assert "p = 0.062 (Holm, 2 evaluations)" in both[0].reason
    assert [one.outcome for one in compared((0, 7), (0, 0))] == ["failed", "passed"]  # 0.031
    assert [one.outcome for one in compared((0, 7), (0, 6))] == ["failed", "failed"]


def test_equal_names_are_told_apart() -> None:
    assert len(set(titles(four().evaluations))) == 4
    one, other = WITHOUT, replace(WITHOUT, suite="standard")
    assert titles([one, other]) == [
        "zoo:digits-natural against linf:0.15 on digits by fgsm, pgd, mim",
        "zoo:digits-natural against linf:0.15 on digits by standard",
    ]
    assert titles([one]) == ["zoo:digits-natural against linf:0.15"]
    named = replace(WITHOUT, model=replace(MODEL, name="other"))
    assert titles([one, named])[1] == "other against linf:0.15"


def test_the_rules_that_stop_are_those_of_the_code() -> None:
    stopping = {rule for rule, levels in rules().items() if STOP in levels}
    assert {rule for rule in stopping if rule.startswith("W")} == set(STOPPING)


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("W41", "only those can be allowed .W01, W08, W09.*did you mean"),
        ("w14", "did you mean 'W14'"),
        ("W24", "no rule that stops figures"),
        ("FAILED", "cannot be allowed: the evaluation is not complete"),
        ("", "known: W01, W08"),
    ],
)
def test_only_rules_that_stop_can_be_allowed(rule: str, told: str) -> None:
    assert checked_rules(["W14", "W22", "W14"]) == ("W14", "W22")
    with pytest.raises(InputError, match=told):
        checked_rules(["W14", rule])

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from besiege.core.errors import ThreatError
from besiege.core.threat import L0, L1, L2, Access, Goal, Linf, Norm, Threat

EXACT = [
    "linf:8/255",
    "linf:1/255",
    "linf:16/255",
    "linf:0.3",
    "linf:0.03",
    "linf:0.0001",
    "linf:1/7",
    "linf:22/7",
    "linf:1",
    "linf",
    "l2:0.5",
    "l2:3",
    "l2:0.0009765625",
    "l2",
    "l1:12",
    "l1:0.1",
    "l1",
    "l0:20",
    "l0",
    "linf:8/255 targeted:random",
    "linf:8/255 targeted:least-likely",
    "l2:0.5 targeted:second",
    "l1:12 targeted:given",
    "linf:8/255 score",
    "linf:8/255 decision",
    "l2 targeted:random decision",
    "l2:0.5 targeted:random score",
]


@pytest.mark.parametrize("text", EXACT)
def test_texts_print_back_exactly(text: str) -> None:
    threat = Threat.parse(text)
    assert str(threat) == text
    assert Threat.parse(str(threat)) == threat
    assert eval(repr(threat), {"Threat": Threat.parse}) == threat
    assert hash(threat) == hash(Threat.parse(text))


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("linf:1e-3", "linf:0.001"),
        ("linf:2/510", "linf:1/255"),
        ("linf:51/255", "linf:0.2"),
        ("linf:255/255", "linf:1"),
        ("l2:0.50", "l2:0.5"),
        ("l2:.5", "l2:0.5"),
        ("l2:1/8", "l2:0.125"),
        ("l0:20.0", "l0:20"),
        ("  linf:8/255   gradient  untargeted ", "linf:8/255"),
        ("linf:8/255 score targeted:random", "linf:8/255 targeted:random score"),
    ],
)
def test_equal_threats_are_equal_however_they_are_written(text: str, printed: str) -> None:
    one, other = Threat.parse(text), Threat.parse(printed)
    assert one == other and hash(one) == hash(other)
    # The budget stays as it was written; made from the number, it is written one way.
    assert str(one).split()[0] == text.split()[0]
    assert str(Threat(one.norm, one.eps, one.goal, one.access)) == printed


def test_a_changed_budget_is_not_written_as_the_old_one() -> None:
    assert str(replace(Threat.parse("linf:4/510"), eps=Fraction(1, 2))) == "linf:0.5"
    assert str(replace(Threat.parse("l2:1/3"), goal=Goal.RANDOM)) == "l2:1/3 targeted:random"


@pytest.mark.parametrize("text", ["linf:1 score decision", "l2:1 targeted:random untargeted"])
def test_a_threat_has_one_goal_and_one_access(text: str) -> None:
    with pytest.raises(ThreatError, match="choose one"):
        Threat.parse(text)


def test_every_fraction_survives() -> None:
    for top in range(1, 60):
        for bottom in (1, 2, 3, 5, 7, 8, 16, 25, 51, 125, 255, 256, 510, 1000, 1023):
            threat = Threat(L2, Fraction(top, bottom))
            assert Threat.parse(str(threat)).eps == Fraction(top, bottom)


def test_what_is_absent_is_untargeted_and_gradient() -> None:
    assert Threat.parse("linf:8/255") == Threat(
        Linf, Fraction(8, 255), Goal.UNTARGETED, Access.GRADIENT
    )
    assert Threat.parse("linf").eps is None
    assert Threat.parse("linf").radius == float("inf")
    assert Threat.parse("linf:8/255").radius == 8 / 255
    assert Threat.parse(Threat(L1)) == Threat(L1)
    assert not Goal.UNTARGETED.targeted and Goal.RANDOM.targeted


@pytest.mark.parametrize("pixels", range(1, 256))
def test_255ths_given_as_numbers_are_exact(pixels: int) -> None:
    assert Threat(Linf, pixels / 255).eps == Fraction(pixels, 255)


@pytest.mark.parametrize(
    ("number", "exact"),
    [
        (0.1, Fraction(1, 10)),
        (0.5, Fraction(1, 2)),
        (8, Fraction(8)),
        (1e-7, Fraction(1, 10**7)),
        (np.float64(8 / 255), Fraction(8, 255)),
        (12.25, Fraction(49, 4)),
    ],
)
def test_numbers_mean_what_they_print(number: float, exact: Fraction) -> None:
    assert Threat(L2, number).eps == exact


@pytest.mark.parametrize("number", [float("nan"), float("inf"), "eight", [1]])
def test_what_is_no_number_is_refused(number: object) -> None:
    with pytest.raises(ThreatError, match="finite number"):
        Threat(Linf, number)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lin:8/255", "did you mean 'linf'"),
        ("Linf:8/255", "did you mean 'linf'"),
        ("l3:1", "did you mean 'l"),
        ("sphere", "known: l0, l1, l2, linf"),
        ("0.1", "the threat '0.1' is a budget without a norm: write 'linf:0.1'"),
        ("8/255 score", "budget without a norm: write 'linf:8/255'"),
        ("linf:", "not a budget"),
        ("linf:8/0", "not a budget"),
        ("linf:eight", "'linf:8/255' or 'l2:0.5'"),
        ("linf:inf", "not a budget"),
        ("linf:nan", "not a budget"),
        ("linf:-1/255", "cannot be negative"),
        ("l2:-0.5", "-0.5"),
        ("linf:0", "changes nothing"),
        ("l0:0", "changes nothing"),
        ("l2:0.000", "changes nothing"),
        ("linf:1e-300", "float32"),
        ("linf:1e300", "float32"),
        ("linf:1e999999999", "not a budget"),
        ("linf:٠.١", "not a budget"),
        ("linf:８/255", "not a budget"),
        ("linf:" + "1" * 5000, "not a budget"),
        (f"linf:1{'3' * 90}/{'7' * 91}", "too many digits"),
        ("l0:2.5", "whole number"),
        ("l0:8/255", "whole number"),
        ("linf:8/255 targeted:rand", "did you mean 'targeted:random'"),
        ("linf:8/255 decisions", "did you mean 'decision'"),
        ("linf:8/255 whitebox", "neither a goal nor an access"),
        ("", "empty"),
        ("   ", "empty"),
    ],
)
def test_mistakes_are_named(text: str, said: str) -> None:
    with pytest.raises(ThreatError) as problem:
        Threat.parse(text)
    assert said in str(problem.value)


@pytest.mark.parametrize("text", ["linf:1e999999999", "x" * 10**6, "linf:1 " + "y" * 10**6])
def test_a_message_is_short_however_long_the_text(text: str) -> None:
    with pytest.raises(ThreatError) as problem:
        Threat.parse(text)
    assert len(str(problem.value)) < 400


@pytest.mark.parametrize("text", ["linf:1e-9", "l2:1e-30"])
def test_a_budget_that_pixels_do_not_notice_is_refused(text: str) -> None:
    with pytest.raises(ThreatError, match="most pixels could not change"):
        Threat.parse(text).check_units((0.0, 1.0), 64)
    Threat.parse("linf:1e-6").check_units((0.0, 1.0), 64)


def test_a_number_is_no_text() -> None:
    with pytest.raises(ThreatError, match="not float"):
        Threat.parse(0.5)  # type: ignore[arg-type]  # wrong on purpose


def test_checks_hold_for_values_too() -> None:
    with pytest.raises(ThreatError, match="negative"):
        Threat(Linf, Fraction(-1, 255))
    with pytest.raises(ThreatError, match="whole number"):
        replace(Threat(L2, Fraction(1, 2)), norm=L0)


@pytest.mark.parametrize(
    ("text", "box", "advice"),
    [
        ("linf:8", (0.0, 1.0), "write 'linf:8/255'"),
        ("linf:1", (0.0, 1.0), "write 'linf:1/255'"),
        ("linf:2.5", (0.0, 1.0), "write 'linf:1/102'"),
        ("linf:0.5", (0.0, 1.0), "smaller"),
        ("linf:0.9", (0.0, 1.0), "smaller"),
        ("linf:200", (0.0, 255.0), "smaller"),
    ],
)
def test_budgets_in_other_units_are_noticed(
    text: str, box: tuple[float, float], advice: str
) -> None:
    (finding,) = Threat.parse(text).findings(box)
    assert finding.id == "W28" and advice in finding.advice and text in finding.seen
    if advice.startswith("write"):
        meant = advice.split("'")[1]
        assert Threat.parse(meant).findings(box) == []


@pytest.mark.parametrize("text", ["linf:8/255", "linf:0.49", "linf", "l2:8", "l1:12", "l0:200"])
def test_usual_budgets_raise_no_finding(text: str) -> None:
    assert Threat.parse(text).findings((0.0, 1.0)) == []


def test_a_box_in_bytes_takes_budgets_in_bytes() -> None:
    assert Threat.parse("linf:8").findings((0.0, 255.0)) == []


def test_names_are_the_papers_words() -> None:
    assert [str(n) for n in Norm] == ["linf", "l2", "l1", "l0"]
    assert Access.DECISION < Access.SCORE < Access.GRADIENT
    assert [str(a) for a in Access] == ["decision", "score", "gradient"]


def test_a_budget_meant_for_another_range_is_noticed() -> None:
    (finding,) = Threat.parse("linf:0.1").findings((0.0, 255.0))
    assert finding.id == "W28" and "write 'linf:25.5'" in finding.advice
    assert "0.00039 of the range" in finding.seen
    assert Threat.parse("linf:8").findings((0.0, 255.0)) == []
    assert Threat.parse("linf:0.1").findings((0.0, 1.0)) == []
    assert Threat.parse("l0:20").findings((0.0, 255.0)) == []

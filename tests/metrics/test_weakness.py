"""Advice names what an attack left undone, and never what it did already."""

from __future__ import annotations

from typing import Any

import pytest
from tests.metrics.test_warnings import evidence, trial

from besiege.bench.reading import steps_in
from besiege.metrics.evidence import Evidence
from besiege.metrics.examination import examination_figures
from besiege.metrics.registry import Case
from besiege.metrics.rows import Rows
from besiege.metrics.warnings import findings
from besiege.metrics.weakness import advice, too_short

SHORT: dict[str, Any] = {"longest": 10, "draws": 5}


def case(stochastic: bool = True, surrogates: tuple[str, ...] = (), **set_to: Any) -> Evidence:
    attack = trial("averaged(pgd)", 100, **set_to)
    square = trial("square", 150, access="score", draws=set_to.get("draws", 1))
    return evidence(attack, square, stochastic=stochastic, surrogates=surrogates)


@pytest.mark.parametrize(
    ("set_to", "said"),
    [
        (SHORT, "takes only 10 steps and averages only 5 draws: give it more."),
        ({"longest": 10, "draws": 20}, "takes only 10 steps: give it more."),
        ({"longest": 1, "draws": 20}, "takes only 1 step: give it more."),
        ({"longest": 100, "draws": 5}, "averages only 5 draws: give it more."),
        ({"longest": 40, "draws": 20}, ""),
        ({"longest": None, "draws": 20}, ""),
        ({"longest": 100, "draws": 1}, ""),
    ],
)
def test_a_short_attack_is_named(set_to: dict[str, Any], said: str) -> None:
    assert too_short(case(**set_to)) == (f"'averaged(pgd)' {said}" if said else "")


def test_the_longest_attack_counts_and_draws_only_where_answers_are_stochastic() -> None:
    short, long = trial("fgsm", 1, longest=1), trial("pgd", 2, longest=40)
    assert too_short(evidence(short, long)) == ""
    assert "'fgsm' takes only 1 step:" in too_short(evidence(short))
    assert too_short(case(stochastic=False, longest=40, draws=5)) == ""
    assert too_short(evidence(trial("square", 1, access="score", longest=1))) == ""


def test_an_average_is_advised_only_to_those_who_took_none() -> None:
    assert "averaged(ATTACK, 20)" in advice(case(longest=40, draws=1))
    assert "averaged" not in advice(case(longest=40, draws=20))
    assert "averaged" not in advice(case(stochastic=False, longest=40, draws=1))
    pooled = evidence(trial("pgd", 1, longest=40), stochastic=True, pooled=20)
    assert "averaged" not in advice(pooled)


def test_a_surrogate_is_not_advised_for_a_layer_that_has_one() -> None:
    assert "a surrogate for layers without gradients" in advice(case(longest=40, draws=20))
    found = advice(case(surrogates=("bits",), longest=40, draws=20))
    assert "another surrogate for bits" in found and "without gradients" not in found


def test_the_warning_blames_the_short_attack_before_the_gradients() -> None:
    (found,) = (one for one in findings(case(**SHORT)) if one.id == "W08")
    assert "takes only 10 steps and averages only 5 draws" in found.advice
    assert found.advice.index("only 10 steps") < found.advice.index("gradients are masked")
    ignoring = trial("oblivious(pgd)", 150, access="transfer", oblivious=True)
    assert "W08" not in {one.id for one in findings(evidence(trial("pgd", 100), ignoring))}


def test_steps_are_found_inside_a_combined_attack() -> None:
    inner = {"name": "pgd", "steps": 10, "start": {"name": "uniform"}}
    averaged = {"name": "averaged", "attack": inner, "count": 5}
    parts = [averaged, {"name": "cw", "steps": 30}]
    assert steps_in(averaged) == 10 and steps_in({"name": "union", "attacks": parts}) == 30
    assert steps_in({"name": "square"}) is None


@pytest.mark.parametrize("stochastic", [False, True])
def test_no_suite_is_advised_that_the_model_refuses(stochastic: bool) -> None:
    attack = trial("pgd", 100, draws=20, losses=frozenset({"cross_entropy"}))
    case = evidence(attack, stochastic=stochastic, others={"examine": Rows({})})
    (note,) = (one for one in findings(case) if one.id == "W34")
    examined = examination_figures(Case(case))
    assert examined is not None
    name = "adaptive" if stochastic else "standard"
    for text in (note.advice, examined.checks[0].advice):
        assert f"--suite {name}." in text and text.count("--suite") == 1
    assert ("averaged(ATTACK, 20)" in note.advice) == stochastic

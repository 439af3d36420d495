"""Recipes: texts that read back, presets, schedules, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from besiege.attacks import parse
from besiege.core.errors import BesiegeError, InputError, UnknownNameError
from besiege.training import RECIPES, Recipe, natural, pgd_at, pgd_at_cifar, recipe


@pytest.mark.parametrize(
    "plan",
    [
        *RECIPES.values(),
        replace(pgd_at, epochs=60).within("linf:0.15"),
        replace(pgd_at_cifar, early=None, flip=False, rate=0.05, whole=False),
        replace(pgd_at, attack=parse("mim(steps=3)"), precision="bfloat16", clean=0.5),
        replace(natural, attack=pgd_at.attack, threat=pgd_at.threat),
    ],
    ids=str,
)
def test_a_recipe_reads_back_from_its_text(plan: Recipe) -> None:
    assert recipe(str(plan)) == plan


def test_texts_are_short_and_changes_are_made() -> None:
    assert str(natural) == "natural"
    made = recipe("pgd-at(attack=pgd(steps=3), threat='linf:0.1')", epochs=3, early="fgsm")
    assert (made.epochs, str(made.attack), str(made.early)) == (3, "pgd(steps=3)", "fgsm")
    assert str(made.threat) == "linf:0.1" and made.ramp == pgd_at.ramp
    assert recipe(made, threat="l2:0.5").threat != made.threat
    assert recipe("pgd-at( )") == pgd_at


def test_a_data_set_may_have_its_own_form() -> None:
    assert recipe("pgd-at(epochs=5)", "cifar10") == replace(pgd_at_cifar, epochs=5)
    assert recipe("pgd-at", "digits") == recipe("pgd-at") == pgd_at
    assert recipe(pgd_at, "cifar10") == pgd_at, "a value is taken as it is"


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("pgd_at", UnknownNameError, "did you mean 'pgd-at'"),
        ("", UnknownNameError, "natural"),
        ("natural(epoch=3)", InputError, "did you mean 'epochs'"),
        ("natural(3)", InputError, "write epochs=30"),
        ("natural(epochs=0)", InputError, "whole number from 1"),
        ("natural(epochs=2.5)", InputError, "whole number from 1"),
        ("natural(smoothing=1)", InputError, "from 0 and below 1"),
        ("natural(rate='fast')", InputError, "number from 0"),
        ("natural(optimiser='sgdd')", InputError, "'adam' or 'sgd'"),
        ("natural(attack=pgd)", InputError, "both an attack and a threat"),
        ("natural(early=pgd)", InputError, "early attack"),
        ("pgd-at(attack=4)", InputError, "attack is 4"),
        ("pgd-at(threat='linf')", InputError, "no budget"),
        ("pgd-at(threat='linf:8/25O')", BesiegeError, "not a budget"),
        ("pgd-at(attack=pdg)", BesiegeError, "did you mean"),
        ("natural(epochs=3", UnknownNameError, "no recipe"),
        ("natural(name='mine')", InputError, "no field 'name'"),
    ],
)
def test_what_is_wrong_is_refused(text: str, kind: type[BesiegeError], said: str) -> None:
    with pytest.raises(kind, match=said):
        recipe(text)


def test_the_rate_rises_and_falls() -> None:
    plan = replace(natural, optimiser="sgd", rate=0.4, warmup=0.25)
    rates = [plan.rate_at(step, 100) for step in range(100)]
    assert all(a < b for a, b in pairwise(rates[:26]))
    assert rates[25] == 0.4 and all(a > b for a, b in pairwise(rates[25:]))
    assert 0 < rates[0] < 0.02 and 0 < rates[-1] < 0.006
    assert rates[25 + 30] == pytest.approx(0.4 * 0.6)
    cosine = replace(plan, schedule="cosine", warmup=0.0)
    assert cosine.rate_at(50, 100) == pytest.approx(0.2)
    assert replace(plan, schedule="constant", warmup=0.0).rate_at(99, 100) == 0.4
    assert natural.rate_at(99, 100) == natural.rate, "adam's does not fall"


def test_the_attack_and_the_budget_of_an_epoch() -> None:
    plan = replace(pgd_at, epochs=10, ramp=4, early=parse("fgsm"), early_share=0.3)
    assert [str(plan.attack_at(n)) == "fgsm" for n in (1, 3, 4, 10)] == [True, True, False, False]
    full = plan.radius_at(10)
    assert [plan.radius_at(n) / full for n in (1, 2, 4, 5)] == [0.25, 0.5, 1.0, 1.0]
    assert natural.attack_at(1) is None

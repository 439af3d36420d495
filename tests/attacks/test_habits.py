"""Parameters and names of other libraries are answered with what to write here."""

from __future__ import annotations

import re

import pytest
import torch

import besiege
from besiege.attacks import parse
from besiege.attacks.attack import LANGUAGE, configured
from besiege.attacks.other_names import NAMES, RENAMED
from besiege.attacks.suites import SUITES, suite, suite_name
from besiege.core.attack_registry import ATTACKS
from besiege.core.errors import AttackError, BesiegeError, UnknownNameError
from besiege.core.threat import Threat
from besiege.core.vocabulary import parameters

CASES = [
    ("pgd(alpha=2/255)", "pgd(schedule=constant(0.25))"),
    ("pgd(eps_iter=2/255, nb_iter=40)", "pgd(schedule=constant(0.25), steps=40)"),
    ("pgd(step_size=1/255, num_steps=3)", "pgd(schedule=constant(0.125), steps=3)"),
    ("pgd(rel_stepsize=0.1)", "pgd(schedule=constant(0.1))"),
    ("bim(iterations=7)", "bim(steps=7)"),
    ("bim(eps_step=3/255)", "bim(schedule=constant(0.375))"),
    ("pgd(eps=16/255, alpha=2/255)", "pgd(schedule=constant(0.125))"),
    ("pgd(steps=3, max_iter=10)", "pgd(steps=10)"),
    ("pgd(n_restarts=5, random_start=False)", "pgd(restarts=5, start=origin)"),
    ("bim(num_random_init=2)", "bim(restarts=2, start=uniform)"),
    ("bim(num_random_init=0)", "bim(start=origin)"),
    ("deepfool(max_iter=20, nb_grads=5)", "deepfool(steps=20, classes=5)"),
    ("deepfool(num_restarts=3)", "repeat(deepfool, 3)"),
    ("pgd(eot_iter=20)", "averaged(pgd, 20)"),
    ("mim(decay=0.9)", "mim(direction=chain(momentum(decay=0.9), stride))"),
    ("dim(diversity_prob=0.7)", "dim(direction=chain(diverse(probability=0.7), momentum, stride))"),
    (
        "cw(binary_search_steps=5, initial_const=0.01, confidence=1)",
        "cw(rounds=5, first=0.01, compat=True, kappa=1)",
    ),
    ("ead(decision_rule='EN', learning_rate=0.02)", "ead(rule='en', rate=0.02)"),
    ("square(n_queries=1000)", "square(steps=1000)"),
    ("spsa(lr=0.01, delta=0.02)", "spsa(rate=0.31875, sigma=0.02)"),
    ("apgd(eps_step=0.1, nb_random_init=5)", "apgd(restarts=5)"),
    ("minimal(pgd(num_steps=3))", "pgd(steps=3)"),
]


def said(text: str, threat: str | None = "linf:8/255") -> str:
    with pytest.raises(BesiegeError) as caught:
        parse(text, None if threat is None else Threat.parse(threat))
    return str(caught.value)


@pytest.mark.parametrize(("text", "ours"), CASES, ids=[text for text, _ in CASES])
def test_a_parameter_of_another_library_is_translated(text: str, ours: str) -> None:
    assert f"write '{ours}'" in said(text)
    parse(ours)  # advice that can be followed


def test_step_sizes_are_in_terms_of_the_budget() -> None:
    assert "write 'pgd(schedule=constant(0.2))'" in said("pgd(alpha=0.1)", "l2:0.5")
    assert "write 'pgd(schedule=constant(1/3))'" in said("pgd(alpha=2/255)", "linf:6/255")
    for threat in (None, "linf"):
        supposed = said("pgd(alpha=2/255)", threat)
        assert "with the budget linf:8/255 write 'pgd(schedule=constant(0.25))'" in supposed
        assert supposed.endswith("Step sizes are fractions of the budget")


def test_the_translated_step_is_as_long_as_the_one_that_was_meant() -> None:
    found = re.search(r"write '(.*?)'", said("bim(alpha=2/255, nb_iter=1)"))
    assert found is not None
    data = besiege.data.load("digits", count=8)
    result = besiege.attack(
        *(found[1], "zoo:digits-natural", data.images, data.labels),
        threat="linf:8/255",
        keep="last",
        leave="end",
    )
    moved = (result.images - data.images).abs().flatten(1).amax(1)
    assert torch.allclose(moved, torch.full_like(moved, 2 / 255), atol=1e-6)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("pgd(eps=4/255)", "threat='linf:4/255'"),
        ("pgd(norm='L2')", "threat='l2:0.5'"),
        ("pgd(targeted=True)", "targeted:class=3"),
        ("pgd(batch_size=64)", "batch=32"),
        ("rays(query_limit=100)", "queries=1000"),
        ("pgd(clip_min=0)", "box=(0, 1)"),
    ],
)
def test_what_is_no_parameter_of_an_attack_has_its_place(text: str, why: str) -> None:
    assert why in said(text)


@pytest.mark.parametrize(
    "text", ["pgd(foo=3)", "fmn(alpha=1)", "jsma(max_iter=4)", "pgd(alpha='x')", "pgd(nb_iter=0)"]
)
def test_where_no_translation_is_known_none_is_made_up(text: str) -> None:
    assert "write" not in said(text) and "known: " in said(text)


def test_arguments_in_python_are_translated_too() -> None:
    with pytest.raises(AttackError, match=r"write 'pgd\(steps=10, loss=margin\)'"):
        configured(parse("pgd(steps=3, loss=margin)"), "pgd", {"nb_iter": 10})
    with pytest.raises(UnknownNameError, match="'ce' is called cross_entropy here"):
        configured(parse("apgd"), "apgd", {"loss": "ce"})


def test_every_name_in_the_tables_exists() -> None:
    assert set(NAMES.values()) <= set(LANGUAGE.names())
    for attack, names in RENAMED.items():
        known = {f.name for f in parameters(ATTACKS.get(attack))}
        assert set(names.values()) <= known, attack
        assert not set(names) & known, "a name that exists is never translated"


@pytest.mark.parametrize(
    ("name", "ours"),
    [("LinfPGD", "pgd"), ("MIFGSM", "mim"), ("L2CarliniWagnerAttack", "cw"), ("FGM", "fgsm")],
)
def test_an_attack_of_another_library_is_named(name: str, ours: str) -> None:
    assert said(name) == f"'{name}' is called {ours} here"


def test_a_suite_is_no_attack() -> None:
    for name in ("autoattack", "AA", "standard"):
        assert "give suite='standard'" in said(name)
    assert "did you mean 'nattack'" in said("natack")


def test_suites_have_the_names_of_other_libraries() -> None:
    for name in ("autoattack", "aa", "AutoAttack", "auto_attack", "standard"):
        assert suite(name) is SUITES["standard"]
    assert suite("AA+") is SUITES["plus"]
    assert suite_name("apgd, square") == "apgd, square"
    with pytest.raises(UnknownNameError, match="did you mean 'autoattack'"):
        suite("autoatack")


def test_autoattack_says_that_it_is_an_independent_implementation() -> None:
    text = SUITES["standard"].origin
    for word in ("independent implementation", "FAB", "Square", "standard@reference"):
        assert word in text
    assert all(SUITES[name].origin for name in ("standard", "standard@reference", "plus", "rand"))
    assert not SUITES["quick"].origin

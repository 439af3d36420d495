"""Recipes: texts that read back, presets, schedules, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from besiege.attacks import parse
from besiege.attacks.losses import Divergence
from besiege.attacks.pieces import Beside, Constant, Signs, Uniform
from besiege.core.errors import BesiegeError, InputError, UnknownNameError
from besiege.defenses.noise import GaussianNoise
from besiege.training import RECIPES, Recipe, natural, pgd_at, pgd_at_cifar, recipe
from besiege.training.losses import CrossEntropy
from besiege.training.radii import HalfNormal


@pytest.mark.parametrize(
    "plan",
    [
        *(plan for _, plan in RECIPES.items()),
        replace(pgd_at, epochs=60).within("linf:0.15"),
        replace(pgd_at_cifar, early=None, flip=False, rate=0.05, whole=False),
        replace(pgd_at, attack=parse("mim(steps=3)"), precision="bfloat16"),
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
    assert recipe("pgd-at", "mine") == recipe("pgd-at") == pgd_at
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
        ("natural(objective=cross_entropy(smoothing=1))", InputError, "from 0 and below 1"),
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


DATA = ("", "@digits", "@mnist", "@cifar10")


def presets(family: str) -> list[Recipe]:
    """A recipe in the settings of every data set that has it."""
    return [RECIPES.get(family + data) for data in DATA if family + data in RECIPES]


def slots(plan: Recipe) -> tuple[Any, Any]:
    """The attack and the budget of an adversarial recipe."""
    assert plan.threat is not None
    return plan.attack, plan.threat.radius


def test_presets_of_one_step_are_as_published() -> None:
    for plan in presets("nat"):
        attack, eps = slots(plan)
        # The true label would leak; weights 1 and 0.3 are divided by their sum.
        assert attack.aim == "least-likely" and attack.steps == 1
        assert plan.radius == HalfNormal(eps / 2, eps)
        assert plan.objective == CrossEntropy(clean=1 / 1.3)
    assert len(presets("eat")) == 3
    for plan in presets("eat"):
        attack, _ = slots(plan)
        # A random part of the budget, then the rest of it.
        assert isinstance(attack.start, Signs) and attack.steps == 1
        assert attack.start.share + attack.schedule.step == pytest.approx(1)
        assert plan.away_from == "prediction" and plan.sources
        assert plan.objective == CrossEntropy(clean=0.5)
    for plan in presets("fast-at"):
        attack, _ = slots(plan)
        assert attack.start == Uniform() and attack.steps == 1
        assert attack.schedule == Constant(1.25) and plan.guard == 0.2


@pytest.mark.parametrize(
    "family", ["pgd-at", "trades", "mart", "alp", "awp", "denoise", "thermometer"]
)
def test_presets_of_many_steps_are_as_published(family: str) -> None:
    assert len(presets(family)) == 4
    for plan in presets(family):
        for attack in filter(None, (plan.attack, plan.early)):
            settings: Any = attack
            if family == "thermometer":
                # From the published random start so few steps change hardly any level.
                assert settings.start == "zero" and settings.steps >= 7
                continue
            # The border must be within reach.
            assert settings.steps * settings.schedule.step >= 1.25 > settings.schedule.step
            # At the image itself the divergence has no gradient.
            starts, loss = (Beside(0.001), "divergence") if family == "trades" else (Uniform(), "")
            assert settings.start == starts and loss in str(attack)
            assert (family == "trades") == isinstance(settings.loss, Divergence)


# Objectives of the presets for any data, digits, mnist and cifar10.
WEIGHTS = {
    "trades": ("trades", "trades", "trades(beta=1.0)", "trades"),
    "mart": ("mart",) * 4,
    # 0.5 averaged over ten classes.
    "alp": ("pairing(weight=0.05)",) * 4,
    # 316 and 10 of DEEPSEC's batches of 100 and 32, for each image.
    "igr": (
        "gradient_penalty",
        "gradient_penalty",
        "gradient_penalty(weight=3.16)",
        "gradient_penalty(weight=0.31)",
    ),
}


def test_the_budgets_of_presets_are_those_of_the_tables() -> None:
    """8/255 and not 0.031, with which tables at 8/255 could not be compared."""
    budgets = dict(zip(DATA, ("linf:8/255", "linf:0.15", "linf:0.3", "linf:8/255"), strict=True))
    others = {"smoothadv", "ibp", "crown-ibp", "convex"}
    for name, plan in RECIPES.items():
        family, at, data = name.partition("@")
        if plan.threat is not None and "deepsec" not in data and family not in others:
            assert str(plan.threat) == budgets[at + data], name


def test_other_presets_are_as_published() -> None:
    for plan in presets("free-at"):
        update: Any = plan.update
        other = RECIPES.get(plan.name.replace("free", "pgd"))
        assert plan.epochs * update.m == pytest.approx(other.epochs, abs=update.m / 2)
    for plan in presets("thermometer"):
        assert plan.objective == CrossEntropy(clean=0.5)
    objectives = {family: [str(p.objective) for p in presets(family)] for family in WEIGHTS}
    assert objectives == {family: list(texts) for family, texts in WEIGHTS.items()}
    assert all(str(plan.update) == "perturbed" for plan in presets("awp"))
    assert {str(plan.objective) for plan in presets("distilled")} == {"distil"}
    assert {str(plan.objective) for plan in presets("adp")} == {"diversity"}
    assert {str(plan.objective) for plan in presets("mmc")} == {"centres"}
    assert {str(plan.objective) for plan in presets("deepdefense")} == {"reach"}
    assert all(plan.layers == (GaussianNoise(0.25),) for plan in presets("gaussian"))
    for plan in presets("deepdefense"):
        assert plan.rate == (5e-3 if plan.name.endswith("digits") else 5e-4)
        assert plan.optimiser == "sgd" and plan.batch == 100 and not plan.held_out


DEEPSEC: dict[str, dict[str, Any]] = {
    "natural": {},
    "nat": {
        "attack": "llc",
        "threat": ("linf:0.3", "linf:0.1"),
        "objective": f"cross_entropy(clean={1 / 1.3})",
        "radius": (
            f"half_normal(sigma={50 / 255}, cap=0.3, draw='clipped')",
            f"half_normal(sigma={15 / 255}, cap=0.1, draw='clipped')",
        ),
    },
    "eat": {
        # 0.05 of 0.3, and 0.03125 of 0.0625, at random, and a step of the rest.
        "attack": (f"rfgsm(start=signs({1 / 6}), schedule=constant({5 / 6}))", "rfgsm"),
        "threat": ("linf:0.3", "linf:0.0625"),
        "objective": "cross_entropy(clean=0.5)",
        "away_from": "prediction",
    },
    "pgd-at": {
        "attack": (
            f"pgd(steps=40, schedule=constant({1 / 30}))",
            "pgd(steps=7, schedule=constant(0.25))",
        ),
        "threat": ("linf:0.3", "linf:8/255"),
        "objective": "cross_entropy(clean=0.5)",
    },
    "distilled": {"objective": "distil(temperature=50)"},
    "igr": {
        "objective": (
            "gradient_penalty(weight=316, per_example=False)",
            "gradient_penalty(weight=10, per_example=False)",
        )
    },
    "thermometer": {
        "attack": ("lspga(steps=40)", "lspga(steps=7)"),
        "threat": ("linf:0.3", "linf:0.031"),
        "objective": "cross_entropy(clean=0.5)",
        "layers": "thermometer(levels=16)",
    },
}


@pytest.mark.parametrize("number", [0, 1], ids=["mnist", "cifar10"])
@pytest.mark.parametrize("family", DEEPSEC)
def test_the_settings_of_deepsec(family: str, number: int) -> None:
    """By hand from the paper and its code, on the fields of a plain recipe."""
    usual: dict[str, Any] = (
        {"epochs": 20, "batch": 100, "optimiser": "sgd", "rate": 0.05, "decay": 1e-6}
        | {"schedule": "constant"},
        {"epochs": 200, "batch": 32, "schedule": "drops", "drops": (0.4, 0.6, 0.8)}
        | {"held_out": 5000, "crop": 3, "flip": True},
    )[number]
    slots = {
        slot: value[number] if isinstance(value, tuple) else value
        for slot, value in DEEPSEC[family].items()
    }
    found = recipe(f"{family}@deepsec", ("mnist", "cifar10")[number])
    # Static models are besiege's own.
    assert len(found.sources) == ((2, 4)[number] if family == "eat" else 0)
    sources: dict[str, Any] = {"sources": found.sources} if family == "eat" else {}
    assert found == recipe(Recipe(found.name), **usual, **slots, **sources)

"""Attacks that ignore a defense: crafted on the undefended model, judged on the defended one."""

from __future__ import annotations

import pytest
import torch

import besiege
from besiege.core.errors import AttackError
from besiege.core.samples import Samples
from besiege.core.threat import Threat
from besiege.defenses import Defended, Thermometer
from besiege.evaluation import craft
from besiege.models import Classifier
from besiege.models.small import digits_cnn

BARE, DEFENDED = "zoo:digits-natural", "zoo:digits-natural+bits(depth=1)"
THREAT = "linf:0.15"


def digits(count: int = 20) -> besiege.data.Data:
    return besiege.data.load("digits", count=count)


def test_its_images_are_those_of_the_undefended_model() -> None:
    data = digits()
    found = besiege.attack("oblivious(bim)", DEFENDED, data.images, data.labels, threat=THREAT)
    how = {"threat": THREAT, "keep": "last", "leave": "end"}
    bare = besiege.attack("bim", BARE, data.images, data.labels, **how)  # type: ignore[arg-type]
    assert torch.equal(found.images, bare.images)
    victim = besiege.defenses.load(DEFENDED)
    fooled = (victim(found.images).argmax(1) != data.labels) & found.verdicts.correct
    assert torch.equal(found.success & found.verdicts.correct, fooled)


def test_the_victim_is_sent_each_image_once() -> None:
    data = digits()
    found = besiege.attack("oblivious(pgd)", DEFENDED, data.images, data.labels, threat=THREAT)
    assert (found.queries == 1).all()
    assert (found.forwards == 0).all() and (found.backwards == 0).all()
    assert found.substitute_passes is not None and (found.substitute_passes >= 80).all()


def test_other_attacks_than_gradient_ones_ignore_a_defense_too() -> None:
    data = digits(8)
    asked = "oblivious(square(steps=30))"
    found = besiege.attack(
        asked, DEFENDED, data.images, data.labels, threat="linf:0.15 score", queries=5
    )
    assert (found.queries == 1).all(), "queries of the undefended model are free"
    assert found.substitute_passes is not None and (found.substitute_passes > 5).any()


def test_there_must_be_something_to_ignore() -> None:
    data = digits(4)
    with pytest.raises(AttackError, match="nothing to be oblivious of"):
        besiege.attack("oblivious(pgd)", BARE, data.images, data.labels, threat=THREAT)
    for attacks in ("oblivious(pgd)", "pgd, oblivious(pgd)"):
        with pytest.raises(AttackError, match="nothing to be oblivious of"):
            besiege.evaluate(BARE, "digits", threat=THREAT, attacks=attacks, count=4)


def test_a_network_of_codes_has_no_undefended_model() -> None:
    victim = Defended(Classifier(digits_cnn(in_channels=4).eval(), classes=10), Thermometer(4))
    data = digits(4)
    besiege.attack("fgsm", victim, data.images, data.labels, threat=THREAT)
    with pytest.raises(AttackError, match="no attack can be crafted on the undefended model"):
        besiege.attack("oblivious(fgsm)", victim, data.images, data.labels, threat=THREAT)


def test_it_is_never_crafted_on_the_defended_model() -> None:
    data = digits(4)
    samples = Samples.of(data.images, data.labels)
    attack, threat = besiege.attacks.parse("oblivious(pgd)"), Threat.parse(THREAT)
    with pytest.raises(AttackError, match="crafted on the undefended model"):
        craft(besiege.defenses.load(DEFENDED), attack, samples, threat)


@pytest.mark.parametrize(
    "text",
    [
        "repeat(oblivious(pgd), 3)",
        "cascade(pgd, oblivious(pgd))",
        "averaged(oblivious(pgd), 2)",
        "oblivious(oblivious(pgd))",
        "minimal(oblivious(pgd))",
    ],
)
def test_it_stands_outermost(text: str) -> None:
    with pytest.raises(AttackError, match="put oblivious around everything"):
        besiege.attacks.parse(text)


def test_its_text_reads_back() -> None:
    attack = besiege.attacks.parse("oblivious(repeat(pgd(steps=5), 2))")
    assert besiege.attacks.parse(str(attack)) == attack and attack.oblivious
    assert not besiege.attacks.parse("repeat(pgd, 2)").oblivious

"""Published forms of layers: what each stands for, and how it is read."""

from __future__ import annotations

import pytest
import torch

from besiege.core.dice import Dice
from besiege.core.errors import BesiegeError
from besiege.defenses import load
from besiege.defenses.defended import split
from besiege.defenses.presets import FORMS, layers_of_form

NET = "zoo:digits-natural"


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        ("jpeg@realsafe", "jpeg(quality=75)"),
        ("jpeg@realsafe-code", "jpeg(quality=95)"),
        ("bits@realsafe", "bits(levels=4)"),
        ("resize_pad@realsafe", "resize_pad(least=0.875)"),
        ("randmix@realsafe", "randmix(centres=5, sigma=16/255, apart=False)+pooled(draws=10)"),
        ("resize_pad@deepsec", "resize_pad(least=1, to=36, fill=0.5)"),
        ("jitter@deepsec", "jitter(radius=0.02)+pooled(draws=1000, of='votes')"),
        (
            "eit@deepsec",
            "crop_rescale(size=30, how='nearest')+tvm+jpeg(quality=85)+bits(depth=4)",
        ),
    ],
)
def test_a_form_is_the_victim_of_its_layers(name: str, spelled: str) -> None:
    victim, other = load(f"{NET}+{name}"), load(f"{NET}+{spelled}")
    assert str(victim) == str(other)
    assert victim.digest() == other.digest()


def test_every_form_is_covered_and_has_a_source() -> None:
    assert len(FORMS) == 8
    for form in FORMS.values():
        assert form.source.partition(" (")[0] in ("Dong et al. 2020", "Ling et al. 2019")


def test_forms_stand_between_other_layers() -> None:
    assert split("a+bits(depth=3)+eit@deepsec+median") == (
        "a",
        ["bits(depth=3)", *layers_of_form("eit@deepsec"), "median"],
    )


def test_answers_are_those_of_the_layers() -> None:
    images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    dice = Dice.throw(0, torch.arange(4))
    with torch.no_grad():
        ours = load(f"{NET}+resize_pad@realsafe")(images, dice)
        theirs = load(f"{NET}+resize_pad(0.875)")(images, dice)
        bare = load(NET)(images)
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, bare)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("jpeg@realsafee", "did you mean 'jpeg@realsafe'"),
        ("jpeg@realsafe(quality=50)", "write jpeg(quality=75) with your own"),
        ("jitter@deepsec+bits", "written last"),
        ("jitter@deepsec+pooled(5)", "pooled twice"),
        ("jpegg@realsafe", "did you mean 'jpeg@realsafe'"),
    ],
)
def test_bad_forms_say_the_fix(text: str, says: str) -> None:
    with pytest.raises(BesiegeError) as problem:
        load(f"{NET}+{text}")
    assert says in str(problem.value)


def test_an_at_sign_in_a_path_is_part_of_it() -> None:
    assert split("resnet20:folder/a+b@c") == ("resnet20:folder/a+b@c", [])

"""Ensembles as text: members with layers of their own, and the attack on their mean."""

from __future__ import annotations

import pytest
import torch

import besiege
from besiege.core.errors import BesiegeError
from besiege.defenses import load
from besiege.models import Ensemble

BOTH = "ensemble(zoo:digits-natural, zoo:digits-pgd-at+bits(depth=3), fuse='probabilities')"
DATA = besiege.data.load("digits", "test", count=20)


def test_a_text_reads_back() -> None:
    victim = load(BOTH)
    assert isinstance(victim, Ensemble) and victim.name == BOTH
    assert load(victim.name).digest() == victim.digest()
    assert load(BOTH.replace("'", "")).digest() == victim.digest()
    others = (
        "ensemble(zoo:digits-natural, zoo:digits-pgd-at+bits(depth=3))",
        "ensemble(zoo:digits-natural, zoo:digits-pgd-at, fuse=probabilities)",
        "ensemble(zoo:digits-natural, zoo:digits-pgd-at+bits(depth=3), weights=(2, 1))",
        f"{BOTH}+bits(depth=2)",
    )
    assert len({load(text).digest() for text in others} | {victim.digest()}) == 5


def test_it_answers_the_log_of_the_mean_probability() -> None:
    victim = load(BOTH)
    parts = [load("zoo:digits-natural"), load("zoo:digits-pgd-at+bits(depth=3)")]
    with victim.held(), torch.no_grad():
        made = victim(DATA.images)
        each = torch.stack([part(DATA.images).softmax(1) for part in parts])
    assert torch.allclose(made, each.mean(0).log(), atol=1e-5)


def test_layers_stand_before_the_whole_and_randomness_is_pooled() -> None:
    text = "ensemble(zoo:digits-natural, zoo:digits-pgd-at)+resize_pad+pooled(draws=3)"
    victim = load(text)
    assert (
        victim.stochastic and victim.passes == 6 and load(victim.name).digest() == victim.digest()
    )
    inner = load("ensemble(zoo:digits-natural+resize_pad, zoo:digits-pgd-at)")
    assert inner.stochastic


def test_the_bare_ensemble_has_no_defenses() -> None:
    bare = load(BOTH).bare
    assert isinstance(bare, Ensemble) and bare.fuse == "probabilities"
    assert [one.name for one in bare.members] == ["zoo:digits-natural", "zoo:digits-pgd-at"]
    plain = load("ensemble(zoo:digits-natural, zoo:digits-pgd-at)")
    assert plain.bare is plain


def test_it_is_evaluated_like_any_model() -> None:
    found = besiege.evaluate(
        BOTH, "digits", threat="linf:0.15", attacks="pgd(steps=10)", count=20, curve=False
    )
    alone = besiege.evaluate(
        "zoo:digits-natural", "digits", threat="linf:0.15", attacks="pgd(steps=10)", count=20
    )
    assert found.robust is not None and alone.robust is not None and found.clean is not None
    assert alone.robust.value <= found.robust.value < found.clean.value
    assert found.figures.model.name == BOTH


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ensemble()", "no members"),
        ("ensemble(fuse=logits)", "no members"),
        ("ensemble(zoo:digits-natural, zoo:digit-pgd-at)", "did you mean"),
        ("ensemble(zoo:digits-natural, fuse=votes)", "fuse is 'votes'"),
        ("ensemble(zoo:digits-natural, zoo:digits-pgd-at, weights=(1,))", "1 weights for 2"),
        ("ensemble(zoo:digits-natural+bit(depth=3))", "did you mean 'bits'"),
        ("ensemble(zoo:digits-natural, wieghts=(1,))", "did you mean 'weights'"),
        ("ensemble(zoo:digits-natural, zoo:digits-pgd-at, weights=3)", "one for each model"),
        ("ensemble(zoo:digits-natural, zoo:digits-pgd-at, weights=('a', 'b'))", "a number above"),
        ("ensemble(zoo:digits-natural, zoo:digits-pgd-at, equalise=maybe)", "True or False"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    with pytest.raises(BesiegeError, match=said):
        load(text)


def test_weights_in_brackets_read_back_to_the_same_victim() -> None:
    made = load("ensemble(zoo:digits-natural, zoo:digits-pgd-at, weights=[2, 1])")
    assert load(str(made)).digest() == made.digest()


def test_the_draws_of_an_ensemble_are_the_fewest_of_its_stochastic_members() -> None:
    pooled = "zoo:digits-natural+resize_pad+pooled(draws=5)"
    mixed = load(f"ensemble({pooled}, zoo:digits-pgd-at)")
    assert (mixed.stochastic, mixed.draws, mixed.passes) == (True, 5, 6)
    assert load(f"ensemble({pooled}, zoo:digits-pgd-at+resize_pad)").draws == 1
    assert load("ensemble(zoo:digits-natural, zoo:digits-pgd-at)").draws == 1

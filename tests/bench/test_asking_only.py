"""Attacks that only ask, through the whole evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.victims import siege
from torch import Tensor

import besiege
from besiege.attacks import parse
from besiege.bench import estimate
from besiege.core.dice import Dice
from besiege.core.errors import AttackError, InputError, StochasticError, ThreatError
from besiege.core.samples import Samples
from besiege.core.threat import Access, Threat
from besiege.core.victim import Victim
from besiege.evaluation import craft, judge
from besiege.testing.victims import Linear

NET = "zoo:digits-natural"
DECISIONS = ("boundary", "evolutionary", "geoda", "hopskipjump", "opt", "signopt")


@pytest.mark.parametrize("attack", [*DECISIONS, "rays"])
@pytest.mark.parametrize(
    "goal", ["untargeted", pytest.param("targeted:random", marks=pytest.mark.slow)]
)
def test_every_decision_attack_is_evaluated(attack: str, goal: str) -> None:
    if goal != "untargeted" and attack == "rays":
        return  # it has no other goal
    threat = "linf:0.4" if attack == "rays" else "l2:2.5"
    how: dict[str, Any] = {"attacks": attack, "queries": 150, "count": 10, "curve": False}
    found = besiege.evaluate(NET, "digits", threat=threat, goal=goal, access="decision", **how)
    assert found.complete and found.robust is not None
    assert found.robust.value < found.clean.value
    assert int(found.rows["queries"].max()) <= 150 and int(found.rows["backwards"].sum()) == 0


@pytest.mark.parametrize("attack", ["nes_partial", "cascade(nes(steps=1), nes_partial)"])
def test_what_is_told_the_first_few_scores_begins_at_other_images(attack: str) -> None:
    net = besiege.models.load(NET)

    def answer(images: Any) -> tuple[Any, Any]:
        with torch.no_grad():
            top = net(torch.from_numpy(images)).topk(3, 1)
        return top.indices.numpy(), top.values.numpy()

    found = besiege.evaluate(
        besiege.function_model(answer, classes=10, top_k=3),
        "digits",
        threat="linf:0.4",
        goal="targeted:random",
        attacks=attack,
        queries=600,
        count=10,
        curve=False,
    )
    assert int(found.rows["success"].sum()) >= 5
    assert not found.rows["no_start"].any()


def test_without_attacks_the_suite_of_the_access_runs() -> None:
    how: dict[str, Any] = {"queries": 60, "count": 10, "curve": False}
    scores = besiege.evaluate(NET, "digits", threat="linf:0.2", access="score", **how)
    assert list(scores.by_attack) == ["square", "nattack"]
    labels = besiege.evaluate(
        NET, "digits", threat="linf:0.2", access="decision", goal="targeted:random", **how
    )
    assert list(labels.by_attack) == ["hopskipjump"]  # rays knows no targets


@pytest.mark.parametrize(
    ("threat", "access", "said"),
    [
        ("l0", "decision", "no attack fits it: with decision access they work in linf, l2, l1"),
        ("l0:3", "decision", r"attacks='noise' \(noise\)$"),
        ("linf", "score", r"attacks='geoda' .*'minimal\(square\)', or .* such as 'linf:8/255'"),
        ("l2", "score", r"attacks='boundary' .*'minimal\(square\)', or .* such as 'l2:0.5'"),
        ("l0:3", None, r"attacks='cw' \(cw, fmn, jsma, noise, sigmazero\)$"),
    ],
)
def test_where_there_is_no_usual_list_nobody_is_blamed(
    threat: str, access: str | None, said: str
) -> None:
    for ask in (besiege.evaluate, estimate):
        with pytest.raises(ThreatError, match=f"no default attacks for .*{said}"):
            ask(NET, "digits", threat=threat, access=access, count=2)
    with pytest.raises(ThreatError, match="the suite 'quick' has no attack for the threat 'l0:3'"):
        estimate(NET, "digits", threat="l0:3", suite="quick", count=2)


@pytest.mark.parametrize("access", ["score", "decision"])
@pytest.mark.parametrize("norm", ["linf:0.1", "l2:1", "l1:3"])
def test_the_usual_list_of_an_access_fits_every_norm_it_is_for(access: str, norm: str) -> None:
    found = estimate(NET, "digits", threat=norm, access=access, count=2)
    assert found.asked is not None and len(found.prices) >= 4


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("averaged(rays(steps=10), 5)", 5 * 11),
        ("repeat(square(steps=10), 3)", 3 * 11 + 1),
        ("cascade(rays(steps=10), averaged(rays(steps=5), 4))", 10 + 20 + 1),
        ("minimal(square(steps=10), doublings=1, bisections=2)", 4 * 11 + 1),
    ],
)
def test_what_combinations_cost_is_estimated(text: str, most: int) -> None:
    how: dict[str, Any] = {"threat": "linf:0.05", "access": "score", "attacks": text, "count": 8}
    prices = {price.account: price.each for price in estimate(NET, "digits", **how).prices}
    assert prices[text] == most
    found = besiege.evaluate(NET, "digits", curve=False, **how)
    assert int(found.rows["queries"].max()) <= most


def test_a_combination_that_takes_advice_is_evaluated() -> None:
    how: dict[str, Any] = {"threat": "linf:0.1", "access": "score", "count": 4}
    how["attacks"] = "repeat(prgf(steps=2), 2)"
    with pytest.raises(AttackError, match="needs a substitute, and none was given"):
        estimate(NET, "digits", **how)
    how["substitute"] = "zoo:digits-pgd-at"
    assert estimate(NET, "digits", **how).asked is not None
    found = besiege.evaluate(NET, "digits", curve=False, **how)
    assert found.complete and int(found.rows["aside"].sum()) > 0


def test_what_scores_decide_is_refused_where_there_are_none() -> None:
    with pytest.raises(ThreatError, match="use targeted:random"):
        besiege.evaluate(
            NET,
            "digits",
            threat="l2:1",
            goal="targeted:least-likely",
            access="decision",
            attacks="hopskipjump",
            count=5,
        )


def test_labels_by_chance_are_voted_on() -> None:
    data = besiege.data.load("digits", count=24)
    samples = Samples.of(data.images, data.labels, ids=data.ids)
    victim, threat = besiege.defenses.load(NET + "+resize_pad"), Threat.parse("linf:0.3 decision")
    with pytest.raises(StochasticError, match=r"averaged\(rays, 5\)"):
        craft(victim, parse("rays"), samples, threat, queries=100)
    with pytest.raises(StochasticError, match="give a budget"):
        craft(victim, parse("averaged(rays, 5)"), samples, Threat.parse("linf decision"))
    crafted = craft(victim, parse("averaged(rays, 5)"), samples, threat, queries=500)
    assert int(crafted.queries.max()) <= 500
    kept = judge(victim, crafted, samples, threat).success & crafted.success
    # What five votes agreed on mostly holds when it is drawn afresh.
    assert int(crafted.success.sum()) >= 8 and kept.sum() >= 0.6 * crafted.success.sum()


class Loud(Victim):
    """Class 0 calmly, and now and then class 1 at the top of its voice."""

    def __init__(self) -> None:
        self.victim = self.adopt(Linear((1, 2, 2), 2))
        self.stochastic = True

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        assert dice is not None
        loud = dice.uniform(()) < 0.1
        return torch.stack((torch.ones(len(x)), torch.where(loud, 100.0, 0.0)), 1)


def test_a_vote_does_not_hear_how_loud_a_label_is() -> None:
    images, labels = torch.full((16, 1, 2, 2), 0.5), torch.zeros(16).long()
    laid = siege(Loud(), images, labels, access=Access.DECISION, leave="end")
    assert (laid.averaged(25).labels(images).labels == 0).all()
    assert (laid.averaged(25).labels(images[:, None].expand(-1, 2, -1, -1, -1)).labels == 0).all()


def test_who_was_broken_had_a_start() -> None:
    data = besiege.data.load("digits", count=20)
    found = besiege.attack(
        "cascade(rays(steps=1), hopskipjump(steps=2))",
        NET,
        data.images,
        data.labels,
        threat="linf:0.9 decision",
    )
    assert found.success.double().mean() > 0.8
    assert not [w for w in found.warnings if w.id == "W40"]


def test_a_substitute_that_does_not_fit_is_named_before_anybody_is_asked() -> None:
    asked: list[int] = []

    def answer(images: Any) -> Any:
        asked.append(len(images))
        return besiege.models.load(NET)(torch.from_numpy(images)).detach().numpy()

    victim = besiege.function_model(answer, classes=10)
    how: dict[str, Any] = {"threat": "linf:0.2", "attacks": "mim", "count": 5, "curve": False}
    with pytest.raises(InputError, match=r"the substitute .* has 7 classes, but the victim 10"):
        besiege.evaluate(victim, "digits", substitute=Linear((1, 8, 8), 7), **how)
    with pytest.raises(InputError, match=r"the substitute .* cannot take the images .*adapt"):
        besiege.evaluate(victim, "digits", substitute=Linear((3, 5, 5), 10), **how)
    assert asked == []


def _no_curve(found: besiege.Evaluation) -> Any:
    return found.figures.no_curve


def test_a_short_search_is_not_made_of_a_few_answers(tmp_path: Path) -> None:
    how: dict[str, Any] = {"threat": "linf:0.15", "access": "score", "count": 8}
    found = besiege.evaluate(
        "zoo:digits-natural", "digits", attacks="square(steps=30)", out=tmp_path / "short", **how
    )
    assert _no_curve(found).startswith("Query-based attacks")
    full = besiege.evaluate(
        "zoo:digits-natural",
        "digits",
        attacks="square(steps=30)",
        curve="full",
        out=tmp_path / "full",
        **how,
    )
    assert _no_curve(full) is None


def test_time_left_is_reckoned_in_queries() -> None:
    for text in ("hopskipjump", "geoda", "averaged(rays, 5)"):
        attack = parse(text)
        assert attack.passes((1, 8, 8), 10) == attack.cost((1, 8, 8), 10)

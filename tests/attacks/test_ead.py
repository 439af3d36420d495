"""EAD: its steps written out, its rules, and the traps of other implementations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tests.victims import Spy, affine, normal, smallest
from torch import Tensor

from besiege.attacks.attack import parse
from besiege.attacks.ead import EAD
from besiege.attacks.weighting import UNSET, Weights
from besiege.core.ball import distances
from besiege.core.errors import AttackError
from besiege.core.samples import Samples
from besiege.core.threat import L0, L1, L2, Goal, Threat
from besiege.evaluation import craft
from besiege.testing.victims import Linear, digits, images_of, natural, scaled

SHAPE = (1, 6, 7)


def walked(victim: Linear, x0: Tensor, labels: Tensor, attack: EAD) -> tuple[list[Any], list[Any]]:
    """The points ahead and the shrunken ones of one round as in the paper, with weight one."""
    weight = torch.from_numpy(victim.weight).float()
    w = (weight[1 - labels] - weight[labels]).view_as(x0)
    x = y = x0
    ahead, shrunken = [], []
    for k in range(attack.steps):
        ahead.append(y)
        rate = attack.rate * ((1 - k / attack.steps) ** 0.5 if attack.decay else 1)
        z = victim(y).detach()
        lead = z.gather(1, 1 - labels[:, None]) - z.gather(1, labels[:, None])
        gradient = 2 * (y - x0) - torch.where(lead < 0, 1.0, 0.0).view(-1, 1, 1, 1) * w
        z = y - rate * gradient
        upper, lower = (z - attack.beta).clamp_max(1.0), (z + attack.beta).clamp_min(0.0)
        new = torch.where(z - x0 > attack.beta, upper, torch.where(x0 - z > attack.beta, lower, x0))
        y, x = new + k / (k + 3) * (new - x), new
        shrunken.append(x)
    return ahead, shrunken


@pytest.mark.parametrize("decay", [True, False])
def test_steps_are_those_of_the_paper_and_what_is_judged_is_the_shrunken_point(decay: bool) -> None:
    victim = Linear(SHAPE, 2)
    samples = victim.samples(6)
    attack = EAD(1, 12, 0.01, first=1.0, rate=0.02, abort=False, compat=True, decay=decay)
    spy = Spy(victim)
    found = smallest(spy, attack, samples, L1, pad=False, batch=10**6)
    ahead, shrunken = walked(victim, samples.images, samples.labels, attack)
    asked = spy.images[1:]
    assert len(asked) == 24
    for mine, theirs in zip(asked[::2], ahead, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)
    for mine, theirs in zip(asked[1::2], shrunken, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)
    # What is kept is one of those points, never one ahead.
    rows = found.success
    assert rows.any()
    same = (torch.stack(asked[1::2]) == found.images).flatten(2).all(2).any(0)
    assert same[rows].all()


def test_what_is_not_needed_stays_exactly_as_it_was() -> None:
    found = smallest(natural(), EAD(steps=40), digits(16), L1)
    change = found.images - digits(16).images
    assert found.success.all()
    assert distances(change, L0).median() < 40
    moved = change[change != 0].abs()
    assert moved.min() < 0.05


def test_the_rules_choose_as_they_say() -> None:
    """The L1 rule is sparser and larger in l2 than the elastic net."""
    samples = digits(10)
    l1, en = (
        smallest(natural(), EAD(rounds=4, steps=30, rule=r), samples, L1) for r in ("l1", "en")
    )
    assert l1.success.all() and en.success.all()
    one, two = l1.images - samples.images, en.images - samples.images
    assert (distances(one, L1) <= distances(two, L1) * 1.0001).all()
    assert distances(one, L0).mean() < 0.9 * distances(two, L0).mean()
    assert distances(one, L2).mean() > 1.03 * distances(two, L2).mean()
    net = [distances(d, L2) ** 2 + 1e-3 * distances(d, L1) for d in (one, two)]
    assert (net[1] <= net[0] * 1.0001).all()
    # The rule chooses, whatever norm the threat names.
    other = smallest(natural(), EAD(rounds=4, steps=30, rule="en"), samples, L2)
    assert torch.equal(other.images, en.images)
    assert torch.equal(smallest(natural(), EAD(rounds=4, steps=30), samples, L2).images, l1.images)


@pytest.mark.parametrize("classes", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_the_order_of_an_affine_victims_distance(classes: int) -> None:
    victim = Linear(SHAPE, classes)
    samples = victim.samples(12)
    known = torch.from_numpy(victim.distance(L1, samples.images, samples.labels))
    found = smallest(victim, EAD(), samples, L1)
    assert found.success.all()
    ratio = found.distance / known
    assert ratio.min() > 1 - 1e-4 and ratio.median() < 1.5


def test_the_scale_of_the_logits_does_not_matter() -> None:
    victim = Linear(SHAPE, 3)
    samples = victim.samples(8)
    plain, *others = (
        smallest(scaled(victim, times), EAD(rounds=5, steps=30), samples, L1).distance
        for times in (1.0, 0.01, 100.0, 2.0**12)
    )
    assert all(torch.allclose(other, plain, rtol=5e-3) for other in others)
    assert torch.equal(others[-1], plain)


def test_what_is_kept_is_as_sure_as_wanted() -> None:
    victim, samples = natural(), digits(16)
    sure = smallest(victim, EAD(rounds=4, steps=30, kappa=3.0), samples, L1)
    rows = sure.success & (sure.distance > 0)
    assert int(rows.sum()) > 8
    z = victim(sure.images[rows]).detach()
    own = samples.labels[rows][:, None]
    assert (z.scatter(1, own, -torch.inf).amax(1) - z.gather(1, own)[:, 0]).min() >= 3.0 - 1e-4


def test_towards_a_target() -> None:
    samples = digits(16)
    targets = (samples.labels + 3) % 10
    aimed = Samples(samples.images, samples.labels, samples.ids, targets)
    found = craft(natural(), EAD(steps=60), aimed, Threat(L1, None, Goal.GIVEN))
    assert found.success.double().mean() > 0.8
    rows = found.success
    assert torch.equal(natural()(found.images[rows]).argmax(1), targets[rows])


def test_a_failure_returns_the_clean_image() -> None:
    victim = affine(torch.tensor([[0.0] * 6, [1.0] * 6]), torch.tensor([100.0, 0.0]))
    x = images_of((1, 2, 3), 4)
    for rule in ("l1", "en"):
        attack = EAD(steps=10, rule=rule)
        found = smallest(victim, attack, Samples.of(x, torch.zeros(4).long()), L1)
        assert not found.success.any() and torch.equal(found.images, x)


def test_a_step_costs_two_forwards_and_one_backward() -> None:
    weight = normal(3, 42)
    victim = affine(weight, -0.5 * weight.sum(1))
    x = images_of(SHAPE, 3)
    samples = Samples.of(x, victim(x).argmax(1))
    found = smallest(victim, EAD(rounds=2, steps=5), samples, L1, pad=False)
    assert found.forwards.tolist() == [21] * 3 and found.backwards.tolist() == [10] * 3


@pytest.mark.parametrize("text", ["ead", "ead(steps=20, beta=0.02, rule='en', compat=True)"])
def test_texts_read_back(text: str) -> None:
    assert str(parse(text)) == text and parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ead(steps=0)", "steps is 0"),
        ("ead(rule='l2')", "rule is 'l2'"),
        ("ead(beta=0)", "beta is 0"),
        ("ead(kappa=-1)", "kappa is -1"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(AttackError, match=said):
        parse(text)


@pytest.mark.parametrize("more", ["", ", rule='en'", ", kappa=2", ", rule='en', kappa=2"])
def test_a_limit_on_queries_takes_no_success_back(more: str) -> None:
    victim, samples = natural(), digits(12)
    attack = parse(f"ead(rounds=3, steps=20, first=30{more})")
    some = craft(victim, attack, samples, Threat.parse("l2"), queries=35)
    assert int(some.success.sum()) > 6


@pytest.mark.slow
def test_aborting_saves_passes_and_loses_nothing() -> None:
    victim, samples = natural(), digits(24)
    whole, cut = (
        craft(victim, parse(text), samples, Threat(L1, None))
        for text in ("ead(abort=False)", "ead")
    )
    assert int(cut.backwards.sum()) < 0.7 * int(whole.backwards.sum())
    assert float(cut.distance.mean()) < 1.01 * float(whole.distance.mean())


def tried(attack: EAD) -> list[tuple[Tensor, Tensor]]:
    """The weights of every round, and which rows each sufficed for."""
    noted, after = [], Weights.after

    def spy(weights: Weights, won: Tensor) -> Weights:
        noted.append((weights.c, won))
        return after(weights, won)

    with patch.object(Weights, "after", spy):
        smallest(natural(), attack, digits(8).at(torch.tensor([0])), L1)
    return noted


def test_as_published_every_weight_is_tried_and_the_last_of_ten_is_repeated() -> None:
    attack = EAD(10, 10, 0.001, first=0.05, rate=0.05, compat=True, repeat=True)
    noted = tried(attack)
    assert len(noted) == 10, "no row skips a weight that is known precisely"
    won = torch.stack([won for _, won in noted[:-1]])
    weights = torch.stack([c for c, _ in noted])
    least = weights[:-1].masked_fill(~won, UNSET).amin(0)
    assert won.any() and torch.equal(weights[-1], least)
    assert not torch.equal(tried(replace(attack, repeat=False))[-1][0], least)

"""NATTACK: its advantages, where its mean ends, and whom it fools."""

from __future__ import annotations

import pytest
import torch
from tests.victims import Noisy, normal, siege, uniform

from besiege.attacks.attack import parse
from besiege.attacks.nattack import NAttack, advantages
from besiege.core.ball import distances
from besiege.core.errors import AttackError
from besiege.core.samples import Samples
from besiege.core.threat import L2, Access, Goal, Linf, Norm, Threat
from besiege.evaluation import craft
from besiege.testing.victims import Counting, Linear, digits, natural

EPS = {Linf: 0.1, L2: 0.5}


def score(norm: Norm, eps: float, goal: Goal = Goal.UNTARGETED) -> Threat:
    return Threat(norm, eps, goal, Access.SCORE)


def test_advantages_have_mean_zero_and_deviation_one_in_every_row() -> None:
    scale = torch.tensor([1e-3, 1.0, 50.0])[:, None]
    loss = normal(3, 100) * scale - 7 * scale
    a = advantages(loss)
    assert a.mean(1).abs().max() < 1e-12
    assert torch.allclose(a.std(1, correction=0), torch.ones(3).double())
    assert torch.allclose(a[1], advantages(loss[1:2])[0])
    # What was not answered has none, and where all are alike nobody has.
    loss[0, 5:] = -torch.inf
    loss[2] = 4.25
    a = advantages(loss)
    assert (a[0, 5:] == 0).all() and abs(float(a[0, :5].mean())) < 1e-12
    assert abs(float(a[0, :5].std(correction=0)) - 1) < 1e-9
    assert (a[2] == 0).all()
    assert (advantages(torch.full((1, 4), -torch.inf)) == 0).all()
    assert torch.equal(advantages(normal(2, 50) * 1024), advantages(normal(2, 50)))


@pytest.mark.parametrize("tanh", [False, True])
def test_the_mean_reaches_the_corner_of_a_linear_victim(tanh: bool) -> None:
    victim = Linear((1, 6, 6), 2)
    images = 0.35 + 0.3 * uniform(4, 1, 6, 6)
    labels = victim(images).argmax(1)
    slope = torch.from_numpy(victim.weight).float()
    slope = (slope[1 - labels] - slope[labels]).view_as(images)
    laid = siege(victim, images, labels, 0.02, leave="end", keep="last")
    attack = NAttack(steps=120, tanh=tanh, rate=0.02)
    attack.run(laid)
    right = (laid.record.images - images).sign() == slope.sign()
    large = slope.abs() > 0.3 * slope.abs().mean()
    assert right[large].all()
    corner = (laid.record.images - (images + 0.02 * slope.sign())).abs() < 1e-5
    assert corner[large].double().mean() > 0.95


def test_black_and_white_pixels_stand_still_behind_a_tanh_alone() -> None:
    victim, samples = natural(), digits(12)
    moved = {}
    for tanh in (False, True):
        laid = siege(victim, samples.images, samples.labels, leave="end", keep="last")
        NAttack(steps=5, population=30, tanh=tanh).run(laid)
        ends = (samples.images == 0) | (samples.images == 1)
        moved[tanh] = float((laid.record.images - samples.images)[ends].abs().max())
    assert moved[True] < 1e-4 and moved[False] > 0.03


@pytest.mark.parametrize("norm", [Linf, L2], ids=str)
@pytest.mark.parametrize("population", [12, 300])
def test_rows_alone_and_accounts(norm: Norm, population: int) -> None:
    victim, samples = natural(), digits(8)
    attack = NAttack(steps=3, population=population, side=5)
    counting = Counting(victim, access=Access.SCORE, metered=True)
    whole = craft(counting, attack, samples, score(norm, EPS[norm]))
    assert counting.forwards == int(whole.queries.sum())
    stood = ~whole.success
    assert (whole.queries[stood] == 1 + attack.cost((1, 8, 8), 10)).all()
    assert (distances(whole.images - samples.images, norm) <= EPS[norm] * (1 + 1e-6)).all()
    for row in (0, 5, 7):
        alone = craft(victim, attack, samples.at(torch.tensor([row])), score(norm, EPS[norm]))
        for name in ("images", "success", "queries", "first_query", "first_step"):
            assert torch.equal(getattr(alone, name)[0], getattr(whole, name)[row]), (row, name)


@pytest.mark.parametrize("norm", [Linf, L2], ids=str)
def test_it_needs_fewer_queries_than_nes_and_spsa(norm: Norm) -> None:
    victim, samples = natural(), digits(12)
    spent = [
        float(
            craft(victim, parse(name), samples, score(norm, EPS[norm]), queries=500)
            .queries.double()
            .mean()
        )
        for name in ("nattack", "nes", "spsa")
    ]
    assert spent[0] < min(spent[1:]), spent


def test_targets_are_reached_and_noise_is_no_defense() -> None:
    victim, samples = natural(), digits(12).at(torch.arange(10))
    aimed = Samples(samples.images, samples.labels, samples.ids, (samples.labels + 1) % 10)
    made = craft(victim, NAttack(), aimed, score(Linf, 0.3, Goal.GIVEN), queries=2500)
    assert int(made.success.sum()) >= 8
    noisy = Noisy(victim, 0.02)
    made = craft(noisy, NAttack(steps=12), samples, score(Linf, 0.15), keep="last", leave="end")
    assert int((victim(made.images).argmax(1) != samples.labels).sum()) >= 7


def test_values() -> None:
    for text in ("nattack@li", "nattack@realsafe"):
        assert str(parse(str(parse(text)))) == str(parse(text))
    for text, said in {
        "nattack(population=1)": "population is 1",
        "nattack(side=0)": "side is 0",
        "nattack(sigma=-1)": "sigma is -1",
        "nattack(loss=1)": "not a loss",
    }.items():
        with pytest.raises(AttackError, match=said):
            parse(text)

"""The evolutionary attack: children, what the variances learn, and how far it comes."""

from __future__ import annotations

import math

import pytest
import torch
from tests.attacks.test_hopskipjump import flat, medians, some
from tests.victims import Spy, normal

from besiege.attacks.attack import parse
from besiege.attacks.evolutionary import ACTIVE, PRESETS, Evolutionary, child, mutation
from besiege.core.ball import ball, distances
from besiege.core.dice import Dice
from besiege.core.errors import AttackError
from besiege.core.samples import Samples
from besiege.core.threat import L2, Access, Threat
from besiege.evaluation import craft
from besiege.testing.victims import Counting, untrained


def test_a_child_is_nearer_by_the_share_mu_before_the_box() -> None:
    around = ball(L2, torch.full((3, 1, 6, 6), 0.5), torch.inf)
    x = around.center + 0.05 * normal(3, 1, 6, 6)
    mu = torch.tensor([0.01, 0.1, 0.5]).double()
    new = child(around, x, normal(3, 1, 6, 6, seed=1), mu, torch.full((3,), 0.2).double())
    assert torch.allclose(around.distance(new), (1 - mu) * around.distance(x), rtol=1e-5)
    still = child(around, x, torch.zeros_like(x), mu, torch.full((3,), 0.2).double())
    assert torch.allclose(still, around.center + (x - around.center) * around.scaled(1 - mu))


def test_a_mutation_touches_a_twentieth_of_the_entries_the_wider_the_likelier() -> None:
    spread = torch.ones(2, 400)
    spread[1, :100] = 9.0
    dice = Dice.throw(0, torch.arange(2))
    hit = torch.zeros(2, 400)
    for step in range(300):
        z = mutation(dice, spread, step)
        assert ((z != 0).sum(1) == 400 // ACTIVE).all()
        hit += z != 0
    even, uneven = hit / 300 * ACTIVE
    assert even[:100].mean().item() == pytest.approx(1.0, abs=0.1)
    # 100 entries of weight nine beside 300 of one.
    assert uneven[:100].mean().item() == pytest.approx(4 * 0.75, rel=0.08)
    wide = torch.cat([mutation(dice, spread, step)[1, :100] for step in range(100)])
    assert wide[wide != 0].std().item() == pytest.approx(3.0, rel=0.1)


def test_it_comes_nearer_than_the_reference_simulation_and_does_not_stall() -> None:
    """In 300 dimensions the published one is at 1.27 after 2,500 queries."""
    victim, samples, _ = flat(300, 5)
    made = craft(victim, Evolutionary(), samples, Threat(L2, None), queries=1000)
    after = medians(made, 250, 1000)
    assert after[0] < 2.5 and after[1] < 1.4
    assert after[1] > 1.0


def test_distances_never_grow_and_every_child_is_nearer() -> None:
    victim, samples, _ = flat(60, 3)
    spy = Spy(victim, Access.DECISION)
    made = craft(spy, Evolutionary(steps=150), samples, Threat(L2, None), pad=False)
    best = torch.full((3,), torch.inf).double()
    accepted = 0
    for images in spy.images[-150:]:
        away = distances(images - samples.images, L2)
        good = victim(images).argmax(1) != samples.labels
        assert (away < best).all()
        accepted += int(good.sum())
        best = torch.where(good, away, best)
    assert 0.1 < accepted / 450 < 0.35 and torch.equal(made.distance, best)


@pytest.mark.parametrize(
    "text", ["evolutionary(steps=60)", "evolutionary(steps=60, shrink=2, sigma=0.03, window=30)"]
)
def test_a_row_is_what_it_is_alone(text: str) -> None:
    """Its step towards the clean image too, which is its own."""
    victim = untrained((3, 8, 8), 5)
    images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    samples = Samples.of(images, victim(images).argmax(1))
    counting = Counting(victim, Access.DECISION, metered=True)
    whole = craft(counting, parse(text), samples, Threat(L2, None))
    assert counting.forwards == int(whole.queries.sum())
    for rows in ([1], [0, 3]):
        part = craft(victim, parse(text), some(samples, rows), Threat(L2, None))
        for name in ("images", "success", "distance", "queries", "no_start"):
            assert torch.equal(getattr(part, name), getattr(whole, name)[rows]), (rows, name)


def test_any_shape_and_shrinking() -> None:
    for shape in ((1, 1, 3), (2, 5, 7), (3, 9, 9)):
        victim = untrained(shape, 3)
        images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
        samples = Samples.of(images, victim(images).argmax(1))
        for shrink in (1, 2, 20):
            attack = Evolutionary(steps=20, shrink=shrink)
            made = craft(victim, attack, samples, Threat(L2, None))
            assert torch.isfinite(made.images).all()
            assert (made.queries <= attack.cost(shape, 3) + 1).all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("evolutionary(steps=0)", "steps is 0"),
        ("evolutionary(mu=1)", "mu is 1"),
        ("evolutionary(sigma=0)", "sigma is 0"),
        ("evolutionary(shrink=0)", "shrink is 0"),
        ("evolutionary(window=0)", "window is 0"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(AttackError, match=said):
        parse(text)


def test_published_settings_read_back() -> None:
    for text in ("evolutionary", *PRESETS.values()):
        assert isinstance(parse(text), Evolutionary) and parse(str(parse(text))) == parse(text)
    assert math.isclose(parse(PRESETS["realsafe"]).sigma, 0.03)  # type: ignore[attr-defined]

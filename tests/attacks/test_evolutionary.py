"""The evolutionary attack: children, what the variances learn, and how far it comes."""

from __future__ import annotations

import math

import pytest
import torch
from tests.attacks.test_hopskipjump import flat, medians, some
from tests.victims import Spy, normal
from torch import nn

from besiege.attacks.attack import parse
from besiege.attacks.evolutionary import ACTIVE, Evolutionary, child, mutation
from besiege.core.ball import ball, distances
from besiege.core.dice import Dice
from besiege.core.errors import AttackError
from besiege.core.samples import Samples
from besiege.core.threat import L2, Access, Threat
from besiege.evaluation import craft
from besiege.models import Classifier
from besiege.testing.victims import Counting, digits, natural, untrained


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
        moved = mutation(dice, spread, step) != 0
        assert moved[0].sum() == 400 // ACTIVE
        assert 400 // ACTIVE - 2 <= moved[1].sum() <= 400 // ACTIVE  # seldom the same one twice
        hit += moved
    even, uneven = hit / 300 * ACTIVE
    assert even[:100].mean().item() == pytest.approx(1.0, abs=0.1)
    assert even.min() > 0.1 and even.max() < 3.0
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


def test_children_of_large_images_are_drawn_on_small_ones() -> None:
    small = Evolutionary().small
    assert small((3, 32, 32)) == (3, 32, 32) and small((1, 45, 45)) == (1, 45, 45)
    assert small((3, 112, 112)) == (3, 38, 38) and small((3, 224, 224)) == (3, 45, 45)
    assert small((3, 60, 240)) == (3, 20, 80) and small((3, 1, 299)) == (3, 1, 299)
    assert Evolutionary(shrink=1).small((3, 224, 224)) == (3, 224, 224)
    assert parse("evolutionary@realsafe").small((3, 299, 299)) == (3, 299, 299)  # type: ignore[attr-defined]


def smooth(side: int) -> tuple[Classifier, Samples, float]:
    """A linear victim that looks at smooth changes, grey images, and the optimum."""
    wave = torch.linspace(0, 3, side).sin()
    weight = wave[:, None] * wave
    line = nn.Linear(side * side, 2)
    with torch.no_grad():
        line.weight.copy_(torch.stack((torch.zeros_like(weight), weight)).flatten(1))
        line.bias.copy_(torch.tensor([5.0 + 0.5 * float(weight.sum()), 0.0]))
    victim = Classifier(nn.Sequential(nn.Flatten(), line), classes=2)
    samples = Samples.of(torch.full((3, 1, side, side), 0.5), torch.zeros(3, dtype=torch.int64))
    return victim, samples, 5.0 / float(weight.norm())


def test_large_images_come_nearer_on_small_ones() -> None:
    victim, samples, best = smooth(96)
    found = [
        craft(victim, parse(f"evolutionary(steps=150{more})"), samples, Threat(L2, None)).distance
        for more in ("", ", shrink=1")
    ]
    assert (found[0] > best * (1 - 1e-6)).all()
    assert found[0].median() < 0.5 * found[1].median()


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
    for text in ("evolutionary", "evolutionary@dong", "evolutionary@realsafe"):
        assert isinstance(parse(text), Evolutionary) and parse(str(parse(text))) == parse(text)
    assert math.isclose(parse("evolutionary@realsafe").sigma, 0.03)  # type: ignore[attr-defined]


def test_on_a_coarse_grid_the_first_steps_are_not_rounded_away() -> None:
    """Medians of 30 digits after 60 queries: 2.1 with first steps of a hundredth, 1.2 so."""
    victim = Classifier(natural().module, grid=1 / 15)
    samples = digits(30)
    rounded = Samples.of((samples.images * 15).round() / 15, samples.labels, ids=samples.ids)
    made = craft(victim, Evolutionary(), rounded, Threat(L2, None), queries=60)
    assert made.distance.median() < 1.5


def test_an_entry_drawn_twice_is_moved_once() -> None:
    spread = torch.ones(1, 400)
    spread[0, 7] = 4000.0  # nine of ten points fall on it
    dice = Dice.throw(0, torch.arange(1))
    drawn = torch.stack([mutation(dice, spread, step)[0, 7] for step in range(400)])
    assert drawn.std().item() == pytest.approx(math.sqrt(4000.0), rel=0.1)

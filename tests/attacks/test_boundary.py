"""The boundary attack: the geometry of its steps, how lengths adapt, and how far it comes."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.test_hopskipjump import flat, medians, some
from tests.victims import Spy, normal

from besiege.attacks.attack import parse
from besiege.attacks.boundary import (
    SPHERES,
    STEPS,
    TRIES,
    Boundary,
    _adapted,
    _pushed,
    proposal,
)
from besiege.core.ball import ball, distances
from besiege.core.errors import AttackError
from besiege.core.samples import Samples
from besiege.core.threat import L2, Access, Threat
from besiege.evaluation import craft
from besiege.testing.victims import Counting, untrained

PUBLISHED = "boundary(steps=12, sphere=0.05, toward=0.05, bisected=False)"


def test_the_point_lies_on_the_sphere_and_the_candidate_below_it() -> None:
    around = ball(L2, torch.full((4, 1, 6, 6), 0.5), torch.inf)
    x = around.center + 0.05 * normal(4, 1, 6, 6)
    n = around.distance(x)
    s, e = (
        torch.tensor([0.01, 0.1, 0.3, 0.3]).double(),
        torch.tensor([0.01, 0.005, 0.1, 0]).double(),
    )
    sphere, new = proposal(around, x, normal(4, 1, 6, 6, seed=1), s, e)
    assert torch.allclose(around.distance(sphere), n, rtol=1e-5)
    assert torch.allclose(around.distance(new), n * (1 - e), rtol=1e-5)
    # The move on the sphere: across the line, s n long before the sphere takes it back.
    across = (sphere - around.center) * around.scaled(torch.sqrt(1 + s**2)) - (x - around.center)
    assert torch.allclose(distances(across, L2), s * n, rtol=1e-4)
    along = (across * (x - around.center)).flatten(1).sum(1)
    assert (along.abs() < 1e-5).all()


def test_what_the_box_cuts_is_measured_after_it() -> None:
    around = ball(L2, torch.zeros(2, 1, 6, 6), torch.inf)
    x = 0.2 * normal(2, 1, 6, 6).abs()
    s = torch.tensor([0.5, 0.5]).double()
    sphere, new = proposal(around, x, normal(2, 1, 6, 6, seed=1), s, 0.5 * s**2)
    for image in (sphere, new):
        assert image.min() >= 0 and image.max() <= 1
    n, m = around.distance(x), around.distance(sphere)
    assert (m < n).all()
    # The box has taken some of the distance already: only the rest is left to go.
    expected = torch.minimum(m, n * (1 - 0.5 * s**2))
    assert torch.allclose(around.distance(new), expected, rtol=1e-5)


def test_the_walk_comes_as_near_as_the_reference_simulation_and_sooner() -> None:
    """In 100 dimensions: 1.001 of the optimum, for which the published walk takes 20,000."""
    victim, samples, _ = flat(100, 5)
    made = craft(victim, Boundary(steps=1400), samples, Threat(L2, None), queries=1200)
    after = medians(made, 500, 1200)
    assert after[0] < 1.25 and 1.0 <= after[1] < 1.03


def test_distances_never_grow_and_every_candidate_is_nearer() -> None:
    victim, samples, _ = flat(60, 3)
    spy = Spy(victim, Access.DECISION)
    made = craft(spy, Boundary(steps=150), samples, Threat(L2, None), pad=False)
    assert made.descent is not None
    assert (made.descent[:, 1:] <= made.descent[:, :-1]).all()
    best = torch.full((3,), torch.inf).double()
    accepted = 0
    for images in spy.images[-150:]:
        away = distances(images - samples.images, L2)
        good = victim(images).argmax(1) != samples.labels
        assert (away < best).all()
        accepted += int(good.sum())
        best = torch.where(good, away, best)
    assert 0.08 < accepted / 450 < 0.25
    assert torch.equal(made.distance, best)


# as published


def test_lengths_change_once_both_queues_are_full_and_the_step_is_over() -> None:
    s = e = torch.full((7,), 0.1).double()
    spheres, steps = torch.zeros(7, SPHERES).bool(), torch.zeros(7, STEPS).bool()
    spheres[:, :30] = True  # between the bounds
    steps[:, :10] = True
    spheres[1], spheres[2], steps[3], steps[4] = True, False, True, False
    filled, stepped = torch.full((7,), SPHERES), torch.full((7,), STEPS)
    over = torch.tensor([True] * 6 + [False])
    filled[5] -= 1
    spheres[5:], steps[5:] = True, True
    s, e, filled, stepped = _adapted(s, e, spheres, steps, filled, stepped, over)
    assert torch.allclose(s, 0.1 * torch.tensor([1, 1.5, 1 / 1.5, 1, 1, 1, 1]).double())
    assert torch.allclose(e, 0.1 * torch.tensor([1, 1.5, 1 / 1.5, 1.5, 1 / 1.5, 1, 1]).double())
    assert filled.tolist() == [100, 0, 0, 100, 100, 99, 100]
    assert stepped.tolist() == [30, 30, 30, 0, 0, 30, 30]


def test_a_queue_holds_the_last_ones_of_its_row() -> None:
    queue, count = torch.zeros(2, 3).bool(), torch.zeros(2).long()
    for n in range(5):
        which = torch.tensor([True, n % 2 == 0])
        queue, count = _pushed(queue, count, which, torch.tensor([n >= 2, n >= 2]))
    assert count.tolist() == [5, 3]
    assert queue[0].all() and queue[1].tolist() == [False, True, True]


def test_every_tenth_step_asks_about_the_sphere_first() -> None:
    victim, samples, _ = flat(60, 1)
    spy = Spy(victim, Access.DECISION)
    attack = parse("boundary(steps=30, sphere=0.01, toward=0.01, bisected=False)")
    craft(spy, attack, samples, Threat(L2, None), pad=False)
    x = torch.stack([image[0] for image in spy.images])
    away = distances(x - samples.images, L2)
    good = victim(x).argmax(1) != samples.labels
    start = int(good.int().argmax())
    # Deep inside every candidate is taken: 30 steps, 3 of which ask twice.
    assert good[start:].all() and len(x) - start - 1 == 33
    rest = away[start:] / away[start]
    for place in (10, 21, 32):
        assert rest[place].item() == pytest.approx(rest[place - 1].item(), rel=1e-2)
        assert rest[place + 1].item() == pytest.approx(0.99 * rest[place - 1].item(), rel=1e-2)


def test_the_published_walk_ends_where_nothing_is_accepted() -> None:
    """25 directions a step, no more."""
    victim, samples, _ = flat(30, 2)
    attack = parse("boundary(steps=4, sphere=1.0, toward=1.0)")
    made = craft(victim, attack, samples, Threat(L2, None))
    assert (made.queries <= attack.cost((1, 1, 30), 2) + 1).all()  # type: ignore[operator]
    assert (made.queries >= 4 * TRIES).all()


# accounts


@pytest.mark.parametrize("text", ["boundary(steps=60)", PUBLISHED])
def test_a_row_is_what_it_is_alone(text: str) -> None:
    victim = untrained((3, 8, 8), 5)
    images = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    samples = Samples.of(images, victim(images).argmax(1))
    counting = Counting(victim, Access.DECISION, metered=True)
    whole = craft(counting, parse(text), samples, Threat(L2, None))
    assert counting.forwards == int(whole.queries.sum())
    for rows in ([1], [0, 3]):
        part = craft(victim, parse(text), some(samples, rows), Threat(L2, None))
        for name in ("images", "success", "distance", "queries", "no_start"):
            assert torch.equal(getattr(part, name), getattr(whole, name)[rows]), (rows, name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("boundary(steps=0)", "steps is 0"),
        ("boundary(sphere=0)", "sphere is 0"),
        ("boundary(toward=2)", "toward is 2"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(AttackError, match=said):
        parse(text)


def test_published_settings_read_back() -> None:
    for text in ("boundary", "boundary@brendel", "boundary@realsafe"):
        assert isinstance(parse(text), Boundary) and parse(str(parse(text))) == parse(text)

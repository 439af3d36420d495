"""Starting points that are paid for, and bisection that gives back what the victim was shown."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.victims import Curve, Spy, affine, siege, uniform
from torch import Tensor

from besiege.attacks import starts
from besiege.attacks.attack import parse
from besiege.attacks.starts import (
    BLENDS,
    CLOSER,
    FIRST,
    NARROW,
    NOISE,
    SIZES,
    adversarial,
    begin,
    find_start,
    halvings,
    roughly,
    start_cost,
    to_boundary,
)
from besiege.core.ball import distances
from besiege.core.knowledge import Knowledge
from besiege.core.samples import Samples
from besiege.core.siege import Siege
from besiege.core.threat import L1, L2, Access, Goal, Linf, Norm, Threat
from besiege.evaluation import craft
from besiege.models.classifier import Classifier
from besiege.testing.victims import Counting, Linear, digits, natural


def laid(
    victim: Any,
    images: Tensor,
    labels: Tensor,
    norm: Norm = L2,
    starts: Samples | None = None,
    **more: Any,
) -> Siege:
    return siege(
        victim,
        images,
        labels,
        torch.inf,
        norm,
        access=Access.DECISION,
        keep="smallest",
        leave="end",
        starts=starts,
        **more,
    )


def bright(level: float) -> Classifier:
    """Class 1 where the mean of four pixels is above a level, else class 0."""
    weight = torch.stack([torch.zeros(4), torch.full((4,), 25.0)])
    return affine(weight, torch.tensor([0.0, -100.0 * level]))


# starting points


def test_rows_stop_at_their_first_success_and_pay_for_what_they_saw() -> None:
    spy = Spy(bright(0.6), Access.DECISION)
    images = 0.2 * uniform(12, 1, 2, 2)
    begun = laid(spy, images, torch.zeros(12).long())
    start, found = find_start(begun)
    assert found.all() and (bright(0.6)(start).argmax(1) == 1).all()
    spent = begun.record.meter.queries
    assert sum(spy.calls) == int(spent.sum()) and len({*spent.tolist()}) > 2
    # Each is what the row saw last, and its first success.
    for row in range(12):
        alone = laid(bright(0.6), images[row : row + 1], torch.zeros(1).long())
        alone = alone.view(dice=begun.dice.at(torch.tensor([row])))
        assert torch.equal(find_start(alone)[0][0], start[row])
        assert alone.record.meter.queries.tolist() == [int(spent[row])]


def test_all_noise_of_the_own_class_does_not_hang() -> None:
    """Nothing but one class: an honest outcome, after all that could be tried."""
    victim = affine(torch.zeros(2, 4), torch.tensor([1.0, 0.0]))
    images = uniform(3, 1, 2, 2)
    begun = laid(victim, images, torch.zeros(3).long())
    start, found = find_start(begun)
    assert not found.any() and torch.equal(start, images)
    assert begun.record.no_start.all() and not begun.record.success.any()
    assert begun.record.meter.queries.tolist() == [NOISE + len(SIZES)] * 3
    assert len(begun.settle(start)) == 0


def test_other_images_start_what_noise_does_not() -> None:
    victim = bright(0.97)
    images = 0.2 * uniform(3, 1, 2, 2)
    pool = Samples.of(torch.stack([images[0], torch.full((1, 2, 2), 1.0)]), torch.tensor([0, 1]))
    begun = laid(victim, images, torch.zeros(3).long(), starts=pool)
    start, found = find_start(begun)
    assert found.all() and (start == 1.0).all()
    assert begun.record.meter.queries.tolist() == [FIRST + len(SIZES) + 1] * 3


def test_blends_start_what_the_image_itself_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("besiege.attacks.starts.SIZES", ())
    curve = Curve((0.0, -1.0), (0.6, -1.0), (0.7, 1.0), (0.8, -1.0), (1.0, -1.0))
    victim = Classifier(curve, classes=2, name="curve")
    pool = Samples.of(torch.full((1, 1, 1, 1), 0.92), torch.tensor([1]))
    begun = laid(victim, torch.zeros(1, 1, 1, 1), torch.zeros(1).long(), starts=pool)
    start, found = find_start(begun, noise=0)
    assert found.all() and start.item() == pytest.approx(BLENDS[0] * 0.92)
    assert begun.record.meter.queries.tolist() == [2]


def test_targets_start_from_images_of_their_class_the_nearest_first() -> None:
    victim = Linear((1, 4, 4), 4)
    samples = victim.samples(40)
    images, labels = samples.images[:5], samples.labels[:5]
    targets = (labels + 1) % 4
    pool = Samples.of(samples.images[5:], samples.labels[5:])
    begun = laid(victim, images, labels, starts=pool, targets=targets)
    start, found = find_start(begun)
    assert found.all() and begun.record.meter.queries.tolist() == [1] * 5
    for row in range(5):
        own = pool.images[pool.labels == targets[row]]
        near = own[distances(own - images[row], L2).argmin()]
        assert torch.equal(start[row], near)


@pytest.mark.parametrize("norm", [L2, Linf])
@pytest.mark.parametrize("targeted", [False, True])
def test_the_boundary_is_looked_for_towards_other_images_too(norm: Norm, targeted: bool) -> None:
    victim, samples = natural(), digits(40)
    images, labels = samples.images[:15], samples.labels[:15]
    targets = (labels + 1) % 10 if targeted else None
    pool = Samples.of(samples.images[15:], samples.labels[15:])
    one = Samples.of(pool.images, pool.labels) if targeted else None  # then they are the start

    def begun(some: Samples | None, many: int) -> tuple[Tensor, Tensor]:
        monkeys = pytest.MonkeyPatch()
        monkeys.setattr(starts, "RIVALS", many)
        war = laid(victim, images, labels, norm, starts=some, targets=targets)
        x = begin(war, roughly)
        monkeys.undo()
        found = torch.full((15,), torch.inf, dtype=torch.float64)
        found[war.rows] = war.ball.distance(x)
        assert (victim(x).argmax(1) != war.aim.labels).all()
        return found, war.record.meter.queries

    before, cheap = begun(one, 0)
    after, dear = begun(pool, 4)
    assert (after <= before).all()
    assert (after < CLOSER * before).sum() >= (1 if targeted else 8)
    # One query each, and bisection where one was better.
    assert (
        (dear >= cheap).all()
        and (dear > cheap).sum() >= 5
        and (dear <= start_cost(halvings(1 / NARROW))).all()
    )


@pytest.mark.parametrize("text", ["signopt(steps=1)", "opt(steps=1)"])
def test_directions_lead_to_other_images_too(text: str) -> None:
    samples = digits(40)
    some, pool = samples.at(torch.arange(15)), samples.at(torch.arange(15, 40))
    threat = Threat.parse("l2 decision")
    bare = craft(natural(), parse(text), some, threat, queries=120)
    led = craft(natural(), parse(text), some, threat, queries=120, knowledge=Knowledge(starts=pool))
    assert led.distance.median() < 0.8 * bare.distance.median()


def test_large_images_are_looked_through_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    victim = Linear((1, 4, 4), 4)
    samples = victim.samples(60)
    images, labels = samples.images[:5], samples.labels[:5]
    pool = Samples.of(samples.images[5:], samples.labels[5:])
    targets = (labels + 1) % 4
    seen: list[int] = []

    def watched(change: Tensor, norm: Norm) -> Tensor:
        seen.append(len(change))
        return distances(change, norm)

    whole = find_start(laid(victim, images, labels, starts=pool, targets=targets))[0]
    monkeypatch.setattr(starts, "ENTRIES", 3 * 16)
    monkeypatch.setattr(starts, "distances", watched)
    pieces = find_start(laid(victim, images, labels, starts=pool, targets=targets))[0]
    assert torch.equal(whole, pieces) and max(seen) == 3
    assert sum(seen) == sum(int((pool.labels == target).sum()) for target in targets)


def test_a_target_nobody_reaches_is_no_start() -> None:
    victim = affine(torch.zeros(3, 4), torch.tensor([1.0, 0.0, 0.0]))
    begun = laid(victim, uniform(2, 1, 2, 2), torch.zeros(2).long(), targets=torch.ones(2).long())
    assert not find_start(begun)[1].any() and begun.record.no_start.all()


def test_what_is_wrong_already_needs_no_start() -> None:
    victim = bright(0.5)
    images = torch.stack([torch.zeros(1, 2, 2), torch.ones(1, 2, 2)])
    begun = laid(victim, images, torch.zeros(2).long())
    begun.survey()
    start, found = find_start(begun)
    assert found.tolist() == [True, False] and not begun.record.no_start.any()
    assert begun.record.meter.queries[1] == 1 and begun.settle(start).shape[0] == 1


def test_the_budget_pays_for_the_start() -> None:
    victim = affine(torch.zeros(2, 4), torch.tensor([1.0, 0.0]))
    begun = laid(victim, uniform(2, 1, 2, 2), torch.zeros(2).long(), queries=7)
    assert not find_start(begun)[1].any()
    assert begun.record.meter.queries.tolist() == [7, 7]


def test_an_unpaid_answer_is_no_success() -> None:
    victim = bright(0.5)
    begun = laid(victim, torch.zeros(1, 1, 2, 2), torch.zeros(1).long(), queries=1)
    answer = begun.labels(torch.ones(1, 3, 1, 2, 2))
    assert answer.labels.tolist() == [[1, -1, -1]]
    assert adversarial(begun, answer).tolist() == [[True, False, False]]


# bisection


@pytest.mark.parametrize("norm", [L2, Linf, L1], ids=str)
@pytest.mark.parametrize("tolerance", [1e-1, 1e-3, 1e-4])
def test_bisection_ends_at_the_boundary_with_what_was_shown(norm: Norm, tolerance: float) -> None:
    victim = Linear((1, 5, 5), 3)
    samples = victim.samples(6)
    spy = Spy(victim, Access.DECISION)
    begun = laid(spy, samples.images, samples.labels, norm)
    start, _ = find_start(begun)
    at = to_boundary(begun, samples.images, start, tolerance)
    shown = torch.cat(spy.images)
    for row in range(6):
        assert (shown == at[row]).flatten(1).all(1).any()
    assert (victim(at).argmax(1) != samples.labels).all()
    # A little nearer on the same way it is not adversarial any more.
    size = distances(at - samples.images, norm)
    slack = 1.01 * tolerance + 1e-5
    back = begun.ball.retreat(at - samples.images, size, (1 - slack / size).clamp_min(0.0))
    assert (victim(samples.images + back).argmax(1) == samples.labels).all()
    assert int(begun.record.meter.queries.sum()) == len(shown)


def test_rows_end_by_themselves_with_the_number_of_queries_that_they_need() -> None:
    victim = bright(0.3)
    images, far = torch.zeros(3, 1, 2, 2), torch.ones(3, 1, 2, 2)
    begun = laid(victim, images, torch.zeros(3).long())
    tolerance = torch.tensor([2.0 * 2**-3, 2.0 * 2**-6, 2.0 * 2**-9])
    to_boundary(begun, images, far, tolerance)
    assert begun.record.meter.queries.tolist() == [3, 6, 9]
    begun = laid(victim, images, torch.zeros(3).long())
    some = torch.tensor([1])
    at = to_boundary(begun, images[some], far[some], tolerance[some], some)
    assert begun.record.meter.queries.tolist() == [0, 6, 0] and at.shape[0] == 1


def test_without_tolerance_it_stops_at_neighbouring_floats() -> None:
    victim = bright(0.3)
    images, far = torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2)
    begun = laid(victim, images, torch.zeros(1).long())
    at = to_boundary(begun, images, far, 0.0)
    assert 20 < int(begun.record.meter.queries) < 64
    before = torch.nextafter(at, images)
    assert victim(at).argmax(1) == 1 and victim(before).argmax(1) == 0


@pytest.mark.parametrize("norm", [L2, Linf], ids=str)
def test_on_a_grid_it_stops_when_the_image_is_an_end(norm: Norm) -> None:
    victim = bright(0.3)
    victim.grid = 1 / 255
    images, far = torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2)
    begun = laid(victim, images, torch.zeros(1).long(), norm)
    at = to_boundary(begun, images, far, 0.0)
    assert int(begun.record.meter.queries) <= 9
    assert torch.allclose(at, torch.full_like(at, 77 / 255))


def test_a_row_that_cannot_pay_keeps_what_it_has() -> None:
    victim = bright(0.3)
    images, far = torch.zeros(2, 1, 2, 2), torch.ones(2, 1, 2, 2)
    begun = laid(victim, images, torch.zeros(2).long(), queries=2)
    at = to_boundary(begun, images, far, 1e-6)
    assert begun.record.meter.queries.tolist() == [2, 2]
    assert torch.equal(at, torch.full_like(at, 0.5))


def test_the_clean_images_are_not_written_over() -> None:
    victim = bright(0.3)
    images = torch.zeros(2, 1, 2, 2)
    begun = laid(victim, images, torch.zeros(2).long())
    to_boundary(begun, begun.ball.center, torch.ones(2, 1, 2, 2), 1e-3)
    assert (begun.ball.center == 0).all()


@pytest.mark.parametrize(
    ("text", "norm", "count", "queries"),
    [("boundary", L2, 8, 250), ("geoda", L2, 12, 400), ("geoda", Linf, 12, 400)],
    ids=str,
)
def test_a_grid_is_seen(text: str, norm: Norm, count: int, queries: int) -> None:
    samples = digits(count)
    images = (samples.images * 255).round() / 255
    samples = Samples.of(images, samples.labels, ids=samples.ids)
    coarse = Counting(natural(), Access.DECISION)
    coarse.grid = 1 / 255
    found = [
        craft(victim, parse(text), samples, Threat(norm, None), queries=queries)
        for victim in (natural(), coarse)
    ]
    right = found[0].distance > 0
    free, held = (made.distance[right].log().mean().exp() for made in found)
    assert held < 1.2 * free


@pytest.mark.parametrize(
    "text", ["boundary(steps=300)", "geoda(steps=6)", "evolutionary(steps=200)"]
)
def test_targets_are_reached_from_images_of_their_class(text: str) -> None:
    samples = digits(40)
    right = natural()(samples.images).argmax(1) == samples.labels
    pool, few = samples.at(right.nonzero()[10:, 0]), samples.at(right.nonzero()[:4, 0])
    targets = (few.labels + 3) % 10
    aimed = Samples(few.images, few.labels, few.ids, targets)
    threat = Threat(L2, None, Goal.GIVEN)
    made = craft(natural(), parse(text), aimed, threat, knowledge=Knowledge(starts=pool))
    assert made.success.all() and torch.equal(natural()(made.images).argmax(1), targets)

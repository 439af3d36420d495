"""JSMA: the best pair, found without looking at all, and when it must stop."""

from __future__ import annotations

from itertools import combinations
from unittest.mock import patch

import pytest
import torch
from tests.victims import Spy, affine, normal, uniform
from torch import Tensor

from besiege.attacks import jsma as jsma_
from besiege.attacks.attack import parse
from besiege.attacks.jsma import JSMA, best_pair
from besiege.core.errors import AttackError
from besiege.core.samples import Samples
from besiege.core.threat import L0, Goal, Threat
from besiege.evaluation import Crafted, craft
from besiege.models.classifier import Classifier
from besiege.testing.victims import Counting, digits, images_of, natural, untrained

SMALLEST = Threat(L0, None)
TARGETED = Threat(L0, None, Goal.GIVEN)
PUBLISHED = JSMA(gamma=1.0, both=False, room=False)


def aimed(x: Tensor, labels: Tensor, targets: Tensor) -> Samples:
    return Samples(x, labels, torch.arange(len(x)), targets)


def run(victim: Classifier | Spy, attack: JSMA, samples: Samples) -> Crafted:
    threat = SMALLEST if samples.targets is None else TARGETED
    return craft(victim, attack, samples, threat, pad=False)


# the map of pairs


def by_hand(rise: Tensor, fall: Tensor, entries: int) -> float:
    """The largest product over all pairs, -1 where none is admissible."""
    best = -1.0
    for p, q in combinations(range(len(rise)), 2):
        a, b = float(rise[p] + rise[q]), float(fall[p] + fall[q])
        if p % entries != q % entries and a > 0 and b > 0:
            best = max(best, a * b)
    return best


@pytest.mark.parametrize("kind", ["apart", "opposed", "ties"])
@pytest.mark.parametrize("ways", [1, 2])
def test_the_pair_is_the_best_of_all(kind: str, ways: int) -> None:
    for seed in range(25):
        d = 2 + seed
        a, b = normal(4, d, seed=seed), normal(4, d, seed=seed + 100)
        if kind == "opposed":  # nothing surpasses anything: all are looked at
            b = 0.1 * b - a + 0.2
        elif kind == "ties":
            a, b = a.round(), b.round()
        rise, fall = (
            torch.cat([t, -t * uniform(4, d, seed=seed)], 1)[:, : ways * d] for t in (a, b)
        )
        barred = uniform(4, ways * d, seed=seed + 7) < 0.1
        rise, fall = (t.masked_fill(barred, -torch.inf) for t in (rise, fall))
        found, pair = best_pair(rise, fall, d)
        for row in range(4):
            known = by_hand(rise[row], fall[row], d)
            assert bool(found[row]) == (known >= 0)
            if known >= 0:
                p, q = pair[row].tolist()
                assert p % d != q % d
                product = float((rise[row, p] + rise[row, q]) * (fall[row, p] + fall[row, q]))
                assert product == pytest.approx(known, rel=1e-4, abs=1e-12)


def test_the_map_is_made_in_pieces_that_change_nothing() -> None:
    a = normal(6, 40)
    rise, fall = a, 0.2 - a
    whole = best_pair(rise, fall, 40)
    sizes = []
    inner = jsma_._best_of

    def noted(rise: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        sizes.append(rise.shape[0] * rise.shape[1] ** 2)
        return inner(rise, *rest)  # type: ignore[arg-type]

    with patch.object(jsma_, "BYTES", 4 * 4 * 40 * 40 * 2), patch.object(jsma_, "_best_of", noted):
        parts = best_pair(rise, fall, 40)
    assert len(sizes) >= 3 and max(sizes) <= 2 * 40 * 40
    assert torch.equal(whole[0], parts[0]) and torch.equal(whole[1], parts[1])


# one step by hand


def two_classes(slopes: list[float], lead: float) -> Classifier:
    weight = torch.zeros(2, len(slopes))
    weight[1] = torch.tensor(slopes)
    weight[0] = -weight[1]
    return affine(weight, torch.tensor([lead, 0.0]))


def test_the_loudest_pair_moves_to_the_end_of_the_box() -> None:
    victim = two_classes([0.1, 3.0, -4.0, 2.0, 0.2, 1.0], 4.0)
    x = torch.full((1, 1, 2, 3), 0.5)
    samples = aimed(x, torch.tensor([0]), torch.tensor([1]))
    spy = Spy(victim)
    run(spy, PUBLISHED, samples)
    first = spy.images[3].flatten()  # the clean check, two gradients, the next one
    assert first.tolist() == pytest.approx([0.5, 1.0, 0.5, 1.0, 0.5, 0.5])
    spy = Spy(victim)
    run(spy, JSMA(gamma=1.0), samples)
    assert spy.images[3].flatten().tolist() == pytest.approx([0.5, 1.0, 0.0, 0.5, 0.5, 0.5])
    spy = Spy(victim)
    run(spy, JSMA(gamma=1.0, theta=0.25), samples)
    assert spy.images[3].flatten().tolist() == pytest.approx([0.5, 0.75, 0.25, 0.5, 0.5, 0.5])


def test_what_has_no_room_does_not_count() -> None:
    victim = two_classes([5.0, 3.0, 1.0, 1.0], 20.0)
    x = torch.tensor([[1.0, 0.99, 0.1, 0.1]]).view(1, 1, 2, 2)
    samples = aimed(x, torch.tensor([0]), torch.tensor([1]))
    for attack, expected in ((JSMA(gamma=1.0, both=False), [1.0, 0.99, 1.0, 1.0]),):
        spy = Spy(victim)
        run(spy, attack, samples)
        assert spy.images[3].flatten().tolist() == pytest.approx(expected)
    # As published, slopes alone: the saturated pixel is out, the nearly saturated one is in.
    spy = Spy(victim)
    run(spy, PUBLISHED, samples)
    moved = spy.images[3].flatten()
    assert moved[0] == 1.0 and moved[1] == 1.0 and int((moved[2:] == 1.0).sum()) == 1


# stopping


def test_without_an_admissible_pair_it_stops_and_touches_nothing() -> None:
    """Not the first two pixels for want of better ones."""
    victim = two_classes([-1.0, -2.0, -0.5, -3.0], 3.0)
    x = torch.full((2, 1, 2, 2), 0.5)
    samples = aimed(x, torch.zeros(2).long(), torch.ones(2).long())
    spy = Spy(victim)
    found = run(spy, PUBLISHED, samples)
    assert not found.success.any() and torch.equal(found.images, x)
    assert found.queries.tolist() == [3, 3]
    assert all(torch.equal(seen, x) for seen in spy.images)


def test_one_pixel_makes_no_pair() -> None:
    victim = two_classes([1.0], 0.5)
    samples = aimed(torch.full((1, 1, 1, 1), 0.1), torch.tensor([0]), torch.tensor([1]))
    assert not run(victim, JSMA(gamma=1.0), samples).success.any()


def test_no_more_than_a_share_of_the_entries_changes() -> None:
    victim = two_classes([1.0] * 40, 1000.0)
    x = torch.full((1, 1, 4, 10), 0.1)
    samples = aimed(x, torch.tensor([0]), torch.tensor([1]))
    for gamma, pairs in ((0.1, 2), (0.145, 2), (0.5, 10), (1.0, 20)):
        spy = Spy(victim)
        run(spy, JSMA(gamma=gamma), samples)
        changed = int((torch.cat(spy.images) != x).flatten(1).sum(1).max())
        assert changed == 2 * pairs


def test_a_last_pair_may_exceed_the_share() -> None:
    victim = two_classes([1.0] * 40, 1000.0)
    x = torch.full((1, 1, 4, 10), 0.1)
    samples = aimed(x, torch.tensor([0]), torch.tensor([1]))
    for gamma, pairs in ((0.1, 2), (0.11, 3), (0.145, 3), (1.0, 20)):
        spy = Spy(victim)
        run(spy, JSMA(gamma=gamma, round_up=True), samples)
        assert int((torch.cat(spy.images) != x).flatten(1).sum(1).max()) == 2 * pairs


def test_a_budget_ends_it_too() -> None:
    victim = two_classes([1.0] * 40, 1000.0)
    x = torch.full((1, 1, 4, 10), 0.1)
    samples = aimed(x, torch.tensor([0]), torch.tensor([1]))
    found = craft(victim, JSMA(), samples, Threat(L0, 6, Goal.GIVEN), pad=False)
    assert int(found.queries) <= 2 * 5


def test_the_clean_image_is_not_written_to() -> None:
    samples = digits(8)
    before = samples.images.clone()
    run(natural(), JSMA(), samples)
    assert torch.equal(samples.images, before)


# strength and goals


def test_every_class_is_tried_and_the_smallest_change_kept() -> None:
    victim = natural()
    samples = digits(16)
    found = run(victim, JSMA(), samples)
    assert found.success.all()
    each = []
    for turn in range(9):
        labels = samples.labels
        order = victim(samples.images).scatter(1, labels[:, None], torch.inf)
        targets = order.argsort(dim=1, descending=True, stable=True)[:, 1:][:, turn]
        each.append(run(victim, JSMA(), aimed(samples.images, labels, targets)).distance)
    # A target of one's own may be missed where another class comes first, which counts here.
    assert (found.distance <= torch.stack(each).amin(0)).all()
    one = run(victim, JSMA(targets=1), samples)
    assert (found.distance <= one.distance).all() and (found.distance < one.distance).any()


def test_targets_are_reached_and_both_ways_are_better_than_one() -> None:
    victim, samples = natural(), digits(24)
    targets = (samples.labels + 1 + samples.ids % 9) % 10
    goal = aimed(samples.images, samples.labels, targets)
    both, one = run(victim, JSMA(gamma=1.0), goal), run(victim, PUBLISHED, goal)
    assert both.success.double().mean() > 0.95
    assert torch.equal(victim(both.images).argmax(1)[both.success], targets[both.success])
    assert both.success.sum() >= one.success.sum()
    assert both.distance.median() <= one.distance.median()


def test_probabilities_cost_half_and_vanish_where_the_victim_is_sure() -> None:
    victim, samples = natural(), digits(8)
    found = run(victim, JSMA(outputs="probabilities"), samples)
    assert found.success.double().mean() > 0.8
    counting = Counting(two_classes([1.0] * 8, 12.0))
    x = torch.full((1, 1, 2, 4), 0.5)
    goal = aimed(x, torch.tensor([0]), torch.tensor([1]))
    costs = []
    for outputs in ("logits", "probabilities"):
        crafted = run(counting, parse(f"jsma(gamma=0.25, outputs='{outputs}')"), goal)  # type: ignore[arg-type]
        costs.append(int(crafted.backwards))
    assert costs == [2, 1]
    sure = two_classes([1.0] * 8, 400.0)
    assert run(sure, JSMA(outputs="probabilities"), goal).vanished.all()


def test_entries_are_counted_not_pixels() -> None:
    victim = untrained((3, 5, 5), 4)
    x = images_of((3, 5, 5), 4)
    found = run(victim, JSMA(), Samples.of(x, victim(x).argmax(1)))
    changed = (found.images != x).flatten(1).sum(1)
    assert found.success.all() and torch.equal(found.distance, changed.double())


# values


@pytest.mark.parametrize(
    "text", ["jsma(gamma=0.1, both=False, room=False)", "jsma(theta=-1.0, targets=3)"]
)
def test_texts_read_back(text: str) -> None:
    assert str(parse(text)) == text and parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("jsma(theta=0)", "theta is 0"),
        ("jsma(theta=1.5)", "theta is 1.5"),
        ("jsma(gamma=0)", "gamma is 0"),
        ("jsma(gamma=1.5)", "gamma is 1.5"),
        ("jsma(outputs='labels')", "outputs is 'labels'"),
        ("jsma(targets=0)", "targets is 0"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(AttackError, match=said):
        parse(text)

"""DeepFool and SuperDeepFool against closed forms, and traps others fell into."""

from __future__ import annotations

import math

import pytest
import torch
from tests.victims import Spy, affine, saturated, siege, smallest
from torch import Tensor, nn

from besiege.attacks.attack import Attack, parse
from besiege.attacks.combine import EachTarget
from besiege.attacks.deepfool import DeepFool
from besiege.attacks.planes import Bracket
from besiege.attacks.superdeepfool import SuperDeepFool
from besiege.core.errors import AttackError
from besiege.core.samples import Samples
from besiege.core.threat import L1, L2, Goal, Linf, Norm, Threat
from besiege.evaluation import craft
from besiege.models.classifier import Classifier
from besiege.testing.victims import (
    Counting,
    Linear,
    digits,
    images_of,
    natural,
    scaled,
    untrained,
)

SHAPE = (1, 6, 7)
NORMS = (Linf, L2, L1)
BOTH: list[tuple[Attack, Norm]] = [
    *((DeepFool(search=0), norm) for norm in NORMS),
    (DeepFool(), L2),
    (SuperDeepFool(rounds=5), L2),
]


def data(victim: Classifier, shape: tuple[int, int, int] = SHAPE, rows: int = 12) -> Samples:
    images = images_of(shape, rows)
    return Samples.of(images, victim(images).argmax(1))


# closed forms


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize(
    "share", [pytest.param(0.0, marks=pytest.mark.slow), 0.3], ids=["inside", "saturated"]
)
@pytest.mark.parametrize(("attack", "norm"), BOTH, ids=str)
@pytest.mark.parametrize(
    ("rows", "shape"),
    [
        pytest.param(1, (1, 6, 7), marks=pytest.mark.slow),
        (5, (3, 4, 4)),
        pytest.param(24, (1, 1, 30), marks=pytest.mark.slow),
    ],
)
def test_the_smallest_change_of_an_affine_victim(
    attack: Attack, norm: Norm, share: float, classes: int, rows: int, shape: tuple[int, int, int]
) -> None:
    victim = Linear(shape, classes)
    samples = saturated(victim, rows, share)
    known = victim.distance(norm, samples.images, samples.labels)
    for times in (0.01, 1.0, 100.0):
        found = smallest(scaled(victim, times), EachTarget(attack), samples, norm)
        assert found.success.all()
        distance = found.distance.numpy()
        assert (distance >= known * (1 - 1e-4)).all()
        assert (distance <= 1.02 * known + 1e-4).all()


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_one_step_reaches_an_affine_boundary_and_goes_as_far_beyond_as_told(norm: Norm) -> None:
    """Not by another norm's length (the step in linf is divided by the sum of the slopes)."""
    victim = Linear(SHAPE, 2)
    samples = saturated(victim, 16, 0.0)
    # Small distances, so that nothing is clipped, and none of 1e-4, which is no part of them.
    known = torch.from_numpy(victim.distance(norm, samples.images, samples.labels))
    found = smallest(victim, DeepFool(steps=1, search=0, boxed=True), samples, norm)
    assert found.success.all()
    least = {Linf: 1.0199, L2: 1.018, L1: 1.0}[norm]  # some pixels end at the box
    assert (found.distance >= known * least - 1e-9).all()
    assert (found.distance <= 1.0201 * known).all()


def test_the_nearest_class_is_neither_the_likeliest_nor_the_last() -> None:
    weight = torch.zeros(5, 4)
    weight[1], weight[2] = torch.tensor([0.1, 0, 0, 0]), torch.tensor([0, 10.0, 0, 0])
    weight[3], weight[4] = torch.tensor([0, 0, 1.0, 0]), torch.tensor([0, 0, 0, 0.5])
    bias = torch.tensor([0.0, -0.15, -7.0, -1.0, -0.8])
    victim = affine(weight, bias)
    x = torch.full((1, 1, 2, 2), 0.5)
    z = victim(x)[0]
    assert z.argsort(descending=True).tolist()[1] == 1
    samples = Samples.of(x, torch.tensor([0]))
    for norm in NORMS:
        found = smallest(victim, DeepFool(search=0), samples, norm)
        assert victim(found.images).argmax(1).tolist() == [2]
        assert float(found.distance) == pytest.approx(1.02 * 0.2, rel=1e-3)


def test_only_so_many_classes_take_part() -> None:
    victim = Linear(SHAPE, 10)
    samples = data(victim)
    few = smallest(victim, DeepFool(steps=1, classes=3, search=0), samples, L2)
    assert few.backwards.tolist() == [3] * len(samples)
    all_of_them = smallest(victim, DeepFool(steps=1, search=0), samples, L2)
    assert all_of_them.backwards.tolist() == [10] * len(samples)
    ranked = victim(samples.images).argsort(1, descending=True)
    reached = victim(few.images).argmax(1)
    for row in few.success.nonzero()[:, 0]:
        assert int(reached[row]) in ranked[row, :3].tolist()


def test_the_box_active_on_all_pixels_that_count() -> None:
    """Loud pixels without room: the quiet ones must do."""
    weight = torch.zeros(2, 4)
    weight[1] = torch.tensor([10.0, 10.0, 1.0, 1.0])
    victim = affine(weight, torch.tensor([0.0, -20.5]))
    x = torch.tensor([[1.0, 1.0, 0.1, 0.1]]).view(1, 1, 2, 2)
    assert victim(x).argmax(1) == 0
    samples = Samples.of(x, torch.tensor([0]))
    for norm, known in ((Linf, 0.15), (L2, 0.15 * 2**0.5), (L1, 0.3)):
        found = smallest(victim, DeepFool(), samples, norm)
        assert float(found.distance) == pytest.approx(known, rel=2e-2)


# stopping


def test_no_gradient_ends_the_walk_and_is_told() -> None:
    victim = affine(torch.zeros(3, 9), torch.tensor([1.0, 0.0, 0.5]))
    samples = Samples.of(images_of((1, 3, 3), 4), torch.zeros(4).long())
    for attack in (DeepFool(), SuperDeepFool(), EachTarget(DeepFool())):
        found = smallest(victim, attack, samples, L2)
        assert not found.success.any() and found.vanished.all()
        assert torch.equal(found.images, samples.images)
        assert (found.queries < 70).all()
    assert (smallest(victim, DeepFool(), samples, L2).queries <= 3).all()


def test_a_tie_that_the_label_wins_is_no_success_and_no_end() -> None:
    victim = affine(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([0.0, -1.0]))
    x = torch.full((3, 1, 1, 2), 0.5)
    samples = Samples.of(x, torch.zeros(3).long())
    assert (victim(x) == 0).all()
    for norm in NORMS:
        found = smallest(victim, DeepFool(), samples, norm)
        assert found.success.all() and (found.distance < 1e-3).all()


def test_wrong_from_the_start_is_distance_zero() -> None:
    victim = Linear(SHAPE, 4)
    samples = data(victim)
    wrong = Samples.of(samples.images, (samples.labels + 1) % 4)
    for attack in (DeepFool(), SuperDeepFool()):
        found = smallest(victim, attack, wrong, L2)
        assert found.success.all() and (found.distance == 0).all()
        assert (found.backwards == 0).all()


def test_a_row_that_crossed_is_asked_no_more() -> None:
    victim = natural()
    samples = digits(24)
    found = smallest(victim, DeepFool(search=0), samples, L2)
    assert found.success.all()
    costs = set(found.backwards[found.distance > 0].tolist())
    assert len(costs) > 1 and max(costs) <= 500 and all(cost % 10 == 0 for cost in costs)
    # A look after every step, and the clean check.
    steps = found.backwards[found.distance > 0] // 10
    assert torch.equal(found.forwards[found.distance > 0], 2 * steps + 1)


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_the_search_only_shortens_with_forwards(norm: Norm) -> None:
    samples = digits(24)
    far, near = (smallest(natural(), DeepFool(search=n), samples, norm) for n in (0, 3))
    assert (near.distance <= far.distance).all()
    assert torch.equal(near.backwards, far.backwards)
    assert (near.forwards - far.forwards <= 3).all()


def test_the_search_finds_what_lies_inside_the_budget() -> None:
    victim = Linear(SHAPE, 2)
    samples, known = victim.equidistant(L2)
    threat = Threat(L2, 1.005 * float(known.max()))
    assert not craft(victim, DeepFool(search=0, boxed=True), samples, threat).success.any()
    assert craft(victim, DeepFool(), samples, threat).success.all()


# goals


@pytest.mark.parametrize(("attack", "norm"), BOTH, ids=str)
def test_a_strict_target_is_the_class_answered(attack: Attack, norm: Norm) -> None:
    victim = untrained((1, 8, 8), 6)
    samples = data(victim, (1, 8, 8), 24)
    targets = (samples.labels + 1 + samples.ids % 5) % 6
    aimed = Samples(samples.images, samples.labels, samples.ids, targets)
    found = craft(victim, attack, aimed, Threat(norm, None, Goal.GIVEN))
    assert found.success.double().mean() > 0.9
    assert torch.equal(victim(found.images[found.success]).argmax(1), targets[found.success])


def test_steered_it_costs_one_backward_a_step() -> None:
    victim = untrained(SHAPE, 10)
    samples = data(victim, rows=1)
    counting = Counting(victim)
    found = smallest(counting, EachTarget(DeepFool(search=0), 1), samples, L2, pad=False)
    assert counting.backwards == int(found.backwards) <= counting.forwards
    assert found.success.all()


# a boundary that bends


class Circle(nn.Module):
    """Two pixels; wrong outside a circle about a centre, where `inside` is false, or inside it."""

    def __init__(self, center: tuple[float, float], radius: float, inside: bool) -> None:
        super().__init__()
        self.center, self.radius, self.sign = torch.tensor(center), radius, 1 if inside else -1

    def forward(self, x: Tensor) -> Tensor:
        """Heights that bend: not the distance from the circle, which would be met in one step."""
        away = ((x.flatten(1) - self.center) * torch.tensor([1.0, 1.6])).square().sum(1)
        return torch.stack([torch.zeros_like(away), self.sign * (self.radius**2 - away)], 1)


def test_on_a_curve_the_change_is_parallel_to_the_normal_and_smaller() -> None:
    """An ellipse: the point nearest to the start is where the normal goes through it."""
    curve = Circle((0.5, 0.5), 0.4, inside=False)
    victim = Classifier(curve, classes=2)
    x = torch.tensor([[0.58, 0.60], [0.55, 0.57], [0.62, 0.45], [0.46, 0.56]]).view(-1, 1, 1, 2)
    samples = Samples.of(x, torch.zeros(4).long())
    plain, better = (smallest(victim, a, samples, L2) for a in (DeepFool(), SuperDeepFool()))
    angles = torch.linspace(0, 2 * math.pi, 200_001, dtype=torch.float64)
    points = 0.5 + 0.4 * torch.stack([angles.cos(), angles.sin() / 1.6], 1)
    known = torch.cdist(x.double().flatten(1), points).amin(1)
    assert better.success.all() and plain.success.all()
    assert (better.distance <= 1.002 * known).all()
    assert (better.distance < plain.distance).all()
    assert (plain.distance > 1.01 * known).any()
    end = better.images.flatten(1).double()
    slope = (end - 0.5) * torch.tensor([1.0, 1.6]).double() ** 2
    change = end - x.flatten(1).double()
    cosine = torch.cosine_similarity(slope, change, dim=1)
    assert (cosine > 0.999).all()


def test_a_convex_target_is_reached_and_approached() -> None:
    """The plane touches it in one point: what lies straight below has not crossed, again and again.

    The form that stops goes on from there, so that it does not stall.
    """
    victim = Classifier(Circle((0.8, 0.7), 0.15, inside=True), classes=2)
    x = torch.tensor([[0.2, 0.5], [0.3, 0.2], [0.75, 0.1]]).view(-1, 1, 1, 2)
    samples = Samples.of(x, torch.zeros(3).long())
    angles = torch.linspace(0, 2 * math.pi, 200_001, dtype=torch.float64)
    center = torch.tensor([0.8, 0.7]).double()
    points = center + 0.15 * torch.stack([angles.cos(), angles.sin() / 1.6], 1)
    known = torch.cdist(x.double().flatten(1), points).amin(1)
    for attack, most in ((SuperDeepFool(), 1.005), (SuperDeepFool(rounds=100, stop=True), 1.05)):
        found = smallest(victim, attack, samples, L2)
        assert found.success.all() and (found.distance <= most * known).all()


def test_superdeepfool_is_nearer_than_deepfool_at_no_more_than_a_hundred_gradients() -> None:
    samples = digits(48)
    plain, better = (smallest(natural(), a, samples, L2) for a in (DeepFool(), SuperDeepFool()))
    assert better.success.all() and plain.success.all()
    assert better.distance.mean() < 0.98 * plain.distance.mean()
    assert better.backwards.double().mean() < 100
    published = smallest(natural(), parse("superdeepfool@abdollahpour"), samples, L2)
    assert published.success.all()
    assert better.distance.mean() <= published.distance.mean() < plain.distance.mean()


# values


def test_points_asked_lie_in_the_box() -> None:
    victim = untrained(SHAPE, 5)
    samples = data(victim)
    for attack, norm in BOTH:
        spy = Spy(victim)
        smallest(spy, attack, samples, norm)
        seen = torch.cat(spy.images)
        assert seen.min() >= 0 and seen.max() <= 1


@pytest.mark.parametrize(
    "text",
    [
        "deepfool(steps=100, search=0, compat=True)",
        "superdeepfool(rounds=5, search=10, compat=True)",
        "deepfool(steps=10, overshoot=0.05, classes=5, search=1)",
        "superdeepfool(rounds=3, stop=True, steps=4, overshoot=0.01, classes=4, search=0)",
    ],
)
def test_texts_read_back(text: str) -> None:
    assert str(parse(text)) == text and parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("deepfool(steps=0)", "steps is 0"),
        ("deepfool(classes=1)", "classes is 1"),
        ("deepfool(search=-1)", "search is -1"),
        ("deepfool(overshoot=-0.1)", "overshoot is -0.1"),
        ("superdeepfool(rounds=0)", "rounds is 0"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(AttackError, match=said):
        parse(text)


def test_a_bracket_knows_the_logits_at_both_its_ends() -> None:
    victim = untrained(SHAPE, 5)
    samples = data(victim)
    far = craft(
        victim, parse("deepfool(overshoot=0.5, search=0)"), samples, Threat(L2, None)
    ).images
    laid = siege(victim, samples.images, samples.labels, 100.0, L2, survey=True, leave="end")
    bracket = Bracket.of(laid, far, victim(far))
    bracket.narrow(laid, 3, 0.99)
    assert bool((bracket.high < 1).all())
    assert torch.allclose(bracket.over, victim(bracket.point(laid)), atol=1e-5)
    assert torch.allclose(bracket.under, victim(bracket.point(laid, bracket.low)), atol=1e-5)


def test_a_small_slope_sends_no_row_to_a_corner_of_the_box() -> None:
    """Steep pixels are saturated, and the plane is far: a step is as long as without a box."""
    w = torch.tensor([[4.0, 0.1, 0.1, 0.1]])
    victim = affine(torch.cat((-w, w)), torch.tensor([2.0, -2.0]))
    samples = Samples.of(torch.tensor([1.0, 0.5, 0.5, 0.5]).view(1, 1, 2, 2), torch.tensor([1]))
    attack = DeepFool(steps=1, search=0)
    far = craft(victim, attack, samples, Threat(L2, None), keep="last", leave="end")
    slope, height = 2 * w.norm(), 2 * (4.15 - 2.0)
    moved = (far.images - samples.images).norm()
    assert float(moved) <= 1.03 * float(height / slope)

"""Noise: random points with known chances of success, and the way to other images."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.victims import affine, uniform
from torch import Tensor

from besiege.attacks.attack import parse
from besiege.attacks.noise import SHARES, Noise, _drawn
from besiege.core.ball import ball, distances
from besiege.core.dice import Dice
from besiege.core.knowledge import Knowledge
from besiege.core.samples import Samples
from besiege.core.threat import L0, L1, L2, Access, Goal, Linf, Norm, Threat
from besiege.evaluation import craft
from besiege.evaluation.crafting import Crafted
from besiege.testing.victims import Counting

ROWS, EPS = 4000, 0.1


def beyond(sum_of_change: float, pixels: int) -> tuple[Any, Samples]:
    """A victim that errs where the changes of grey pixels sum to more than a number."""
    bias = -(0.5 * pixels + sum_of_change)
    weight = torch.stack([torch.zeros(pixels), torch.ones(pixels)])
    images = torch.full((ROWS, 1, 1, pixels), 0.5)
    return affine(weight, torch.tensor([0.0, bias])), Samples.of(images, torch.zeros(ROWS).long())


def crafted(victim: Any, samples: Samples, norm: Norm, eps: float, **more: Any) -> Crafted:
    attack, goal = more.pop("attack", "noise(steps=2)"), more.pop("goal", Goal.UNTARGETED)
    threat = Threat.parse(f"{norm}:{eps}")
    threat = Threat(norm, threat.eps, goal, Access.DECISION)
    made: Crafted = craft(victim, parse(attack), samples, threat, **more)
    return made


@pytest.mark.parametrize(
    ("norm", "eps", "pixels", "least", "chance"),
    [
        (Linf, EPS, 3, 2.9 * EPS, 1 / 8),  # one corner of eight
        (L2, EPS, 2, 1.2 * EPS, 2 * math.acos(1.2 / math.sqrt(2)) / (2 * math.pi)),  # an arc
        (L1, EPS, 2, 0.9999 * EPS, 1 / 2),  # a positive change of either pixel
        (L0, 1, 2, 0.4999, 1 / 2),
    ],
)
def test_extreme_points_succeed_as_often_as_the_closed_form_says(
    norm: Norm, eps: float, pixels: int, least: float, chance: float
) -> None:
    victim, samples = beyond(least, pixels)
    only_inside = crafted(victim, samples, norm, eps, attack="noise(steps=1)").success
    found = crafted(victim, samples, norm, eps).success
    assert bool((found | ~only_inside).all())
    share = float(found[~only_inside].double().mean())
    assert share == pytest.approx(chance, abs=4 * math.sqrt(chance * (1 - chance) / ROWS))


@pytest.mark.parametrize(
    ("norm", "pixels", "chance"), [(Linf, 1, 0.25), (L2, 1, 0.25), (L1, 1, 0.25), (Linf, 2, 9 / 32)]
)
def test_points_inside_are_uniform_in_the_ball(norm: Norm, pixels: int, chance: float) -> None:
    victim, samples = beyond(0.5 * EPS, pixels)
    found = crafted(victim, samples, norm, EPS, attack="noise(steps=1)").success
    assert float(found.double().mean()) == pytest.approx(chance, abs=0.03)


@pytest.mark.parametrize("norm", [Linf, L2, L1, L0])
def test_extreme_points_use_the_whole_budget(norm: Norm) -> None:
    images, eps = uniform(50, 1, 4, 4), 2.0 if norm is L0 else 0.3
    region = ball(norm, images, eps)
    dice = Dice.throw(0, torch.arange(50))
    points = _drawn(region, dice, 1)
    assert bool(region.inside(points).all())
    torch.testing.assert_close(region.distance(points), region.radius, rtol=1e-5, atol=0.0)
    if norm is Linf:
        full = torch.isclose((points - images).abs(), torch.tensor(eps), atol=1e-6)
        assert bool((full | (points == 0) | (points == 1)).all()), "corners"
    assert not torch.equal(points, _drawn(region, dice, 3))
    assert not torch.equal(_drawn(region, dice, 0), _drawn(region, dice, 2))


def toward(far: Tensor) -> tuple[Any, Samples, Samples, float]:
    """An image, one of another class far away, and where on the line the boundary is."""
    x = torch.full((1, 1, 8, 8), 0.5)
    weight = torch.stack([torch.zeros(64), far.flatten()])
    victim = affine(weight, torch.tensor([0.0, -float(weight[1] @ (x + 0.6 * far).flatten())]))
    other = Samples.of(torch.cat([x + far, x]), torch.tensor([1, 0]))
    return victim, Samples.of(x, torch.tensor([0])), other, 0.6 * float(distances(far, L2)[0])


@pytest.mark.parametrize(("times", "breaks"), [(0.99, False), (1.01, True), (3.0, True)])
def test_the_way_to_another_image_is_followed_as_far_as_the_budget_goes(
    times: float, breaks: bool
) -> None:
    victim, samples, other, boundary = toward(0.05 * torch.ones(1, 1, 8, 8))
    words: dict[str, Any] = {"attack": "noise(steps=4)", "knowledge": Knowledge(other)}
    found = crafted(victim, samples, L2, times * boundary, **words)
    assert bool(found.success) == breaks
    assert not bool(crafted(victim, samples, L2, times * boundary, attack="noise(steps=4)").success)
    if times > 1 / 0.6:
        torch.testing.assert_close(found.images, other.images[:1])
    blind = crafted(victim, samples, L2, 2 * boundary, **words | {"attack": "noise(4, 0)"})
    assert not bool(blind.success), "other images are not used"


def test_a_targeted_attack_goes_to_images_of_the_target() -> None:
    x = torch.full((2, 1, 1, 2), 0.5)
    weight = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    victim = affine(weight, torch.tensor([0.0, -0.59, -0.59]))
    pool = Samples.of(torch.tensor([[0.6, 0.5], [0.5, 0.6]]).view(2, 1, 1, 2), torch.tensor([1, 2]))
    targets = torch.tensor([1, 2])
    samples = Samples.of(x, torch.zeros(2).long(), targets=targets)
    words: dict[str, Any] = {"goal": Goal.GIVEN, "knowledge": Knowledge(pool)}
    found = crafted(victim, samples, L2, 0.11, attack="noise(1, 1)", **words)
    assert bool(found.success.all())
    torch.testing.assert_close(found.images, pool.images)


def test_a_row_pays_for_the_points_it_was_sent() -> None:
    victim, samples = beyond(2.9 * EPS, 3)
    few = samples.at(torch.arange(40))
    counted = Counting(victim)
    found = crafted(counted, few, Linf, EPS, attack="noise(steps=12)")
    assert 0 < int(found.success.sum()) < 40
    assert bool((found.queries[~found.success] == 1 + 12).all()), "the clean image, and 12 points"
    assert torch.equal(found.queries[found.success], found.first_query[found.success])
    assert Noise(12).cost((1, 1, 3), 2) == 12 + 3 * len(SHARES)

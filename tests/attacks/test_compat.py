"""What `compat` changes in minimum-norm attacks, against closed forms of affine victims."""

from __future__ import annotations

import math

import pytest
import torch
from tests.victims import Curve, Spy, affine, normal, saturated, siege, smallest, uniform
from torch import Tensor

from besiege.attacks.alma import ALMA, TOLERANCE, slope
from besiege.attacks.attack import parse
from besiege.attacks.deepfool import EXTRA, DeepFool
from besiege.attacks.fab import FAB, FABT
from besiege.attacks.planes import Bracket
from besiege.attacks.sigmazero import SigmaZero
from besiege.attacks.superdeepfool import SuperDeepFool
from besiege.core.samples import Samples
from besiege.core.threat import L0, L2, Linf, Norm, Threat
from besiege.evaluation import craft
from besiege.models.classifier import Classifier
from besiege.testing.victims import Linear, digits, natural, scaled

SHAPE = (1, 6, 7)


def inside(classes: int) -> tuple[Linear, Samples]:
    """An affine victim, and images far from the ends of the box but near the boundary."""
    victim = Linear(SHAPE, classes)
    samples = saturated(victim, 12, 0.0)
    there = victim.nearest(L2, samples.images, samples.labels)
    close = samples.images + 0.9 * torch.from_numpy(there).float().view_as(samples.images)
    images = (0.5 + 0.4 * (close - 0.5)).clamp(0.3, 0.7)
    return victim, Samples.of(images, victim(images).argmax(1))


def known(victim: Linear, samples: Samples, norm: Norm) -> Tensor:
    return torch.from_numpy(victim.distance(norm, samples.images, samples.labels))


@pytest.mark.parametrize("norm", [L2, Linf], ids=str)
def test_a_step_of_deepfool_is_longer_and_overshoots(norm: Norm) -> None:
    victim, samples = inside(2)
    found = smallest(victim, DeepFool(steps=1, search=0, compat=True), samples, norm)
    assert found.success.all()
    wanted = 1.02 * (known(victim, samples, norm) + EXTRA)
    assert torch.allclose(found.distance, wanted, rtol=1e-4)


def test_steps_of_deepfool_ignore_the_box() -> None:
    """The points are clipped, not the steps: the second continues from the sum of both."""
    victim = affine(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([0.0, -1.5]))
    x = torch.tensor([0.9, 0.2]).view(1, 1, 1, 2)
    spy = Spy(victim)
    smallest(spy, DeepFool(steps=2, search=0, compat=True), Samples.of(x, torch.tensor([0])), L2)
    extra = EXTRA / math.sqrt(2)
    first = 0.2 + extra
    gap = 1.5 - 1.0 - (0.2 + 1.02 * first)  # after a step to (1, 0.2 + 1.02 * first)
    low = 0.2 + 1.02 * (first + gap / 2 + extra)
    assert torch.allclose(torch.cat(spy.images)[-1].flatten(), torch.tensor([1.0, low]), atol=1e-5)


def test_a_round_of_superdeepfool_halves_back_to_the_boundary() -> None:
    victim, samples = inside(2)
    far = known(victim, samples, L2)
    plain = smallest(victim, SuperDeepFool(search=0, compat=True), samples, L2)
    assert torch.allclose(plain.distance, 1.02 * (far + EXTRA), rtol=1e-4)
    found = smallest(victim, SuperDeepFool(search=10, compat=True), samples, L2)
    halvings = found.distance / plain.distance * 1024
    assert torch.allclose(halvings, halvings.round(), atol=1e-2)
    assert (found.distance >= far).all() and (found.distance <= 1.002 * far + 1e-5).all()


def test_paths_of_superdeepfool_do_not_count() -> None:
    """On networks the sum of the steps goes far beyond the boundary, and DeepFool's path not."""
    samples = digits(24)
    path = smallest(natural(), DeepFool(search=0, compat=True), samples, L2)
    found = smallest(natural(), SuperDeepFool(search=0, compat=True), samples, L2)
    assert found.success.all() and found.distance.mean() > 1.3 * path.distance.mean()
    # So far that they are outside a budget, from where the search still leads back.
    given, eps = SuperDeepFool(search=10, compat=True), float(path.distance.median())
    free = smallest(natural(), given, samples, L2)
    within = craft(natural(), given, samples, Threat(L2, eps))
    assert torch.equal(within.success, free.distance <= eps) and within.success.sum() > 5


@pytest.mark.parametrize("attack", [FAB, FABT])
def test_fab_shrinks_first_and_linearises_there(attack: type[FAB]) -> None:
    victim, samples = inside(2)
    given = attack(steps=2, beta=0.9, anneal=False, search=0, compat=True)
    found = smallest(victim, given, samples, L2, pad=False)
    # 1.05 of the way, shrunk to 0.945; then the mean of two projections.
    short = 1.0 - 0.9 * 1.05
    alpha = short / (short + 1.0)
    wanted = (1 - alpha) * (0.9 * 1.05 + 1.05 * short) + alpha * 1.05
    assert torch.allclose(found.distance, wanted * known(victim, samples, L2), rtol=1e-4)
    # The clean image, a gradient and a look in every step.
    assert (found.forwards == 1 + 2 * 2).all()


@pytest.mark.parametrize("norm", [Linf, L2], ids=str)
def test_fab_is_not_caught_at_the_boundary_itself(norm: Norm) -> None:
    """A point that leads by less than rounding is no success, but it is beyond: it shrinks."""
    samples = digits(24)
    given = FAB(steps=60, beta=0.9, anneal=False, search=0, compat=True)
    other = FAB(steps=60, search=0)
    ratio = smallest(natural(), given, samples, norm).distance
    ratio = ratio / smallest(natural(), other, samples, norm).distance
    assert int((ratio > 1.05).sum()) <= 2  # of two clean errors the ratio is not a number


@pytest.mark.parametrize("attack", [FAB, FABT])
def test_points_that_fab_has_shrunk_do_not_count(attack: type[FAB]) -> None:
    """The shrunk one is beyond, but the height falls there, and the next step leads away."""
    curve = Curve((0.0, -0.4), (0.25, -0.15), (0.3, 0.2), (0.9, -0.1))
    samples = Samples.of(torch.full((1, 1, 1, 1), 0.2), torch.tensor([0]))
    given = attack(steps=2, beta=0.9, anneal=False, search=0, compat=True)
    found = smallest(Classifier(curve, classes=2), given, samples, L2)
    assert float(found.distance) == pytest.approx(0.21, abs=1e-5)


def test_points_that_are_not_examined_do_not_count() -> None:
    victim = affine(torch.tensor([[0.0], [1.0]]), torch.tensor([0.5, 0.0]))
    x, labels = torch.zeros(2, 1, 1, 1), torch.zeros(2).long()
    over, classes = torch.ones_like(x), torch.zeros(2, 1).long()
    laid = siege(victim, x, labels, 2.0, L2, survey=True)
    assert not laid.gradients(over, classes, examine=False).hit.any()
    assert not laid.logits(over, examine=False).hit.any() and not laid.broken.any()
    assert laid.record.meter.forwards.tolist() == [3, 3]
    laid.logits(over)
    assert laid.broken.all()


def test_the_published_radius_may_wait_before_the_boundary() -> None:
    victim = Linear(SHAPE, 6)
    samples = saturated(victim, 24, 0.3)
    default, published = (smallest(victim, parse(t), samples, L2) for t in ("fmn", "fmn@pintor"))
    assert default.success.all() and not published.success.all()


def test_the_last_iterate_may_stay_unseen() -> None:
    victim, samples = inside(3)
    for counts, forwards in (("every", 7), ("earlier", 6)):
        made = smallest(victim, parse(f"ddn(steps=5, counts='{counts}')"), samples, L2, pad=False)
        assert (made.forwards == forwards).all()


def test_the_first_step_of_alma_is_measured_along_the_gradient() -> None:
    weight = normal(3, 8)
    victim = affine(weight, torch.zeros(3))
    x = 0.4 + 0.2 * uniform(4, 1, 1, 8)
    y = victim(x).argmax(1)
    spy = Spy(victim)
    given = ALMA(steps=2, decay=0.5, first=0.1, relative=False, compat=True)
    smallest(spy, given, Samples.of(x, y), L2, pad=False)
    at = x.clone().requires_grad_()
    z = victim(at)
    other = z.scatter(1, y[:, None], -torch.inf).amax(1)
    top = z.topk(3, dim=1).values
    f = (z.gather(1, y[:, None])[:, 0] - other + TOLERANCE) / (top[:, 0] - top[:, 2])
    one = torch.ones_like(f)
    (g,) = torch.autograd.grad((f * slope(f, one, one).detach()).sum(), at)
    rate = 0.1 / g.flatten(1).norm(dim=1)
    step = g / (0.5 + 0.5 * g**2).sqrt()
    wanted = x - rate.view(-1, 1, 1, 1) * step
    assert torch.allclose(spy.images[-1], wanted, atol=1e-5)


def test_sigma_zero_measures_the_hinge_in_logits() -> None:
    samples = digits(12)
    results: dict[bool, list[Tensor]] = {True: [], False: []}
    for compat, made in results.items():
        for scale in (1.0, 2.0**-12):
            attack = SigmaZero(steps=30, compat=compat)
            victim = scaled(natural(), scale)
            made.append(smallest(victim, attack, samples, L0).images)
    assert torch.equal(*results[False]) and not torch.equal(*results[True])


def test_halving_halves() -> None:
    victim, samples = inside(2)
    far = smallest(victim, DeepFool(overshoot=0.5, search=0), samples, L2).images
    laid = siege(victim, samples.images, samples.labels, 100.0, L2, survey=True, leave="end")
    bracket = Bracket.of(laid, far, victim(far))
    bracket.narrow(laid, 3, 0.99, halve=True)
    assert (bracket.high - bracket.low == 1 / 8).all()

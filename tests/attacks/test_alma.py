"""ALMA against closed forms, and what its penalty, multiplier and steps must do."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from tests.victims import Curve, normal, saturated, siege
from torch import Tensor

from besiege.attacks import alma as module
from besiege.attacks.alma import ALMA, penalty, slope, uphill
from besiege.attacks.attack import Attack, parse
from besiege.attacks.combine import EachTarget
from besiege.attacks.losses import dlr, margin
from besiege.core.answer import Aim
from besiege.core.ball import Ball, ball, distances
from besiege.core.errors import AttackError
from besiege.core.samples import Samples
from besiege.core.threat import L1, L2, Goal, Norm, Threat
from besiege.evaluation import Crafted, craft
from besiege.models.classifier import Classifier
from besiege.testing.victims import Linear, digits, images_of, natural, scaled, untrained

SHAPE = (1, 6, 7)
NORMS = (L2, L1)
FACTOR = {L2: 1.04, L1: 1.08}
"""Measured: 1.024 and 1.051 at most; 1.033 in l2 on a CPU that rounds matrix products otherwise."""


def smallest(victim: Any, attack: Attack, samples: Samples, norm: Norm, **more: Any) -> Crafted:
    return craft(victim, attack, samples, Threat(norm, None), keep="smallest", leave="end", **more)


# closed forms


@pytest.mark.parametrize("classes", [2, 3, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "share", [pytest.param(0.0, marks=pytest.mark.slow), 0.3], ids=["inside", "saturated"]
)
@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_the_smallest_change_of_an_affine_victim(norm: Norm, share: float, classes: int) -> None:
    victim = Linear(SHAPE, classes)
    samples = saturated(victim, 24, share)
    known = victim.distance(norm, samples.images, samples.labels)
    found = smallest(victim, EachTarget(ALMA(), 4), samples, norm)
    ratio = found.distance.numpy() / known
    assert ratio.min() > 1 - 1e-4 and ratio.max() < FACTOR[norm]
    plain = smallest(victim, ALMA(), samples, norm).distance.numpy() / known
    assert np.median(plain) < (1.005 if norm is L2 else 1.03)


def test_rows_near_the_boundary_are_no_exception() -> None:
    """As published their ratio is too small to move the multiplier, and the first step too long."""
    victim = Linear(SHAPE, 3)
    samples = saturated(victim, 24, 0.0)
    known = torch.from_numpy(victim.nearest(L2, samples.images, samples.labels)).float()
    close = (samples.images + 0.97 * known.view_as(samples.images)).clamp(0, 1)
    near = Samples(close, samples.labels, samples.ids)
    exact = victim.distance(L2, near.images, near.labels)
    own, published = (
        smallest(victim, EachTarget(attack), near, L2).distance.numpy() / exact
        for attack in (ALMA(), ALMA(first=0.1, relative=False))
    )
    assert own.max() < 1.02 and published.max() > 2


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_any_scale_of_the_logits_gives_the_same_distances(norm: Norm) -> None:
    for victim in (Linear(SHAPE, 2), Linear(SHAPE, 5), untrained(SHAPE, 3)):
        images = images_of(SHAPE, 12)
        samples = Samples.of(images, victim(images).argmax(1))
        plain = smallest(victim, ALMA(steps=30), samples, norm).distance
        assert torch.isfinite(plain).all()
        for times in (0.01, 100.0, 1e4):
            other = smallest(scaled(victim, times), ALMA(steps=30), samples, norm).distance
            # Rounded otherwise at every step, a row may end elsewhere.
            apart = (other / plain - 1).abs()
            assert (apart < 5e-3).sum() >= 10 and apart.max() < 0.1


# the pieces


def test_the_slope_is_the_derivative_of_the_penalty() -> None:
    f = torch.linspace(-3, 3, 61).double().requires_grad_()
    for rho, mu in ((0.5, 2.0), (3.0, 0.1)):
        value = penalty(f, torch.full_like(f, rho).detach(), torch.full_like(f, mu).detach())
        (told,) = torch.autograd.grad(value.sum(), f)
        known = slope(f.detach(), torch.full_like(told, rho), torch.full_like(told, mu))
        assert torch.allclose(told, known)
        # It rises everywhere, its slope is mu at zero, and it rises ever more steeply.
        assert (known > 0).all() and (known[1:] >= known[:-1]).all()
        assert float(known[30]) == pytest.approx(mu)


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_uphill_is_the_gradient_of_the_distance(norm: Norm) -> None:
    clean = 0.25 + 0.5 * images_of(SHAPE, 4)
    x = (clean + 0.1 * normal(4, *SHAPE)).requires_grad_()
    size = torch.linalg.vector_norm((x - clean).flatten(1), {L1: 1, L2: 2}[norm], dim=1)
    (told,) = torch.autograd.grad(size.sum(), x)
    assert torch.allclose(uphill(ball(norm, clean, torch.inf), x.detach()), told, atol=1e-6)
    assert (uphill(ball(norm, clean, torch.inf), clean) == 0).all()


def test_the_strict_ratio_is_that_of_the_likeliest_other_class() -> None:
    logits, labels = normal(50, 6), torch.arange(50) % 6
    targets = (labels + 1 + torch.arange(50) % 5) % 6
    aim = Aim(labels, targets, logits)
    strict = module._ratio(logits, aim)
    assert torch.equal(strict > 0, logits.argmax(1) == targets)
    assert torch.equal(strict > 0, margin(logits, aim) > 0)
    # Where the label leads both are the same.
    leads = logits.argmax(1) == labels
    assert torch.equal(strict[leads], dlr(logits, aim)[leads]) and leads.any()


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("relative", [True, False])
def test_the_first_step_goes_as_far_as_wanted(relative: bool, norm: Norm) -> None:
    victim = Linear(SHAPE, 2)
    samples = saturated(victim, 8, 0.3)
    laid = siege(victim, samples.images, samples.labels, torch.inf, norm, survey=True, leave="end")
    asked: list[Tensor] = []
    gradient = laid.gradient

    def noted(x: Tensor, *given: Any) -> Any:
        asked.append(x)
        return gradient(x, *given)

    with patch.object(laid, "gradient", noted), patch.object(module, "endless", lambda s: s):
        ALMA(steps=2, first=0.3, relative=relative).run(laid)
    gone = distances(asked[1] - samples.images, norm)
    if not relative:
        assert torch.allclose(gone, torch.tensor(0.3).double(), rtol=2e-3)
        return
    # Less than half the way to the boundary, for the box takes a part of the step, never more.
    z = [victim(x).detach() for x in asked[:2]]
    gap = [(v.topk(2).values[:, 0] - v.topk(2).values[:, 1]).double() for v in z]
    share = 1 - gap[1] / gap[0]
    assert (share < 0.4).all() and (share > 0.2).all()


def test_a_first_step_that_has_no_room_ends() -> None:
    clean = torch.zeros(2, 1, 2, 2)
    there: Ball = ball(L2, clean, torch.inf)
    move = torch.ones_like(clean)  # against the bound: no step changes anything
    near = torch.zeros(2).double()
    assert torch.isfinite(ALMA(first=0.1, relative=False)._rate(there, move, move, near)).all()


def test_steps_shrink_from_the_first_success() -> None:
    victim = Linear(SHAPE, 3)
    samples = saturated(victim, 6, 0.0)
    laid = siege(victim, samples.images, samples.labels, torch.inf, L2, survey=True, leave="end")
    attack = ALMA(steps=100)
    state = module._State.of(laid.ball, attack)._replace(
        rate=torch.full((6,), 2.0).double(),
        found=torch.tensor([0.0, 10, 50, 99, torch.inf, torch.inf]).double(),
    )
    assert attack._length(state, 0).tolist() == [2.0] * 6
    half = attack._length(state, 50)
    assert half.tolist() == pytest.approx(
        [2 * 0.01**0.5, 2 * 0.01 ** (40 / 90), 2.0, 2.0, 2.0, 2.0]
    )


def test_the_penalty_rises_only_where_nothing_gets_better() -> None:
    attack, inf = ALMA(decay=0.5), torch.inf
    laid = siege(Linear(SHAPE, 3), images_of(SHAPE, 3), torch.zeros(3).long(), torch.inf, L2)
    state = module._State.of(laid.ball, attack)._replace(
        before=torch.tensor([1.0, 1.0, 1.0]).double(), found=torch.tensor([inf, inf, 3.0]).double()
    )
    f, nobody = torch.tensor([0.99, 0.9, 0.99]).double(), torch.zeros(3, dtype=torch.bool)
    assert attack._balanced(state, f, nobody, 9).rho.tolist() == pytest.approx([1.2, 1.0, 1.0])
    assert attack._balanced(state, f, nobody, 8).rho.tolist() == [1.0] * 3
    # The multiplier follows the slope, beyond the boundary downwards.
    mu = attack._balanced(state, torch.tensor([0.5, 0.0, -0.5]).double(), nobody, 1).mu
    assert mu[0] > 1 and mu[1] == 1 and mu[2] < 1


def test_without_a_gradient_it_goes_somewhere() -> None:
    bends = Classifier(Curve((0.0, -1.0), (0.52, -1.0), (0.75, 0.0), (1.0, 1.0)), classes=2)
    samples = Samples.of(torch.full((16, 1, 1, 1), 0.5), torch.zeros(16).long())
    found = smallest(bends, ALMA(), samples, L2)
    assert found.vanished.all() and int(found.success.sum()) >= 5
    assert torch.isfinite(found.images).all()


# goals and cost


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_a_strict_target_is_the_class_answered(norm: Norm) -> None:
    samples = digits(16)
    targets = (samples.labels + 1 + samples.ids % 9) % 10
    aimed = Samples(samples.images, samples.labels, samples.ids, targets)
    strict = craft(natural(), ALMA(), aimed, Threat(norm, None, Goal.GIVEN))
    assert strict.success.all()
    assert torch.equal(natural()(strict.images).argmax(1), targets)
    loose = smallest(natural(), ALMA(), samples, norm)
    assert float(loose.distance.median()) < float(strict.distance.median())


def test_every_step_costs_one_forward_and_one_backward() -> None:
    samples = digits(8)
    found = craft(natural(), ALMA(steps=7), samples, Threat(L2, 1e-6))
    stood = ~found.success
    assert found.backwards[stood].tolist() == [7] * 6
    # The clean check, the steps, and a look at where the last one led.
    assert found.forwards[stood].tolist() == [9] * 6


# values


def test_presets_read_back() -> None:
    for text in (
        "alma",
        "alma(steps=50, reduction=0.1, mu=2.0, rho=0.5)",
        "alma(relative=False, compat=True)",
    ):
        assert str(parse(text)) == text and isinstance(parse(text), ALMA)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("alma(steps=0)", "steps is 0"),
        ("alma(decay=1.0)", "decay is 1.0"),
        ("alma(first=0)", "first is 0"),
        ("alma(reduction=2)", "reduction is 2"),
        ("alma(mu=-1)", "mu is -1"),
        ("alma(rho=0)", "rho is 0"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(AttackError, match=said):
        parse(text)

"""Estimated gradients against exact ones, and against what theory says of their cosines."""

from __future__ import annotations

import math

import pytest
import torch
from tests.victims import Spy, affine, normal, siege, uniform
from torch import Tensor, nn

from besiege.attacks.estimates import (
    Draw,
    coarse,
    estimate,
    even,
    gaussian,
    portions,
    rademacher,
    sphere,
    visible,
)
from besiege.attacks.losses import margin
from besiege.core.answer import Aim
from besiege.core.ball import ball
from besiege.core.dice import Dice
from besiege.core.threat import Linf
from besiege.models.classifier import Classifier
from besiege.testing.victims import digits, natural

SHAPE = (3, 32, 32)
ENTRIES = 3072
EXACT = {25: 0.089, 50: 0.126, 100: 0.177, 200: 0.247}
"""Mean cosines by the number of directions: Gamma functions, checked by simulation."""


def expected(q: int, d: int = ENTRIES) -> float:
    """The mean cosine of q normal directions in d entries."""
    logs = [math.lgamma(v / 2) for v in (q + 1, q + d - 1, q, q + d)]
    return math.exp(logs[0] + logs[1] - logs[2] - logs[3])


def cosines(a: Tensor, b: Tensor) -> Tensor:
    return torch.cosine_similarity(a.flatten(1).double(), b.flatten(1).double(), dim=1)


def plane() -> tuple[Classifier, Tensor]:
    """A linear victim of two classes in 3072 entries, and how its margin slopes for class 0."""
    w = normal(2, ENTRIES, seed=5) / 10
    return affine(w, torch.zeros(2)), (w[1] - w[0]).view(1, *SHAPE)


def estimated(
    victim: Classifier | Spy, x: Tensor, draw: Draw, q: int, sigma: float, paired: bool
) -> Tensor:
    laid = siege(victim, x, torch.zeros(len(x)).long(), leave="end")
    return estimate(laid, x, margin, draw, q, sigma, 0, paired=paired).gradient


def test_the_formula_gives_the_figures_of_the_table() -> None:
    assert all(abs(expected(q) - cosine) < 6e-4 for q, cosine in EXACT.items())


@pytest.mark.parametrize(
    ("draw", "paired"),
    [(gaussian, True), (rademacher, True), (sphere, False)],
    ids=["nes", "spsa", "rgf"],
)
@pytest.mark.parametrize("q", [25, 50, 100])
def test_the_cosine_with_the_gradient_is_that_of_theory(draw: Draw, paired: bool, q: int) -> None:
    victim, slope = plane()
    x = 0.3 + 0.4 * uniform(16, *SHAPE)
    found = cosines(estimated(victim, x, draw, q, 0.01, paired), slope)
    assert abs(float(found.mean()) - expected(q)) < 4 * 0.0125 / math.sqrt(16)


@pytest.mark.parametrize(
    ("draw", "paired"),
    [(gaussian, True), (rademacher, True), (sphere, False)],
    ids=["nes", "spsa", "rgf"],
)
def test_the_cosine_on_a_real_net_is_within_a_tenth(draw: Draw, paired: bool) -> None:
    victim, samples = natural(), digits(24)
    laid = siege(victim, samples.images, samples.labels, leave="end")
    inside = 0.1 + 0.8 * samples.images
    exact = laid.gradient(inside, margin).gradient
    for q in (4, 8, 16):
        many = [
            cosines(
                estimate(laid, inside, margin, draw, q, 1e-3, step, paired=paired).gradient, exact
            )
            for step in range(10)
        ]
        found = float(torch.cat(many).mean())
        assert abs(found / expected(q, 64) - 1) < 0.1, (q, found)


def test_on_a_linear_victim_slopes_are_exact() -> None:
    """With as many directions as it takes: the mean of s u for q of them, computed apart."""
    victim, slope = plane()
    x = 0.3 + 0.4 * uniform(2, *SHAPE)
    dice = Dice.throw(0, torch.arange(2)).of("probes", 7)
    u = dice.normal(SHAPE, torch.arange(30).expand(2, -1)).double()
    s = (u * slope.double()).flatten(2).sum(2)
    wanted = (s[..., None, None, None] * u).mean(1)
    laid = siege(victim, x, torch.zeros(2).long(), leave="end")
    for paired in (True, False):
        found = estimate(laid, x, margin, gaussian, 30, 0.01, 7, paired=paired).gradient
        assert torch.allclose(found.double(), wanted, atol=2e-3 * float(wanted.abs().max()))


def test_what_is_cut_off_by_the_box_is_not_counted() -> None:
    """All pixels are black or white: of a pair each moves at one end, of a lone probe half do."""
    victim, slope = plane()
    x = uniform(16, *SHAPE, seed=1).round()
    for paired in (True, False):
        found = estimated(victim, x, gaussian, 100, 0.05, paired)
        mean = float(cosines(found, slope).mean())
        # Back-projected as it was sent, a lone probe points inward, and the cosine is 0.09.
        assert mean > (0.92 * expected(100) if paired else expected(50)), mean


class Rounding(nn.Module):
    """Rounds what it is sent to 255ths, as an image file does."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(torch.round(x * 255) / 255)
        return logits


def quantised() -> tuple[Classifier, Tensor]:
    victim, slope = plane()
    rounding = Classifier(Rounding(victim.module), classes=2)
    rounding.grid = 1 / 255
    return rounding, slope


@pytest.mark.parametrize(
    ("draw", "paired"),
    [(gaussian, True), (rademacher, True), (sphere, False)],
    ids=["nes", "spsa", "rgf"],
)
def test_a_victim_that_rounds_hides_nothing(draw: Draw, paired: bool) -> None:
    """With probes of 3e-4 all would be rounded away; they are raised to what shows."""
    victim, slope = quantised()
    x = torch.round((0.3 + 0.4 * uniform(8, *SHAPE)) * 255) / 255
    found = float(cosines(estimated(victim, x, draw, 50, 3e-4, paired), slope).mean())
    assert abs(found / expected(50) - 1) < 0.12, found


def test_differences_are_those_sent() -> None:
    """Normal probes of 0.001, of which rounding leaves few: nominal ones would halve the cosine."""
    victim, slope = plane()
    x = torch.round((0.3 + 0.4 * uniform(16, *SHAPE)) * 255) / 255
    rounding = Classifier(Rounding(victim.module), classes=2)
    blind = estimated(rounding, x, gaussian, 50, 1e-3, True)  # not told of the grid
    assert float(cosines(blind, slope).mean()) < 0.7 * expected(50)
    assert visible(ball(Linf, x, 0.1, grid=1 / 255), 1e-3, gaussian, paired=True) == 2 / 255
    assert visible(ball(Linf, x, 0.1, grid=1 / 255), 1e-3, rademacher, paired=True) == 1 / 255
    assert visible(ball(Linf, x, 0.1), 1e-3, rademacher, paired=True) == 1e-3


@pytest.mark.parametrize("many", [3, 50, 200])
@pytest.mark.parametrize("paired", [True, False])
def test_a_row_is_what_it_is_alone(many: int, paired: bool) -> None:
    victim, samples = natural(), digits(24)
    whole, labels = samples.images, samples.labels
    laid = siege(victim, whole, labels, leave="end", pad=True)
    every = estimate(laid, whole, margin, gaussian, many, 1e-3, 2, paired=paired)
    for row in (0, 7, 23):
        alone = siege(victim, whole, labels, leave="end", pad=True).view(torch.tensor([row]))
        one = estimate(alone, whole[row : row + 1], margin, gaussian, many, 1e-3, 2, paired=paired)
        assert torch.equal(one.gradient[0], every.gradient[row])
        assert torch.equal(one.loss[0], every.loss[row])
    assert int(laid.record.meter.queries[0]) == 1 + many * (2 if paired else 1)
    wanted = margin(victim(whole), Aim(labels))
    assert torch.allclose(every.loss, wanted, atol=1e-5)


def test_rows_that_cannot_pay_tell_nothing_and_no_nonsense() -> None:
    victim, samples = natural(), digits(6)
    laid = siege(victim, samples.images, samples.labels, leave="end", queries=8)
    told = estimate(laid, samples.images, margin, gaussian, 20, 1e-3, 0, paired=True)
    assert torch.isfinite(told.gradient).all() and (told.gradient != 0).any()
    assert laid.record.meter.queries.tolist() == [8] * 6
    told = estimate(laid, samples.images, margin, gaussian, 20, 1e-3, 1, paired=True)
    assert (told.gradient == 0).all() and laid.record.meter.queries.tolist() == [8] * 6


def test_images_are_asked_in_blocks() -> None:
    victim, samples = natural(), digits(20)
    spy = Spy(victim)
    laid = siege(spy, samples.images, samples.labels, leave="end")
    estimate(laid, samples.images, margin, gaussian, 10, 1e-3, 0, paired=True)
    assert sum(spy.calls) == 20 * 21 and max(spy.calls) <= 256
    spy.calls.clear()
    estimate(laid, samples.images[:20], margin, gaussian, 100, 1e-3, 0, paired=True)
    assert sum(spy.calls) == 20 * 201 and max(spy.calls) <= 2 * 128


def test_pieces() -> None:
    small, large = (ball(Linf, torch.zeros(1, 3, side, side), 1.0) for side in (8, 224))
    assert [len(p) for p in portions(small, 50, 2)] == [50]
    assert [len(p) for p in portions(large, 50, 2)] == [10] * 5
    for there, most in ((small, 128), (large, 24)):
        assert torch.cat(list(portions(there, 1000, 2))).tolist() == list(range(1000))
        assert max(2 * len(p) + 1 for p in portions(there, 1000, 2)) <= most + 2
    assert coarse((1, 28, 28), None) == (1, 16, 16) and coarse((3, 5, 9), 4) == (3, 4, 4)
    u = even(normal(2, 3, 1, 4, 4))
    assert torch.allclose(u.flatten(2).norm(dim=2), torch.full((2, 3), 4.0))
    assert (even(torch.zeros(1, 1, 1, 2, 2)) == 0).all()

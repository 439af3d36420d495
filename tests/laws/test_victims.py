"""What the suite holds to be known is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from besiege.core.ball import ball
from besiege.core.samples import Samples
from besiege.core.threat import L0, L1, L2, Linf, Norm
from besiege.testing.victims import Counting, Linear, digits, linear, natural, scaled, size


def by_linear_programming(victim: Linear, norm: Norm, x: np.ndarray, label: int) -> float:
    """The least of one linear program per wrong class, variables d+ and d- (and the bound t)."""
    entries, best = len(x), np.inf
    z = victim.weight @ x + victim.bias
    for target in range(len(z)):
        if target == label:
            continue
        w, gap = victim.weight[target] - victim.weight[label], z[label] - z[target]
        if norm is L1:
            bounds = [(0, high) for high in 1 - x] + [(0, low) for low in x]
            found = linprog(
                np.ones(2 * entries), A_ub=-np.r_[w, -w][None], b_ub=[-gap], bounds=bounds
            )
        else:
            cost = np.r_[np.zeros(entries), 1.0]
            eye, one = np.eye(entries), np.ones((entries, 1))
            rows = np.block([[eye, -one], [-eye, -one]])
            above = np.vstack([rows, np.r_[-w, 0.0]])
            limits = np.r_[np.zeros(2 * entries), -gap]
            bounds = [*zip(-x, 1 - x, strict=True), (0, None)]
            found = linprog(cost, A_ub=above, b_ub=limits, bounds=bounds)
        if found.status == 0:
            best = min(best, float(found.fun or 0.0))
    return best


@pytest.mark.parametrize("norm", [Linf, L1], ids=str)
def test_distances_of_the_linear_victim_solve_the_linear_programs(norm: Norm) -> None:
    victim = linear((1, 3, 4), 4, seed=2)
    samples = victim.samples(12, seed=3)
    known = victim.distance(norm, samples.images, samples.labels)
    for row in range(len(samples)):
        x = samples.images[row].double().flatten().numpy()
        solved = by_linear_programming(victim, norm, x, int(samples.labels[row]))
        assert known[row] == pytest.approx(solved, rel=1e-7)


@pytest.mark.parametrize("norm", [L2, L0], ids=str)
def test_distances_of_the_linear_victim_are_those_of_the_ball(norm: Norm) -> None:
    victim = linear((1, 3, 4), 4, seed=2)
    samples = victim.samples(12, seed=3)
    known = victim.distance(norm, samples.images, samples.labels)
    around = ball(norm, samples.images.double(), float("inf"))
    z = samples.images.double().flatten(1) @ torch.from_numpy(victim.weight).T
    z = z + torch.from_numpy(victim.bias)
    best = np.full(len(samples), np.inf)
    for target in range(4):
        w = (
            torch.from_numpy(victim.weight)[target]
            - torch.from_numpy(victim.weight)[samples.labels]
        )
        gap = z.gather(1, samples.labels[:, None])[:, 0] - z[:, target]
        move = around.plane(samples.images.double(), w.view(-1, 1, 3, 4), gap)
        arrived = torch.isclose((move.flatten(1) * w).sum(1), gap, rtol=1e-4)
        found = size(norm, move.flatten(1).numpy())
        wrong = arrived.numpy() & (samples.labels.numpy() != target)
        best = np.where(wrong, np.minimum(best, found), best)
    assert known == pytest.approx(best, rel=1e-4)


@pytest.mark.parametrize("norm", [Linf, L2, L1], ids=str)
def test_the_smallest_change_reaches_the_boundary_and_a_little_less_does_not(norm: Norm) -> None:
    victim = linear(classes=5, seed=1)
    samples = victim.samples(24, seed=1)
    change = victim.nearest(norm, samples.images, samples.labels)
    for share, fooled in ((1.0 + 1e-4, True), (1.0 - 1e-4, False)):
        moved = samples.images.double() + torch.from_numpy(share * change).view_as(samples.images)
        z = victim.weight @ moved.flatten(1).numpy().T + victim.bias[:, None]
        assert ((z.argmax(0) != samples.labels.numpy()) == fooled).all()
        assert float(moved.min()) > -1e-3 and float(moved.max()) < 1 + 1e-3


@pytest.mark.parametrize("norm", list(Norm), ids=str)
def test_equidistant_samples_are(norm: Norm) -> None:
    samples, known = linear().equidistant(norm)
    assert known == pytest.approx(known.mean(), rel=1e-5)
    assert len(samples) >= 4
    assert bool(((samples.images >= 0) & (samples.images <= 1)).all())


def test_a_linear_victim_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    one, other = linear(seed=4), linear(seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert (one.weight == other.weight).all()


def test_a_counting_victim_counts_rows_both_ways() -> None:
    victim = Counting(linear())
    x = torch.rand(3, 1, 5, 5, requires_grad=True)
    logits = victim(x)
    assert (victim.forwards, victim.backwards, victim.vanished) == (3, 0, False)
    torch.autograd.grad(logits.sum(), x, retain_graph=True)
    assert (victim.backwards, victim.vanished) == (3, False)
    torch.autograd.grad(logits[:1].sum(), x)
    assert (victim.backwards, victim.vanished) == (6, True)


def test_a_scaled_victim_answers_scaled_logits() -> None:
    x = torch.rand(2, 1, 5, 5)
    assert torch.equal(scaled(linear(), 4.0)(x), 4 * linear()(x))


def test_the_natural_net_sees_most_digits_rightly() -> None:
    samples: Samples = digits(100)
    right = natural()(samples.images).argmax(1) == samples.labels
    assert 0.95 < float(right.double().mean()) < 1.0

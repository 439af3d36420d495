"""APGD against its algorithm written plainly, closed forms, and what its checkpoints must do."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import pytest
import torch
from tests.victims import Noisy, Spy, normal, points, siege
from torch import Tensor

from besiege.attacks.apgd import APGD, APGDT, ASCENT, PUBLISHED, SPARSE, nearest
from besiege.attacks.ascent import Ascent
from besiege.attacks.attack import parse
from besiege.attacks.directions import Memory
from besiege.attacks.losses import (
    CrossEntropy,
    cross_entropy,
    dlr,
    margin,
    probability_margin,
)
from besiege.attacks.pieces import Gaussian, Given, Halving, Inertia, Origin, checkpoints, unboxed
from besiege.attacks.sparse_ascent import SparseAscent
from besiege.core.answer import Aim, Answer, Loss
from besiege.core.ball import Ball, ball, distances
from besiege.core.errors import AttackError, StochasticError
from besiege.core.samples import Samples
from besiege.core.threat import L1, L2, Linf, Norm, Threat
from besiege.evaluation import craft
from besiege.models.classifier import Classifier
from besiege.testing.victims import Counting, Linear, images_of, scaled, untrained

SHAPE = (3, 6, 6)
EPS = {Linf: 0.03, L2: 0.5, L1: 3.0}


def data(victim: Classifier, rows: int = 12, seed: int = 0) -> Samples:
    """Images labelled as the victim sees them."""
    images = images_of(SHAPE, rows, seed)
    return Samples.of(images, victim(images).argmax(1))


# checkpoints


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (100, [22, 41, 57, 70, 80, 87, 93, 99]),
        (50, [11, 21, 29, 35, 40, 44, 47, 50]),
        (25, [6, 11, 15, 18, 20, 22, 24, 25]),
        (3, [1, 2, 3]),
        (1, [1]),
    ],
)
def test_checkpoints_are_the_papers(steps: int, expected: list[int]) -> None:
    assert list(checkpoints(steps)) == expected
    spans = [b - a for a, b in zip([0, *expected], expected, strict=False)]
    assert list(checkpoints(steps).values()) == spans


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (100, [22, 41, 57, 70, 80, 87, 93, 99]),
        (50, [11, 21, 30, 38, 45]),
        (25, [5, 9, 12, 14, *range(15, 26)]),
        (10, list(range(2, 11))),
        (1, [1]),
    ],
)
def test_checkpoints_of_the_authors_code(steps: int, expected: list[int]) -> None:
    found = list(checkpoints(steps, compat=True))
    assert found[: len(expected)] == expected


# the schedule on losses made up


def driven(
    schedule: Halving, losses: list[list[float]], steps: int = 100
) -> list[tuple[list[float], list[float], list[float]]]:
    """Lengths in radii, points and gradients after every step, if these losses are met.

    Row r is at point k and gradient -k when it meets ``losses[r][k]``.
    """
    rows = len(losses)
    around = ball(Linf, torch.zeros(rows, 1, 1, 1), 0.5, (-1e6, 1e6))
    memory = schedule.init(around.center, around)
    told = []
    for k in range(len(losses[0])):
        x = torch.full((rows, 1, 1, 1), float(k))
        answer = Answer(
            torch.zeros(rows, dtype=torch.bool),
            torch.zeros(rows, dtype=torch.int64),
            loss=torch.tensor([row[k] for row in losses]),
            gradient=-x,
        )
        size, x, answer, memory = schedule.next(k, steps, around, x, answer, memory)
        told.append(
            (
                (size / 0.5).tolist(),
                x.flatten().tolist(),
                answer.gradient.flatten().tolist(),
            )
        )
    return told


RISING = [0.01 * k for k in range(100)]
BELOW = [-2.0 + 0.01 * k for k in range(100)]  # as DLR is while the label leads


@pytest.mark.parametrize("losses", [RISING, BELOW], ids=["above zero", "below zero"])
def test_a_loss_that_rises_never_halves_the_step(losses: list[float]) -> None:
    for rho in (0.75, 1.0):
        told = driven(Halving(rho), [losses])
        assert all(size == [2.0] for size, _, _ in told)
        assert [x for _, x, _ in told] == [[float(k)] for k in range(100)]


def test_a_constant_loss_halves_it_at_every_checkpoint() -> None:
    told = driven(Halving(), [[0.5] * 100])
    halvings = [k for k in range(1, 100) if told[k][0][0] == told[k - 1][0][0] / 2]
    assert halvings == [22, 41, 57, 70, 80, 87, 93, 99]
    assert told[99][0][0] == 2.0 / 2**8


def test_the_authors_code_compares_the_first_loss_with_zero() -> None:
    """22 rises of 22, one of them missed where losses are below zero: 21 are no more than 0.96."""
    for losses, halved in ((RISING, False), (BELOW, True)):
        told = driven(Halving(0.96, compat=True), [losses])
        assert (told[22][0] == [1.0]) is halved


def test_exactly_rho_of_rises_is_enough_but_not_in_the_authors_code() -> None:
    """From 41 to 57 there are 16 steps, of which 12 are three quarters."""
    losses = RISING[:41] + [1.0 + (k if k <= 12 else 24 - k) for k in range(17)]
    for compat, halved in ((False, False), (True, True)):
        told = driven(Halving(0.75, compat=compat), [losses])
        assert told[56][0] == [2.0] and (told[57][0] == [1.0]) is halved


def test_a_best_loss_that_stands_still_halves_at_the_first_checkpoint_too() -> None:
    """One fall and then rises that never come back to where it was."""
    losses = [[5.0, *(0.1 * k for k in range(1, 100))]]
    assert driven(Halving(), losses)[22][0] == [1.0]
    assert driven(Halving(compat=True), losses)[22][0] == [2.0]
    assert driven(Halving(compat=True), losses)[41][0] == [1.0]


def test_a_stalled_row_returns_to_its_best_point_with_its_gradient_and_no_other_does() -> None:
    hill = [float(k if k <= 7 else 14 - k) for k in range(100)]
    told = driven(Halving(), [RISING, hill, RISING])
    size, x, gradient = told[22]
    assert size == [2.0, 1.0, 2.0]
    assert x == [22.0, 7.0, 22.0] and gradient == [-22.0, -7.0, -22.0]
    assert told[21][1] == [21.0] * 3 and told[23][1] == [23.0] * 3


def test_after_a_return_a_rise_is_one_above_the_best_point() -> None:
    """The next loss is above the point left, but not above the one returned to."""
    hill = [float(k if k <= 7 else 14 - k) for k in range(23)]  # 7 at the top, -8 at the end
    rest = [-7.0 + 0.01 * k for k in range(20)]  # 19 losses, 18 or 19 rises
    for compat, rises in ((False, 18), (True, 19)):
        watched = Watching(0.75, compat=compat)
        driven(watched, [hill + rest])
        assert watched.rises[40] == [rises - 1] and watched.rises[22] == [0]


@dataclass(frozen=True)
class Watching(Halving):
    """Keeps what it remembers, for tests."""

    rises: list[list[int]] = field(default_factory=list, compare=False)
    best: list[tuple[Tensor, Tensor]] = field(default_factory=list, compare=False)

    def next(
        self, step: int, steps: int, ball: Ball, x: Tensor, answer: Answer, memory: Memory
    ) -> tuple[Tensor, Tensor, Answer, Memory]:
        told = super().next(step, steps, ball, x, answer, memory)
        self.rises.append([int(rose) for rose in told[3][1]])
        self.best.append((told[3][3], told[3][6]))
        return told


@pytest.mark.parametrize("norm", [Linf, L2], ids=str)
def test_the_best_loss_never_falls_and_is_that_of_the_best_point(norm: Norm) -> None:
    victim = untrained(SHAPE, 5)
    samples = data(victim)
    watched = Watching(0.75)
    attack = replace(ASCENT, steps=25, schedule=watched, loss=dlr)
    points(attack, victim, samples, f"{norm}:{EPS[norm]}")
    assert len(watched.best) == 25
    for (before, _), (best, _) in zip(watched.best, watched.best[1:], strict=False):
        assert (best >= before).all()
    best, summit = watched.best[-1]
    assert (best > watched.best[0][0]).all()
    with torch.no_grad():
        logits = victim(summit)
    assert torch.allclose(dlr(logits, Aim(samples.labels)), best, atol=1e-5)


# how a move lands


@pytest.mark.parametrize("norm", [Linf, L2, L1], ids=str)
def test_inertia_is_three_quarters_of_the_move_and_a_quarter_of_the_last(norm: Norm) -> None:
    around = ball(norm, images_of(SHAPE, 6), EPS[norm])
    x, move = around.confine(around.center + 0.01), 0.02 * normal(6, *SHAPE)
    place = Inertia(0.75)
    first, memory = place(around, x, move, place.init(x, around))
    assert torch.allclose(first, around.confine(x + move), atol=1e-6)  # the first is whole
    second, _ = place(around, first, -move, memory)
    landed = around.confine(first - move)
    expected = around.confine(first + 0.75 * (landed - first) + 0.25 * (first - x))
    assert torch.allclose(second, expected, atol=1e-6)
    assert around.inside(second).all()


def test_landing_in_the_ball_and_then_in_the_box_falls_short_in_l2() -> None:
    around = ball(L2, images_of(SHAPE, 6), 2.0)
    x = around.center + normal(6, *SHAPE)
    exact, short = (Inertia(exact=e)._land(around, x) for e in (True, False))
    scale = 2.0 / distances(x - around.center, L2)
    plain = (around.center + around.scaled(scale) * (x - around.center)).clamp(0, 1)
    assert torch.allclose(short, plain, atol=1e-6)
    assert around.inside(short).all() and around.inside(exact).all()
    assert (distances(x - exact, L2) < distances(x - short, L2)).all()
    flat = ball(Linf, around.center, 0.1)
    assert torch.equal(Inertia(exact=False)._land(flat, x), Inertia()._land(flat, x))


def test_without_its_box_a_ball_is_steepest_along_the_gradient() -> None:
    g = normal(4, *SHAPE)
    center, length = images_of(SHAPE, 4), torch.full((4,), 0.3).double()
    move = unboxed(ball(L2, center, 1.0)).steepest(g, center, length)
    assert torch.allclose(move, 0.3 * g / g.flatten(1).norm(dim=1).view(-1, 1, 1, 1), atol=1e-6)
    move = unboxed(ball(Linf, center, 1.0)).steepest(g, center, length)
    assert torch.allclose(move, 0.3 * g.sign())


# the whole climb against the algorithm as it is written


Point = tuple[float, Tensor, Tensor]


def meeting(victim: Classifier, label: Tensor) -> Callable[[Tensor], Point]:
    """Cross-entropy and its gradient at a point of one row."""

    def met(x: Tensor) -> Point:
        leaf = x.clone().requires_grad_(True)
        loss = cross_entropy(victim(leaf), Aim(label))
        (g,) = torch.autograd.grad(loss.sum(), leaf)
        return float(loss.detach()), x, g

    return met


def plain(
    met: Callable[[Tensor], Point],
    project: Callable[[Tensor], Tensor],
    unit: Callable[[Tensor], Tensor],
    x: Tensor,
    eps: float,
    steps: int,
    marks: list[int],
) -> list[Tensor]:
    """Algorithm 1 for one row, returning at the checkpoint; every point it comes to."""
    points, eta, rises, since, halved = [x], 2 * eps, 0, 0, False
    x_before = x
    here = best = met(x)
    last = mark = here[0]
    for k in range(steps):
        if k:
            here = met(x)
            rises += here[0] > last
            last = here[0]
            best = max(best, here, key=lambda point: point[0])
        if k in marks:
            halved = rises < 0.75 * (k - since) or (not halved and best[0] <= mark)
            if halved:
                eta, here = eta / 2, best
                last, x, _ = best
            rises, since, mark = 0, k, best[0]
        z = project(x + eta * unit(here[2]))
        a = 0.75 if k else 1.0
        x, x_before = project(x + a * (z - x) + (1 - a) * (x - x_before)), x
        points.append(x)
    return points


@pytest.mark.parametrize("norm", [Linf, L2], ids=str)
def test_the_climb_is_the_algorithm(norm: Norm) -> None:
    victim = untrained(SHAPE, 5)
    samples = data(victim, 8)
    images = 0.3 + 0.4 * samples.images  # far from the box, where l2 projections scale
    samples = Samples.of(images, victim(images).argmax(1))
    eps, steps = (0.1, 30) if norm is Linf else (0.25, 30)
    start = images + (0.05 * normal(8, *SHAPE)).clamp(-0.05, 0.05)
    attack = replace(APGD(steps).form(norm), start=Given(start))
    seen, crafted = points(attack, victim, samples, f"{norm}:{eps}")
    assert len(seen) == steps + 1
    assert crafted.forwards.tolist() == [steps + 2] * 8  # one is the clean check
    assert crafted.backwards.tolist() == [steps] * 8
    for row in range(8):
        center = images[row : row + 1]

        def project(x: Tensor, center: Tensor = center) -> Tensor:
            if norm is Linf:
                return torch.minimum(torch.maximum(x, center - eps), center + eps)
            change = x - center
            return center + change * min(1.0, eps / float(change.norm()))

        def unit(g: Tensor) -> Tensor:
            return g.sign() if norm is Linf else g / g.norm()

        met = meeting(victim, samples.labels[row : row + 1])
        begin = project(start[row : row + 1])
        path = plain(met, project, unit, begin, eps, steps, [7, 13, 18, 21, 24, 27, 28, 30])
        for mine, theirs in zip(seen, path, strict=True):
            # A sign may turn where a gradient is zero to rounding: hardly anywhere.
            assert ((mine[row] - theirs[0]).abs() > 0.01 * eps).double().mean() < 0.01


def onto_l1(center: Tensor, x: Tensor, eps: float) -> Tensor:
    """The nearest point of ball and box, by bisection in float64."""
    change = (x - center).double()
    room = torch.where(change > 0, 1 - center.double(), center.double())
    low, high = 0.0, float(change.abs().max())
    if float(change.abs().minimum(room).sum()) <= eps:
        return x.clamp(0, 1)
    for _ in range(100):
        middle = (low + high) / 2
        kept = (change.abs() - middle).clamp_min(0).minimum(room)
        low, high = (middle, high) if float(kept.sum()) > eps else (low, middle)
    return center + (kept * change.sign()).float()


def sparse(
    met: Callable[[Tensor], Point], center: Tensor, x: Tensor, eps: float, steps: int
) -> list[Tensor]:
    """L1-APGD in one ball for one row; every point it comes to."""
    points, eta, wide, best = [x], eps, int((x != center).sum()), None
    for k in range(steps):
        here = met(x)
        best = here if best is None or here[0] > best[0] else best
        if k and k % max(int(0.04 * steps), 1) == 0:
            now = int((best[1] != center).sum())
            if now < 0.95 * wide:
                eta, here, x = eps, best, best[1]
            else:
                eta = max(eta / 1.5, eps / 10)
            wide = now
        g = here[2].flatten()
        stuck = ((x <= 0) & (here[2] < 0)) | ((x >= 1) & (here[2] > 0))
        g = g * ~stuck.flatten()
        top = g.abs().argsort(descending=True)[: max(1, math.ceil(wide / 1.5))]
        move = torch.zeros_like(g)
        move[top] = g[top].sign() * eta / len(top)
        x = onto_l1(center, x + move.view_as(x), eps)
        points.append(x)
    return points


def test_the_sparse_climb_is_its_algorithm() -> None:
    victim = untrained(SHAPE, 5)
    samples = data(victim, 8)
    eps, steps = 3.0, 30
    drawn = samples.images + 0.1 * normal(8, *SHAPE)
    attack = SparseAscent(steps, start=Given(drawn), radii=(1.0,))
    seen, crafted = points(attack, victim, samples, f"l1:{eps}")
    assert crafted.backwards.tolist() == [steps] * 8 and len(seen) == steps + 1
    for row in range(8):
        center = samples.images[row : row + 1]
        met = meeting(victim, samples.labels[row : row + 1])
        begin = seen[0][row : row + 1]
        assert torch.allclose(begin, onto_l1(center, drawn[row : row + 1], eps), atol=1e-5)
        path = sparse(met, center, begin, eps, steps)
        for mine, theirs in zip(seen, path, strict=True):
            assert ((mine[row] - theirs[0]).abs() > 1e-3).double().mean() < 0.02


# larger balls


def test_phases_fill_the_steps_and_the_last_is_never_empty() -> None:
    assert SPARSE.phases() == [(3.0, 30), (2.0, 30), (1.0, 40)]
    for steps in range(1, 30):
        plan = replace(SPARSE, steps=steps).phases()
        assert sum(made for _, made in plan) == steps
        assert plan[-1][0] == 1.0 and all(made >= 1 for _, made in plan)


def test_larger_balls_are_climbed_first_and_their_successes_do_not_count() -> None:
    """Between the distance and three times it: broken in larger balls alone."""
    victim = Linear(SHAPE, 2)
    samples = data(victim)
    known = victim.distance(L1, samples.images, samples.labels)
    for row in range(4):
        one = samples.at(torch.tensor([row]))
        eps = 0.5 * known[row]
        seen, crafted = points(APGD(), victim, one, f"l1:{eps}")
        around = ball(L1, one.images, 1.0)
        far = [float(around.distance(x)) / eps for x in seen]
        assert len(far) == 103  # 100 moves and the starts of three balls
        assert max(far[:31]) == pytest.approx(3.0, rel=1e-5)
        assert max(far[31:62]) == pytest.approx(2.0, rel=1e-5)
        assert max(far[62:]) <= 1 + 1e-6
        wrong = [int(victim(x).argmax()) != int(one.labels) for x in seen]
        assert any(wrong[:31]) and not any(wrong[62:])
        assert not crafted.success.any() and crafted.first_step.tolist() == [-1]


def test_the_next_ball_is_entered_at_the_best_point_of_the_last() -> None:
    victim = untrained(SHAPE, 5)
    samples = data(victim, 6)
    seen, _ = points(APGD(20), victim, samples, "l1:3")
    for first, last, radius in ((0, 7, 2.0), (7, 14, 1.0)):
        with torch.no_grad():
            losses = [cross_entropy(victim(x), Aim(samples.labels)) for x in seen[first:last]]
        best = torch.stack(losses).argmax(0)
        entered = torch.stack(seen[first:last])[best, torch.arange(6)]
        around = ball(L1, samples.images, 3.0 * radius)
        assert torch.allclose(seen[last], around.confine(entered), atol=1e-6)


def test_a_normal_start_changes_few_entries_in_l1() -> None:
    victim = Linear(SHAPE, 3)
    images = images_of(SHAPE, 10)
    laid = siege(victim, images, torch.zeros(10).long(), 2.0, L1, leave="end")
    x = Gaussian()(laid)
    assert laid.ball.inside(x).all() and torch.equal(Gaussian()(laid), x)
    assert (laid.ball.distance(x) > 1.99).all()
    assert ((x != images).flatten(1).sum(1) < 20).all()


# strength, and what may not weaken it


@pytest.mark.parametrize("norm", EPS, ids=str)
@pytest.mark.parametrize(
    "classes", [2, 3, 4, *(pytest.param(n, marks=pytest.mark.slow) for n in (5, 8))]
)
def test_every_row_of_a_linear_victim_breaks_beyond_its_distance(norm: Norm, classes: int) -> None:
    victim = Linear(SHAPE, classes)
    samples, known = victim.equidistant(norm)
    for times, broken in ((1.01 if norm is not L1 else 1.05, True), (0.99, False)):
        threat = Threat(norm, times * float(known.max() if broken else known.min()))
        crafted = craft(victim, APGDT(40, targets=9), samples, threat)
        assert crafted.success.tolist() == [broken] * len(samples)


@pytest.mark.parametrize("norm", EPS, ids=str)
@pytest.mark.parametrize(
    "loss",
    [dlr, *(pytest.param(one, marks=pytest.mark.slow) for one in (margin, probability_margin))],
    ids=str,
)
def test_logits_ten_thousand_times_as_large_change_no_verdict(norm: Norm, loss: Loss) -> None:
    for classes in (2, 3, 10):
        victim = untrained(SHAPE, classes)
        samples = data(victim, 16)
        for attack in (APGD(12, loss), APGDT(6, targets=2, loss=loss)):
            eps = {Linf: 0.005, L2: 0.06, L1: 0.4}[norm]
            plain, large = (
                craft(v, attack, samples, Threat(norm, eps)) for v in (victim, scaled(victim, 1e4))
            )
            if loss is probability_margin:  # tempered at 10, so smaller logits are others
                assert int((plain.success != large.success).sum()) <= 3
                assert not large.vanished.any()
            else:
                assert torch.equal(plain.success, large.success)


def test_a_tempered_probability_margin_grows_along_the_way_out() -> None:
    """At logits a thousand times too large its values still tell which point is the better."""
    y = torch.zeros(50, dtype=torch.int64)
    lead = torch.linspace(3000.0, -500.0, 50)
    z = torch.stack([lead, torch.zeros(50), torch.full((50,), -800.0)], 1)
    for targets in (None, torch.ones_like(y)):
        value = probability_margin(z, Aim(y, targets, z[:1].expand(50, -1)))
        assert (value.diff() > 0).all() and value[0] < -0.99 and value[-1] > 0


def test_one_row_left_of_many_is_climbed_to_the_end() -> None:
    victim = Linear(SHAPE, 3)
    samples = data(victim, 9)
    known = torch.from_numpy(victim.distance(Linf, samples.images, samples.labels))
    eps = float(known.sort().values[-2:].mean())
    for attack in (APGD(30), APGDT(30)):
        crafted = craft(victim, attack, samples, Threat(Linf, eps))
        assert int((~crafted.success).sum()) == 1
        assert not crafted.success[known.argmax()]


# wrong class after wrong class


def test_targets_are_as_many_as_there_are_and_the_first_is_tried_alone() -> None:
    for classes, together, expected in (
        (2, 4, [1]),
        (3, 4, [1, 1]),
        (8, 4, [1, 4, 2]),
        (12, 4, [1, 4, 4]),
        (12, 3, [1, 3, 3, 2]),
        (12, 1, [1] * 9),
    ):
        victim = untrained(SHAPE, classes)
        samples = data(victim, 3)
        spy = Spy(victim)
        attack = APGDT(2, together=together)
        crafted = craft(spy, attack, samples, Threat.parse("linf:1e-6"), pad=False, batch=10**6)
        assert spy.calls == [3] + [3 * many for many in expected for _ in range(3)]
        tried = min(9, classes - 1)
        assert crafted.forwards.tolist() == [1 + 3 * tried] * 3
        assert crafted.backwards.tolist() == [2 * tried] * 3
        assert crafted.queries.tolist() == crafted.forwards.tolist()


@pytest.mark.parametrize("norm", EPS, ids=str)
@pytest.mark.parametrize("order", ["score", "distance"])
def test_trying_classes_together_changes_no_verdict(
    norm: Norm, order: Literal["score", "distance"]
) -> None:
    victim = untrained(SHAPE, 10)
    samples = data(victim, 24)
    threat = Threat(norm, {Linf: 0.02, L2: 0.25, L1: 1.2}[norm])
    forms = [APGDT(8, order=order, together=together) for together in (1, 3, 8)]
    one, *others = (craft(victim, form, samples, threat) for form in forms)
    assert 3 <= int(one.success.sum()) <= 21
    for other in others:
        assert torch.equal(one.success, other.success)
        standing = ~one.success
        assert torch.equal(one.queries[standing], other.queries[standing])
    # The first class is the first in both; rows it breaks are broken at the same point.
    first = craft(victim, replace(forms[0], targets=1), samples, threat)
    assert torch.equal(others[-1].images[first.success], first.images[first.success])


def test_the_nearest_class_of_a_linear_victim_comes_first() -> None:
    victim = Linear(SHAPE, 6)
    images = 0.4 + 0.2 * images_of(SHAPE, 20)  # no bound is near
    labels = victim(images).argmax(1)
    weight = torch.from_numpy(victim.weight)
    for norm, q in ((Linf, 1), (L2, 2), (L1, math.inf)):
        laid = siege(victim, images, labels, 0.1, norm, survey=True)
        z = victim(images).detach().double()
        w = weight[labels][:, None] - weight[None]
        far = (z.gather(1, labels[:, None]) - z) / torch.linalg.vector_norm(w, q, dim=2)
        far[torch.arange(20), labels] = torch.inf
        assert torch.equal(nearest(laid), far.argsort(1)[:, :5])
        assert not torch.equal(nearest(laid), laid.ranked())
        assert laid.record.meter.backwards.tolist() == [12] * 20


def test_a_class_without_a_gradient_comes_last() -> None:
    victim = Linear(SHAPE, 4)
    with torch.no_grad():
        layer = victim.module[-1]  # type: ignore[index]  # a Sequential
        layer.weight[2] = layer.weight[0]
        layer.bias[0] += 5.0
    images = images_of(SHAPE, 30)
    labels = victim(images).argmax(1)
    images, labels = images[labels == 0], labels[labels == 0]
    assert len(images)
    laid = siege(victim, images, labels, 0.1, survey=True)
    assert (nearest(laid)[:, -1] == 2).all()


# several rows of one sample in a siege


def test_rows_of_one_sample_are_charged_to_it_and_leave_together() -> None:
    victim = Linear(SHAPE, 5)
    samples = data(victim, 6)
    counting = Counting(victim)
    laid = siege(counting, samples.images, samples.labels, 0.5, survey=True)
    rows = torch.tensor([0, 0, 0, 2, 2, 2])  # as many as there are samples
    view = laid.view(rows, aim=laid.ranked()[rows, torch.tensor([0, 1, 2] * 2)])
    view.gradient(view.ball.center, margin)
    assert laid.record.meter.queries.tolist() == [4, 1, 4, 1, 1, 1]
    assert laid.record.meter.backwards.tolist() == [3, 0, 3, 0, 0, 0]
    assert counting.forwards == 12 and laid.record.asked.tolist() == [1, 0, 1, 0, 0, 0]
    # A point that breaks sample 0, given to its second row only.
    for k in range(3):
        change = torch.from_numpy(victim.nearest(Linf, samples.images[:1], samples.labels[:1]))
        x = view.ball.center.clone()
        if k == 1:
            x[1] += 1.01 * change.view(SHAPE).float()
        answer = view.offer(x.clamp(0, 1))
        assert answer.hit.tolist() == [False, k == 1, False, False, False, False]
        x = view.settle(x)
        if k == 1:
            break
    assert view.rows.tolist() == [2, 2, 2] and len(x) == 3
    assert laid.record.first_query[0] == 4 + 3 + 2  # the first offer, and two of the second


def test_rows_of_one_sample_share_its_budget() -> None:
    victim = Linear(SHAPE, 5)
    samples = data(victim, 3)
    counting = Counting(victim, metered=True)
    laid = siege(counting, samples.images, samples.labels, 1e-3, queries=5, survey=True)
    view = laid.view(torch.tensor([0, 0, 0, 1]))
    view.logits(view.ball.center)
    answer = view.logits(view.ball.center)
    assert laid.record.meter.queries.tolist() == [5, 3, 1] and counting.forwards == 9
    assert (answer.labels >= 0).tolist() == [True, False, False, True]
    view.settle()
    assert view.rows.tolist() == [1]


# stochastic victims


@pytest.mark.parametrize("norm", EPS, ids=str)
def test_averages_are_of_losses_logits_and_gradients(norm: Norm) -> None:
    victim = untrained(SHAPE, 5)
    samples = data(victim, 4)
    noisy = Noisy(victim, 0.02)
    threat = Threat(norm, EPS[norm])
    with pytest.raises(StochasticError, match=r"averaged\(apgd, 20\)"):
        craft(noisy, APGD(), samples, threat)
    crafted = craft(noisy, parse("averaged(apgd(steps=5), 6)"), samples, threat)
    passes = 5 + (3 if norm is L1 else 1)
    assert crafted.forwards.tolist() == [6 * (1 + passes)] * 4
    assert crafted.backwards.tolist() == [30] * 4
    assert crafted.success.any()


def test_the_schedule_sees_the_mean_loss() -> None:
    victim = untrained(SHAPE, 5)
    samples = data(victim, 4)
    watched = Watching(0.75)
    attack = replace(ASCENT, steps=1, start=Origin(), schedule=watched)
    noisy = Noisy(victim, 0.05)
    laid = siege(noisy, samples.images, samples.labels, 0.03, leave="end")
    attack.run(laid.averaged(8))
    shifts = noisy.shifts[0].view(4, 8, *SHAPE)
    with torch.no_grad():
        each = [
            cross_entropy(victim(samples.images + 0.05 * shifts[:, k]), Aim(samples.labels))
            for k in range(8)
        ]
    assert torch.allclose(watched.best[0][0], torch.stack(each).mean(0), atol=1e-5)
    assert torch.stack(each).std(0).min() > 1e-4


# values


def test_what_it_is_in_each_norm() -> None:
    assert isinstance(APGD().form(Linf), Ascent) and APGD().form(Linf) == APGD().form(L2)
    assert isinstance(APGD().form(L1), SparseAscent)
    given = APGD(50, dlr, 3, Origin())
    for norm in (Linf, L2, L1):
        form = given.form(norm)
        assert (form.steps, form.loss, form.restarts, form.start) == (50, dlr, 3, Origin())
    assert APGD(compat=True).form(L2) == replace(PUBLISHED, loss=CrossEntropy(stable=False))
    divided = parse("apgd(compat=True, loss=cross_entropy(divide=100))")
    assert isinstance(divided, APGD)
    assert divided.form(L2).loss == CrossEntropy(stable=False, divide=100)
    assert APGD().norms == {Linf, L2, L1}


@pytest.mark.parametrize(
    "text",
    [
        "apgd",
        "apgd(steps=50, loss=dlr, restarts=5)",
        "apgd(start=uniform, compat=True)",
        "apgdt(targets=5, order='distance', together=8)",
        "pgd(schedule=halving(rho=0.9, compat=True), place=inertia(share=0.5, exact=False))",
        "pgd(start=gaussian, direction=unboxed)",
    ],
)
def test_texts_read_back(text: str) -> None:
    assert str(parse(text)) == text and parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("apgd(steps=0)", "steps is 0"),
        ("apgd(restarts=0)", "restarts is 0"),
        ("apgd(start=steepest)", "not a start"),
        ("apgd(loss=3)", "not a loss"),
        ("apgdt(targets=0)", "targets is 0"),
        ("apgdt(together=0)", "together is 0"),
        ("apgdt(order='name')", "'score' or 'distance'"),
        ("apgdt(steps=True)", "steps is True"),
        ("pgd(schedule=halving(rho=2))", "rho is 2"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(AttackError, match=said):
        parse(text)
    for radii in ((), (3.0,), (0.5, 1.0)):
        with pytest.raises(ValueError, match="radii"):
            SparseAscent(radii=radii)

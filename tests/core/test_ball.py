"""Balls by law, and against linear and quadratic programs solved by scipy."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import optimize
from scipy.stats import kstest
from tests.victims import normal, threads, uniform
from torch import Tensor

from besiege.core.ball import TOLERANCE, Ball, ball, distances
from besiege.core.dice import Dice
from besiege.core.errors import ThreatError
from besiege.core.threat import L0, L1, L2, Linf, Norm

Array = NDArray[np.float64]
NORMS = [Linf, L2, L1, L0]
CONVEX = [Linf, L2, L1]
SMOOTH: dict[str, Any] = {"ftol": 1e-15, "maxiter": 1000}
# The stubs ask for more exact types than closures over arrays have.
linprog: Any = optimize.linprog
minimize: Any = optimize.minimize


def size(d: Array, norm: Norm) -> float:
    if norm is L0:
        return float(np.count_nonzero(d))
    return float(np.linalg.norm(d, {Linf: np.inf, L2: 2, L1: 1}[norm]))


def instance(seed: int, entries: int = 6, scale: float = 0.6) -> tuple[Array, Array, float]:
    """A centre with entries at the bounds, a vector with zeros, and a number in [0.2, 1.2)."""
    draw = np.random.default_rng(seed)
    x = np.clip(draw.uniform(-0.4, 1.4, entries), 0.0, 1.0)
    v = scale * draw.standard_normal(entries)
    v[draw.random(entries) < 0.2] = 0.0
    return x, v, float(draw.uniform(0.2, 1.2))


def rows_of(*rows: Array) -> Tensor:
    """Rows as images of one channel and one line, float64."""
    return torch.tensor(np.stack(rows))[:, None, None, :]


def flat(x: Tensor) -> Array:
    array: Array = x.flatten(1).numpy()
    return array


def polar(x: Array, radius: float, norm: Norm) -> tuple[Array, Array, list[tuple[float, float]]]:
    """The set {d = p - n : |d| <= radius, x + d in the box} as ``A u <= b`` and bounds.

    For l1 the variables are p and n, for linf p alone.
    """
    low, high = -x, 1.0 - x
    if norm is Linf:
        limits = [(max(a, -radius), min(b, radius)) for a, b in zip(low, high, strict=True)]
        return np.zeros((0, len(x))), np.zeros(0), limits
    return np.ones((1, 2 * len(x))), np.array([radius]), [(0.0, b) for b in (*high, *(-low))]


def best_gain(g: Array, x: Array, radius: float, norm: Norm) -> float:
    """The most that <g, d> can be in ball and box, by another solver."""
    if norm is L0:
        gain = np.abs(g) * np.where(g > 0, 1 - x, x)
        many = range(len(g))
        subsets = itertools.combinations(many, int(radius))
        return max(float(gain[list(subset)].sum()) for subset in subsets)
    if norm is L2:
        found = max(
            (
                minimize(
                    lambda d: -g @ d,
                    start,
                    jac=lambda d: -g,
                    bounds=list(zip(-x, 1 - x, strict=True)),
                    constraints={
                        "type": "ineq",
                        "fun": lambda d: radius**2 - d @ d,
                        "jac": lambda d: -2 * d,
                    },
                    method="SLSQP",
                    options=SMOOTH,
                )
                for start in (np.zeros_like(g) + 1e-3, np.clip(0.1 * g, -x, 1 - x))
            ),
            key=lambda f: -f.fun if f.success else -np.inf,
        )
        return float(-found.fun)
    a, b, limits = polar(x, radius, norm)
    cost = -g if norm is Linf else np.concatenate([-g, g])
    found = linprog(cost, a if len(a) else None, b if len(b) else None, bounds=limits)
    return float(-found.fun)


def nearest(v: Array, x: Array, radius: float, norm: Norm) -> Array:
    """The point of ball and box nearest to v (as changes of x), by another solver."""
    if norm is L0:
        best, point = np.inf, np.zeros_like(v)
        cut = np.clip(v, -x, 1 - x)
        for chosen in itertools.combinations(range(len(v)), min(int(radius), len(v))):
            d = np.zeros_like(v)
            d[list(chosen)] = cut[list(chosen)]
            if (away := ((v - d) ** 2).sum()) < best - 1e-15:
                best, point = away, d
        return point
    if norm is L1:
        n = len(v)  # variables d and bounds e >= |d| on its entries
        limits = [*zip(-x, 1 - x, strict=True), *[(0.0, 1.0)] * n]
        eye = np.eye(n)
        rows = np.block([[-eye, eye], [eye, eye], [np.zeros((1, n)), -np.ones((1, n))]])
        shift = np.concatenate([np.zeros(2 * n), [radius]])
        found = minimize(
            lambda u: ((u[:n] - v) ** 2).sum(),
            np.zeros(2 * n),
            jac=lambda u: np.concatenate([2 * (u[:n] - v), np.zeros(n)]),
            bounds=limits,
            constraints={"type": "ineq", "fun": lambda u: rows @ u + shift, "jac": lambda u: rows},
            method="SLSQP",
            options=SMOOTH,
        )
        return np.asarray(found.x[:n])
    constraints: Any = ()
    limits = [*zip(-x, 1 - x, strict=True)]
    if norm is L2:
        constraints = {
            "type": "ineq",
            "fun": lambda d: radius**2 - d @ d,
            "jac": lambda d: -2 * d,
        }
    else:
        limits = [(max(a, -radius), min(b, radius)) for a, b in limits]
    found = minimize(
        lambda d: ((d - v) ** 2).sum(),
        np.zeros_like(v),
        jac=lambda d: 2 * (d - v),
        bounds=limits,
        constraints=constraints,
        method="SLSQP",
        options=SMOOTH,
    )
    return np.asarray(found.x)


# projections


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_projection_is_the_nearest_point(norm: Norm) -> None:
    """30 instances in one batch with radii of their own, against a solver row by row."""
    cases = [instance(seed) for seed in range(30)]
    radii = torch.tensor([{Linf: 0.3, L2: 0.7, L1: 1.0, L0: 3.0}[norm] * c[2] for c in cases])
    radii = radii.double().round() if norm is L0 else radii.double()
    centre, moved = rows_of(*(c[0] for c in cases)), rows_of(*(c[0] + c[1] for c in cases))
    landed = flat(ball(norm, centre, radii).project(moved) - centre)
    active = 0
    for (x, v, _), radius, d in zip(cases, radii.tolist(), landed, strict=True):
        best = nearest(v, x, radius, norm)
        assert size(d, norm) <= radius * (1 + TOLERANCE)
        assert (x + d >= 0).all() and (x + d <= 1).all()
        assert np.linalg.norm(v - d) <= np.linalg.norm(v - best) + 1e-6
        if norm in (L2, L1, Linf):
            assert np.abs(d - best).max() <= 2e-5
        active += size(np.clip(v, -x, 1 - x), norm) > radius
    assert active >= 8  # the ball, not only the box, was tested


@pytest.mark.parametrize("norm", CONVEX, ids=str)
def test_projection_obeys_its_variational_inequality(norm: Norm) -> None:
    """<v - P(v), u - P(v)> <= 0 for every u inside: no solver, larger images."""
    centre = uniform(32, 3, 8, 8, seed=1).double().mul(1.4).sub(0.2).clamp(0, 1)
    there = ball(norm, centre, {Linf: 0.1, L2: 1.0, L1: 6.0}[norm])
    v = centre + 0.3 * normal(32, 3, 8, 8, seed=2, dtype=torch.float64)
    landed = there.project(v)
    for seed in range(40):
        u = there.project(centre + normal(32, 3, 8, 8, seed=100 + seed, dtype=torch.float64))
        inner = ((v - landed) * (u - landed)).flatten(1).sum(1)
        assert (inner <= 1e-5).all()


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 1, 7), (3, 5, 9)], ids=str)
def test_projections_of_float32_images(norm: Norm, shape: tuple[int, ...]) -> None:
    entries = math.prod(shape)
    centre = uniform(16, *shape).mul(1.4).sub(0.2).clamp(0, 1)
    radius = {Linf: 8 / 255, L2: 0.03 * entries**0.5, L1: 0.02 * entries, L0: entries // 5}[norm]
    there = ball(norm, centre, radius)
    inside = there.sample(Dice.throw(0, torch.arange(16)))
    assert there.inside(inside).all()
    assert torch.equal(there.project(inside), inside)  # inside: untouched
    assert torch.equal(there.project(centre), centre)
    outside = centre + normal(16, *shape)
    landed = there.project(outside)
    assert landed.dtype == torch.float32
    assert there.inside(landed).all()
    assert torch.equal(there.project(landed), landed)  # idempotent, bitwise
    full = (there.distance(landed) >= there.radius * (1 - 1e-5)) | (norm is L0)
    assert full.all()  # outside and with room: on the surface


@pytest.mark.parametrize("norm", [L2, L1], ids=str)
@pytest.mark.parametrize("radius", [1e-5, 1e-4, 1e-3, 1e-2])
def test_tiny_balls_hold_after_rounding(norm: Norm, radius: float) -> None:
    centre = uniform(32, 3, 32, 32).mul(1.4).sub(0.2).clamp(0, 1)
    there = ball(norm, centre, radius)
    for seed in range(3):
        landed = there.project(centre + normal(32, 3, 32, 32, seed=seed))
        assert there.inside(landed).all()


def test_linf_bounds_never_exceed_the_radius() -> None:
    centre = torch.cat([uniform(4000), torch.arange(256) / 255.0]).view(-1, 1, 1, 1)
    radii = [k / 255 for k in range(1, 33)] + [1e-5, 3e-5, 1e-4, 3e-4, 1e-3]
    for radius in radii:
        there = ball(Linf, centre, radius)
        for far in (centre + 1, centre - 1):
            landed = there.project(far)
            change = (landed.double() - centre.double()).abs().flatten()
            assert change.max() <= radius * (1 + TOLERANCE)
            assert there.inside(landed).all()
            room = torch.where(far > centre, 1 - centre, centre).flatten().double()
            # No more is lost than one float32 step of a pixel.
            assert (change >= room.clamp_max(radius) - 2**-24).all()


def test_linf_bounds_are_not_wider_with_other_boxes() -> None:
    centre = uniform(1000, 1, 1, 3).mul(5.0).sub(2.0)
    there = ball(Linf, centre, 0.02, box=(-2.0, 3.0))
    for far in (centre + 9, centre - 9):
        landed = there.project(far)
        assert there.inside(landed).all()
        assert (landed - centre).abs().max() > 0.0199


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_radii_belong_to_rows(norm: Norm) -> None:
    centre = uniform(5, 1, 4, 4)
    radii = torch.tensor([0.0, 1.0, 2.0, 3.0, torch.inf]).double()
    radii = radii / 10 if norm is Linf else radii
    x = centre + normal(5, 1, 4, 4, seed=3)
    together = ball(norm, centre, radii).project(x)
    for row in range(5):
        alone = ball(norm, centre[row : row + 1], radii[row : row + 1]).project(x[row : row + 1])
        assert torch.equal(alone[0], together[row])
    assert torch.equal(together[0], centre[0])
    assert torch.equal(together[4], x[4].clamp(0, 1))  # only the box limits it


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_an_infinite_radius_is_the_box(norm: Norm) -> None:
    centre = uniform(3, 1, 4, 4)
    there = ball(norm, centre, torch.inf)
    x = centre + normal(3, 1, 4, 4)
    assert torch.equal(there.project(x), x.clamp(0, 1))
    assert there.inside(x.clamp(0, 1)).all() and not there.inside(x).any()
    for draw in (there.sample, there.shell):
        with pytest.raises(ThreatError, match=r"minimal\(\.\.\.\)"):
            draw(Dice.throw(0, torch.arange(3)))


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_candidates_are_projected_as_rows_are(norm: Norm) -> None:
    centre = uniform(3, 1, 4, 4)
    radius = torch.tensor([1.0, 2.0, 3.0]).double() / (10 if norm is Linf else 1)
    there = ball(norm, centre, radius)
    x = centre[:, None] + normal(3, 5, 1, 4, 4)
    landed = there.project(x)
    assert landed.shape == x.shape
    for k in range(5):
        assert torch.equal(landed[:, k], there.project(x[:, k]))
        assert torch.equal(there.distance(x)[:, k], there.distance(x[:, k]))
        assert torch.equal(there.boxed(x)[:, k], there.boxed(x[:, k]))
        assert torch.equal(there.inside(landed)[:, k], there.inside(landed[:, k]))
    assert there.inside(landed).all() and not there.inside(x).any()


def test_nan_and_infinity_are_outside() -> None:
    x = uniform(4, 1, 2, 2)
    there = ball(Linf, x.clone(), torch.inf)
    x[0, 0, 0, 0], x[1, 0, 1, 1], x[2, 0, 0, 1] = torch.nan, torch.inf, -torch.inf
    assert there.boxed(x).tolist() == [False, False, False, True]
    assert there.inside(x).tolist() == [False, False, False, True]


# the grid


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("steps", [1.0, 7.7, 8.0, 40.0])
def test_on_a_grid_images_land_on_it(norm: Norm, steps: float) -> None:
    centre = (uniform(16, 3, 6, 6) * 255).round() / 255
    radius = {Linf: steps / 255, L2: steps / 25, L1: steps / 5, L0: math.ceil(steps)}[norm]
    there = ball(norm, centre, radius, grid=1 / 255)
    landed = there.project(centre + 0.2 * normal(16, 3, 6, 6))
    levels = landed.double() * 255
    assert (levels - levels.round()).abs().max() < 1e-4
    assert torch.equal(landed, there.snap(landed))
    assert there.inside(landed).all()
    assert torch.equal(there.project(landed), landed)
    if norm is Linf:
        most = ((landed - centre).double() * 255).abs().flatten(1).amax(1).round()
        assert (most == math.floor(steps + 1e-6)).all()


@pytest.mark.parametrize("norm", [Linf, L2, L1])
def test_on_a_grid_without_a_radius_images_are_rounded(norm: Norm) -> None:
    centre = uniform(4, 1, 3, 3)
    x = uniform(4, 5, 1, 3, 3)
    there = ball(norm, centre, torch.inf, grid=1 / 15)
    wide = ball(norm, centre, 100.0, grid=1 / 15)
    assert torch.equal(there.received(x), wide.received(x))
    assert torch.equal(there.received(x), (x.double() * 15).round().div(15).float())


def test_distances_on_a_grid_are_whole_steps() -> None:
    centre = (torch.arange(256) / 255.0).view(-1, 1, 1, 1)
    there = ball(Linf, centre, 8 / 255, grid=1 / 255)
    moved = torch.where(centre < 0.5, centre + 8 / 255, centre - 8 / 255)
    assert there.distance(moved).numpy() == pytest.approx(np.full(256, 8 / 255), rel=1e-12)
    assert there.inside(moved).all()
    assert not there.inside(torch.where(centre < 0.5, centre + 9 / 255, centre - 9 / 255)).any()


# steepest moves


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_steepest_moves_gain_most(norm: Norm) -> None:
    cases = [instance(seed, scale=1.0) for seed in range(30)]
    radii = torch.tensor([{Linf: 0.3, L2: 0.8, L1: 1.5, L0: 3.0}[norm] * c[2] for c in cases])
    radii = radii.double().ceil() if norm is L0 else radii.double()
    x, g = rows_of(*(c[0] for c in cases)), rows_of(*(c[1] for c in cases))
    there = ball(norm, x, radii)
    moved = flat(there.project(x + there.steepest(g, x, radii)) - x)
    boxed = 0
    for (at, slope, _), radius, d in zip(cases, radii.tolist(), moved, strict=True):
        best = best_gain(slope, at, radius, norm)
        assert slope @ d == pytest.approx(best, rel=2e-6, abs=1e-9)
        assert size(d, norm) <= radius * (1 + TOLERANCE)
        boxed += ((np.abs(d) > 0) & ((at + d == 0) | (at + d == 1))).any()
    assert boxed >= 5


@pytest.mark.parametrize("norm", [L2, L1], ids=str)
def test_steepest_moves_stay_in_the_box_and_use_their_length(norm: Norm) -> None:
    x = uniform(16, 3, 8, 8).mul(1.6).sub(0.3).clamp(0, 1)
    there = ball(norm, x, torch.inf)
    length = torch.linspace(0.1, 4.0, 16).double()
    move = there.steepest(normal(16, 3, 8, 8, seed=5), x, length)
    assert (x + move >= -1e-6).all() and (x + move <= 1 + 1e-6).all()
    assert distances(move, norm).numpy() == pytest.approx(length.numpy(), rel=1e-5)


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("length", [1e-3, 1.0, 3.0, 1e4])
def test_a_gradient_of_zeros_moves_nothing(norm: Norm, length: float) -> None:
    """Also in part: entries without a gradient stay, whatever the length."""
    x = uniform(3, 1, 3, 3)
    g = torch.zeros_like(x)
    g[2, 0, 0, 0] = 1.0
    there, lengths = ball(norm, x, torch.inf), torch.full((3,), length).double()
    moves = there.steepest(g, x, lengths), there.stride(g, x, lengths), there.drift(g, lengths)
    for move in moves:
        assert not move[:2].any()
        assert torch.isfinite(move).all()
        assert not move[2].flatten()[1:].any()
    assert (moves[0][2, 0, 0, 0] > 0) == (norm is not L0 or length >= 1)  # l0 counts whole entries


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_a_gradient_of_next_to_nothing_moves_to_no_infinity(norm: Norm) -> None:
    x, g = uniform(3, 1, 3, 3), normal(3, 1, 3, 3)
    there, lengths = ball(norm, x, 12.0), torch.full((3,), 12.0).double()
    for size in (1e-30, 1e-38, 1e-42):
        small = g * size
        for move in (there.steepest(small, x, lengths), there.stride(small, x, lengths)):
            assert torch.isfinite(move).all()
            assert there.inside(there.project(x + move)).all()


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("power", [-90, -60, -10, 10, 60, 90])
def test_steepest_moves_do_not_see_the_scale_of_the_gradient(norm: Norm, power: int) -> None:
    x, g = uniform(8, 3, 8, 8), normal(8, 3, 8, 8, seed=5)
    there = ball(norm, x, 20.0 if norm is L0 else 0.5)
    move = there.steepest(g, x, there.radius)
    assert torch.equal(there.steepest(g * 2.0**power, x, there.radius), move)


# planes


def plane_of(w: Array, c: float, x: Array, norm: Norm) -> Array | None:
    """The smallest d with <w, d> = c and x + d in the box, or None where that is out of reach."""
    n = len(w)
    if c < 0:
        w, c = -w, -c
    if (np.abs(w) * np.where(w > 0, 1 - x, x)).sum() < c:
        return None
    if norm is Linf:
        eye = np.eye(n)
        up = np.vstack([np.hstack([eye, -np.ones((n, 1))]), np.hstack([-eye, -np.ones((n, 1))])])
        limits = [*zip(-x, 1 - x, strict=True), (0, None)]
        cost = np.append(np.zeros(n), 1.0)
        found = linprog(cost, up, np.zeros(2 * n), np.append(w, 0.0)[None], [c], bounds=limits)
        return np.asarray(found.x[:n])
    if norm is L1:
        limits = [(0, b) for b in (*(1 - x), *x)]
        found = linprog(np.ones(2 * n), None, None, np.append(w, -w)[None], [c], bounds=limits)
        return np.asarray(found.x[:n] - found.x[n:])
    if norm is L2:
        # Lawson and Hanson's least distance: min |d| with G d >= h, through one NNLS.
        g = np.vstack([w, np.eye(n), -np.eye(n)])
        h = np.concatenate([[c], -x, -(1 - x)])
        e = np.vstack([g.T, h])
        u, _ = optimize.nnls(e, np.append(np.zeros(n), 1.0), maxiter=1000)
        rest = e @ u - np.append(np.zeros(n), 1.0)
        return np.asarray(-rest[:-1] / rest[-1])
    gain = np.abs(w) * np.where(w > 0, 1 - x, x)
    for many in range(n + 1):
        for chosen in itertools.combinations(range(n), many):
            if gain[list(chosen)].sum() >= c:
                d = np.zeros(n)
                d[list(chosen)] = 1.0  # a stand-in of the right size
                return d
    raise AssertionError


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_planes_are_reached_by_the_smallest_move(norm: Norm) -> None:
    cases = [instance(seed, scale=1.0) for seed in range(60)]
    gaps = np.array([(-1) ** i * c[2] for i, c in enumerate(cases)])
    x, w = rows_of(*(c[0] for c in cases)), rows_of(*(c[1] for c in cases))
    moves = flat(ball(norm, x, torch.inf).plane(x, w, torch.tensor(gaps)))
    reached = bound = 0
    for (at, slope, _), gap, d in zip(cases, gaps, moves, strict=True):
        assert (at + d >= -1e-12).all() and (at + d <= 1 + 1e-12).all()
        best = plane_of(slope, gap, at, norm)
        if best is None:
            toward = np.sign(slope) * np.sign(gap)
            corner = toward * np.where(toward > 0, 1 - at, at)
            assert np.abs(d - corner).max() <= 1e-12
            continue
        reached += 1
        assert slope @ d == pytest.approx(gap, rel=1e-9)
        assert size(d, norm) == pytest.approx(size(best, norm), rel=1e-7, abs=1e-12)
        assert not d[slope == 0].any()
        bound += ((d != 0) & ((np.abs(at + d) < 1e-12) | (np.abs(at + d - 1) < 1e-12))).any()
    assert 25 <= reached < 60 and bound >= 10


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_planes_of_extreme_weights(norm: Norm) -> None:
    x, w = uniform(4, 1, 4, 4), normal(4, 1, 4, 4, seed=1)
    there = ball(norm, x, torch.inf)
    gap = torch.tensor([0.5, -0.5, 0.3, 0.0])
    move = there.plane(x, w, gap)
    for power in (-60, 60):
        scaled = there.plane(x, w * 2.0**power, gap.double() * 2.0**power)
        assert torch.allclose(scaled, move, rtol=1e-5, atol=1e-7)
    assert not move[3].any()
    nowhere = there.plane(x, torch.zeros_like(w), torch.full((4,), 10.0))
    assert not nowhere.any()  # finite, and no corner is nearer than another


# sizes


def test_distances_are_exact_on_large_images() -> None:
    change = (normal(4, 3, 224, 224) * 0.01).float()
    wide = change.double().flatten(1).numpy()
    for norm in NORMS:
        exact = [math.fsum(np.abs(r) ** 2) ** 0.5 for r in wide] if norm is L2 else None
        if norm is L1:
            exact = [math.fsum(np.abs(r)) for r in wide]
        if exact is None:
            exact = [size(r, norm) for r in wide]
        assert distances(change, norm).dtype == torch.float64
        assert distances(change, norm).numpy() == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_dual_is_the_gain_per_unit(norm: Norm) -> None:
    """Far from the bounds a small steepest move gains its length times the dual norm."""
    centre = torch.full((5, 1, 4, 4), 0.5).double()
    g = normal(5, 1, 4, 4, dtype=torch.float64)
    there = ball(norm, centre, torch.inf)
    length = torch.full((5,), 1.0 if norm is L0 else 1e-3).double()
    gain = (g * there.steepest(g, centre, length)).flatten(1).sum(1)
    share = 0.5 if norm is L0 else 1.0  # from the middle an entry can go half across
    assert gain.numpy() == pytest.approx((share * length * there.dual(g)).numpy(), rel=1e-9)


# sampling


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_samples_are_inside_ball_and_box(norm: Norm) -> None:
    centre = uniform(64, 3, 8, 8).mul(1.4).sub(0.2).clamp(0, 1)
    there = ball(norm, centre, {Linf: 8 / 255, L2: 0.5, L1: 12.0, L0: 20.0}[norm])
    dice = Dice.throw(0, torch.arange(64))
    for draw in (there.sample, there.shell):
        points = draw(dice)
        assert there.inside(points).all()
        assert (there.distance(points) > 0).all()
        assert not torch.equal(points, draw(dice, 1))
        assert torch.equal(points, draw(dice))
        changes = (points - centre).flatten(1)
        assert len(torch.unique(changes, dim=0)) == 64  # every row its own


@pytest.mark.parametrize("norm", [L2, L1, Linf], ids=str)
@pytest.mark.parametrize("entries", [1, 2, 5, 20])
def test_samples_are_uniform_in_the_ball(norm: Norm, entries: int) -> None:
    """(|d| / eps)^n is uniform, directions are even, and so is each entry of a cut."""
    rows = 4000
    centre = torch.full((rows, 1, 1, entries), 0.5)
    there = ball(norm, centre, 0.4)
    change = (there.sample(Dice.throw(3, torch.arange(rows))) - centre).flatten(1).double()
    radius = distances(change, norm) / 0.4
    assert kstest((radius**entries).numpy(), "uniform").pvalue > 1e-3
    mean, spread = change.mean(0), change.std(0)
    assert (mean.abs() < 4.5 * spread / rows**0.5).all()
    assert (change > 0).double().mean(0).sub(0.5).abs().max() < 4.5 * 0.5 / rows**0.5
    # The variance of one entry of a uniform point: eps^2 times ...
    n = entries
    factor = {Linf: 1 / 3, L2: 1 / (n + 2), L1: 2 / ((n + 1) * (n + 2))}[norm]
    assert (change.var(0) / 0.16).numpy() == pytest.approx(np.full(n, factor), rel=0.12)
    if n > 1:
        cross = np.corrcoef(change.numpy().T) - np.eye(n)
        assert np.abs(cross).max() < 5 / rows**0.5


@pytest.mark.parametrize("norm", [L2, L1, Linf], ids=str)
def test_shells_are_on_the_surface(norm: Norm) -> None:
    centre = torch.full((500, 1, 1, 6), 0.5)
    there = ball(norm, centre, 0.4)
    points = there.shell(Dice.throw(3, torch.arange(500)))
    assert there.distance(points).numpy() == pytest.approx(np.full(500, 0.4), rel=1e-6)
    change = (points - centre).flatten(1)
    assert (change.mean(0).abs() < 5 * change.std(0) / 500**0.5).all()


def test_l0_samples_change_so_many_entries() -> None:
    centre = torch.full((400, 1, 4, 4), 0.5)
    there = ball(L0, centre, 5.0)
    points = there.sample(Dice.throw(3, torch.arange(400)))
    assert (there.distance(points) == 5).all()
    chosen = (points != centre).flatten(1).double().mean(0)
    assert (chosen - 5 / 16).abs().max() < 5 * (5 / 16 * 11 / 16 / 400) ** 0.5
    values = points[points != centre].double().numpy()
    assert kstest(values, "uniform").pvalue > 1e-3


# rows


def operations(there: Ball, x: Tensor, g: Tensor, dice: Dice) -> dict[str, Tensor]:
    return {
        "project": there.project(x),
        "steepest": there.steepest(g, there.center, there.radius),
        "plane": there.plane(there.center, g, torch.full((len(g),), 3.0)),
        "sample": there.sample(dice),
        "shell": there.shell(dice),
        "distance": there.distance(x),
        "dual": there.dual(g),
    }


def differing(shape: tuple[int, ...], rows: int, norm: Norm) -> set[str]:
    """Operations whose result for a row depends on which other rows are there."""
    entries = math.prod(shape)
    centre = uniform(rows, *shape).mul(1.4).sub(0.2).clamp(0, 1)
    x, g = centre + 0.1 * normal(rows, *shape, seed=1), normal(rows, *shape, seed=2)
    radius = {Linf: 8 / 255, L2: 0.05 * entries**0.5, L1: 0.02 * entries, L0: entries // 9}[norm]
    there = ball(norm, centre, radius)
    dice = Dice.throw(0, torch.arange(rows))
    whole = operations(there, x, g, dice)
    found = set()
    batches = [[0], [rows - 1], [2, 1], [3, 0, 4], [*range(rows - 1, -1, -1)]]
    for batch in batches:
        some = torch.tensor(batch)
        part = operations(there.at(some), x[some], g[some], dice.at(some))
        found |= {name for name, got in part.items() if not torch.equal(got, whole[name][some])}
    return found


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize(
    ("shape", "rows"),
    [
        ((1, 8, 8), 40),
        ((3, 32, 32), 33),
        ((1, 1, 5), 9),
        pytest.param((3, 224, 224), 5, marks=pytest.mark.slow),
    ],
)
def test_rows_are_independent_bitwise(norm: Norm, shape: tuple[int, ...], rows: int) -> None:
    with threads(1):
        assert differing(shape, rows, norm) == set()


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_rows_are_independent_with_two_threads(norm: Norm) -> None:
    """Holds for small images; one alone of ImageNet's size is summed in two halves."""
    with threads(2):
        assert differing((3, 32, 32), 9, norm) == set()


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_a_row_that_needs_many_rounds_does_not_move_its_neighbours(norm: Norm) -> None:
    """No early exit inside a projection may alter a neighbouring row's arithmetic."""
    easy = torch.full((1, 1, 1, 64), 0.5)
    hard = (torch.arange(64) / 63.0).pow(6).view(1, 1, 1, 64)
    centre = torch.cat([easy, hard, easy])
    x = centre + torch.cat([torch.full_like(easy, 0.3), torch.full_like(hard, 5.0), -easy])
    there = ball(norm, centre, {Linf: 0.2, L2: 2.0, L1: 9.0, L0: 9.0}[norm])
    together = operations(there, x, x - centre, Dice.throw(0, torch.arange(3)))
    for row in range(3):
        some = torch.tensor([row])
        alone = operations(there.at(some), x[some], (x - centre)[some], Dice.throw(0, some))
        for name, got in alone.items():
            assert torch.equal(got[0], together[name][row]), name


def test_at_and_of_keep_the_rest() -> None:
    centre = uniform(4, 1, 2, 2)
    there = ball(Linf, centre, 0.1, box=(0.0, 2.0), grid=1 / 255)
    there.project(centre)  # bounds are cached
    some = there.at(torch.tensor([2, 0]))
    assert len(some) == 2 and some.size == 4
    assert (some.box, some.grid, some.norm) == ((0.0, 2.0), 1 / 255, Linf)
    wide = there.of(torch.full((4,), 0.5))
    assert (wide.box, wide.grid) == (there.box, there.grid)
    assert (wide.project(centre + 9) > there.project(centre + 9)).all()  # no stale bounds

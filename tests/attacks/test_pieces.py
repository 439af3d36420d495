from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from tests.victims import normal, siege, uniform
from torch import Tensor
from torch.nn import functional

from besiege.attacks.directions import (
    Chain,
    Diverse,
    Momentum,
    Nesterov,
    Part,
    ScaleCopies,
    Steepest,
    Top,
    Translation,
    Unit,
)
from besiege.attacks.pieces import (
    Clipped,
    Constant,
    Cosine,
    Given,
    Origin,
    Signs,
    Sphere,
    Spread,
    Start,
    Uniform,
    Within,
)
from besiege.core.answer import Answer
from besiege.core.ball import ball, distances
from besiege.core.dice import Dice
from besiege.core.siege import Siege
from besiege.core.threat import L1, L2, Linf, Norm
from besiege.testing.victims import Linear, images_of

SHAPE = (3, 6, 7)
RADIUS = {Linf: 0.1, L2: 1.0, L1: 5.0}


def laid(norm: Norm = Linf, rows: int = 20, seed: int = 0) -> Siege:
    images = images_of(SHAPE, rows)
    labels = torch.zeros(rows, dtype=torch.int64)
    return siege(Linear(SHAPE, 3), images, labels, RADIUS[norm], norm, seed=seed, leave="end")


def dice(rows: int) -> Dice:
    return Dice.throw(0, torch.arange(rows)).of("through", 0)


def slots(rows: int) -> Tensor:
    return torch.zeros(rows, dtype=torch.int64)


# starts


@pytest.mark.parametrize("norm", RADIUS, ids=str)
@pytest.mark.parametrize("start", [Origin(), Uniform(), Sphere(), Signs(), Signs(1.0)], ids=str)
def test_starts_lie_in_ball_and_box(norm: Norm, start: Start) -> None:
    s = laid(norm)
    x = start(s)
    assert s.ball.inside(x).all()
    assert torch.equal(start(s), x)  # the dice have no state
    other = laid(norm, seed=1)
    if isinstance(start, Origin):
        assert torch.equal(x, s.ball.center)
    else:
        moved = (x - s.ball.center).flatten(1)
        assert (moved != 0).any(1).all()
        assert not torch.equal(x, start(other))
        assert len(torch.unique(moved.sign(), dim=0)) == len(x)  # every row its own draw
    # A row starts where it would start alone.
    view = s.view(torch.tensor([7, 3]))
    assert torch.equal(start(view), x[[7, 3]])


def test_sign_starts_are_half_way_in_every_pixel() -> None:
    s = laid()
    change = (Signs(0.5)(s) - s.ball.center).abs()
    room = torch.minimum(s.ball.center, 1 - s.ball.center)
    assert torch.allclose(change[room > 0.05], torch.tensor(0.05), atol=1e-6)


def test_given_starts_belong_to_samples_and_are_projected() -> None:
    s = laid()
    points = uniform(20, *SHAPE, seed=9)
    x = Given(points)(s)
    assert torch.equal(x, s.ball.project(points)) and s.ball.inside(x).all()
    assert torch.equal(Given(points)(s.view(torch.tensor([5, 2]))), x[[5, 2]])


# directions


def test_steepest_and_unit_moves() -> None:
    s = laid(L2)
    g, x = normal(20, *SHAPE), s.ball.center
    size = torch.linspace(0.1, 1.0, 20).double()
    assert torch.equal(Steepest().move(g, x, s.ball, size), s.ball.steepest(g, x, size))
    move = Unit().move(g, x, s.ball, size)
    assert torch.allclose(distances(move, L2), size, rtol=1e-5)
    assert torch.allclose(
        functional.cosine_similarity(move.flatten(1), g.flatten(1)), torch.ones(20)
    )
    for long in (size, 100.0 * size):
        still = Unit().move(torch.zeros_like(g), x, s.ball, long)
        assert torch.isfinite(still).all() and not still.any()


@pytest.mark.parametrize("share", [0.01, 0.1, 1.0])
def test_top_moves_the_largest_entries_that_can_move(share: float) -> None:
    s = laid(L1)
    g, x = normal(20, *SHAPE), s.ball.center
    size = torch.full((20,), 2.0).double()
    move = Top(share).move(g, x, s.ball, size)
    room = torch.where(g > 0, 1 - x, x)
    count = max(1, round(share * 126))
    for row in range(20):
        useful = (g[row].abs() * (room[row] > 0)).flatten()
        moved = move[row].flatten() != 0
        expected = min(count, int((useful > 0).sum()))
        assert moved.sum() == expected
        assert useful[moved].min() >= useful[~moved].max() - 1e-9
        assert (move[row].flatten()[moved].sign() == g[row].flatten()[moved].sign()).all()
    assert distances(move, L1).numpy() == pytest.approx(size.numpy(), rel=1e-5)
    assert not Top().move(torch.zeros_like(g), x, s.ball, size).any()


def test_momentum_sums_gradients_of_mean_size_one() -> None:
    link = Momentum(0.7)
    g1, g2 = normal(4, *SHAPE), 1e-6 * normal(4, *SHAPE, seed=1)
    memory = link.init(g1)
    first, memory = link.turn(g1, memory)
    second, memory = link.turn(g2, memory)

    def scaled(g: Tensor) -> Tensor:
        return g / g.abs().mean((1, 2, 3), keepdim=True)

    assert torch.allclose(first, scaled(g1), rtol=1e-5)
    assert torch.allclose(second, 0.7 * scaled(g1) + scaled(g2), rtol=1e-5, atol=1e-6)
    assert torch.equal(memory[0], second)


def test_momentum_survives_gradients_that_are_zero_or_tiny() -> None:
    link = Momentum(1.0)
    g = normal(3, *SHAPE)
    g[1], g[2] = 0.0, g[2] * 1e-30
    turned, memory = link.turn(g, link.init(g))
    assert torch.isfinite(turned).all() and not turned[1].any()
    assert turned[2].abs().mean() == pytest.approx(1.0, rel=1e-4)
    again, _ = link.turn(torch.zeros_like(g), memory)
    assert torch.equal(again, turned)  # it glides on
    for power in (-10, 10):
        scaled, _ = link.turn(g * 2.0**power, link.init(g))
        assert torch.equal(scaled[:1], turned[:1])  # bitwise


def test_nesterov_looks_one_momentum_step_ahead() -> None:
    link = Nesterov(0.9)
    x, g = uniform(4, *SHAPE), normal(4, *SHAPE)
    memory = link.init(x)
    assert torch.equal(link.ahead(x, memory), x)
    turned, memory = link.turn(g, memory)
    size = torch.tensor([0.1, 0.2, 0.3, 0.4]).double()
    memory = link.moved(size, memory, ball(Linf, x, 1.0))
    step = (0.9 * size).float().view(-1, 1, 1, 1)
    assert torch.equal(link.ahead(x, memory), x + step * turned)
    assert torch.equal(memory[0], turned)


@pytest.mark.parametrize("norm", [L2, L1], ids=str)
def test_nesterov_looks_as_far_ahead_as_a_step_is_long(norm: Norm) -> None:
    link, x = Nesterov(0.9), uniform(4, *SHAPE)
    there, size = ball(norm, x, 1.0), torch.tensor([0.1, 0.2, 0.3, 0.4]).double()
    memory = link.init(x)
    for turn in range(3):
        turned, memory = link.turn(normal(4, *SHAPE, seed=turn), memory)
        memory = link.moved(size, memory, there)
        ahead = link.ahead(x, memory) - x
        assert torch.allclose(distances(ahead, norm), 0.9 * size, rtol=1e-4)
        alike = functional.cosine_similarity(ahead.flatten(1), turned.flatten(1))
        assert torch.allclose(alike, torch.ones(4))
    memory = link.moved(size, link.init(x), there)
    assert torch.equal(link.ahead(x, memory), x)


def test_scale_copies_are_halves() -> None:
    x = uniform(6, *SHAPE)
    slot = torch.tensor([0, 1, 2, 0, 1, 2])
    got = ScaleCopies(3).through(x, dice(6), slot)
    assert torch.equal(got, x * 2.0 ** -slot.view(-1, 1, 1, 1).float())
    assert ScaleCopies(3).copies == 3 and ScaleCopies(3).steers


@pytest.mark.parametrize("part", [Diverse(least=1.0, probability=1.0), Diverse(probability=0.0)])
def test_diverse_inputs_can_be_the_identity(part: Part) -> None:
    x = uniform(9, *SHAPE)
    assert torch.equal(part.through(x, dice(9), slots(9)), x)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (3, 2, 5), (1, 7, 20), (3, 20, 7)])
def test_diverse_inputs_shrink_and_move_each_image_its_own_way(shape: tuple[int, ...]) -> None:
    """No line of a shrunk image is lost: it fits, also where the width rounds at a half."""
    x = torch.ones(300, *shape)
    got = Diverse(least=0.4, probability=1.0).through(x, dice(300), slots(300))
    inside = got[:, 0] > 0.5
    tall, wide = inside.any(2).sum(1), inside.any(1).sum(1)
    assert torch.equal(tall * wide, inside.flatten(1).sum(1))  # one rectangle
    least = max(1, math.floor(0.4 * shape[1]))
    assert tall.min() == least and tall.max() == shape[1]
    exact = torch.floor(shape[2] * tall / shape[1] + 0.5)
    assert torch.equal(wide.double(), exact.double())
    assert len(torch.unique(inside.flatten(1), dim=0)) > 3
    first = inside.any(2).int().argmax(1)
    assert (first == 0).any() and ((first + tall) == shape[1]).any()


def test_diverse_inputs_are_applied_as_often_as_they_should() -> None:
    x = uniform(2000, 1, 10, 10)
    changed = (Diverse(0.5, 0.3).through(x, dice(2000), slots(2000)) != x).flatten(1).any(1)
    # A sixth of the draws keeps the full size.
    assert float(changed.double().mean()) == pytest.approx(0.3 * 5 / 6, abs=0.04)


def test_diverse_draws_belong_to_row_step_and_copy() -> None:
    x = uniform(64, 1, 16, 16)
    part = Diverse(0.5, 1.0)
    base = part.through(x, dice(64), slots(64))
    assert torch.equal(part.through(x, dice(64), slots(64)), base)
    others = [
        part.through(x, Dice.throw(0, torch.arange(64)).of("through", 1), slots(64)),
        part.through(x, dice(64), slots(64) + 1),
        part.through(x, Dice.throw(0, torch.arange(64) + 500).of("through", 0), slots(64)),
    ]
    for other in others:
        assert (other != base).flatten(1).any(1).sum() > 40
    some = torch.tensor([9, 4])
    assert torch.equal(part.through(x[some], dice(64).at(some), slots(2)), base[some])
    leaf = x.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(part.through(leaf, dice(64), slots(64)).sum(), leaf)
    assert (slope.flatten(1).abs().sum(1) > 0).all()


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("size", [1, 3, 7, 15])
def test_translation_is_a_convolution_with_one_gaussian(channels: int, size: int) -> None:
    g = normal(5, channels, 9, 11, dtype=torch.float64)
    got, _ = Translation(size).turn(g, ())
    places = torch.linspace(-3, 3, size, dtype=torch.float64) if size > 1 else torch.zeros(1)
    line = torch.exp(-0.5 * places.double() ** 2)
    kernel = line[:, None] * line / line.sum() ** 2
    assert kernel.sum() == pytest.approx(1.0)
    kernels = kernel.expand(channels, 1, size, size)
    plain = functional.conv2d(g, kernels, padding=size // 2, groups=channels)
    assert torch.allclose(got, plain, atol=1e-12)
    middle = torch.zeros(1, channels, 31, 31)
    middle[:, :, 15, 15] = 1.0
    spread, _ = Translation(size).turn(middle, ())
    assert spread.sum((2, 3)).flatten().tolist() == pytest.approx([1.0] * channels, rel=1e-5)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 3, 3), (1, 1, 40)])
def test_translation_smooths_a_row_the_same_alone_and_among_others(shape: tuple[int, ...]) -> None:
    g = normal(33, *shape)
    whole, _ = Translation().turn(g, ())
    for some in ([0], [32], [4, 2], list(range(9))):
        assert torch.equal(Translation().turn(g[some].clone(), ())[0], whole[some])


def test_a_chain_passes_through_its_links_in_order() -> None:
    links = Chain((ScaleCopies(2), Nesterov(0.5), Translation(3), Momentum(0.9), Steepest()))
    assert links.copies == 2 and links.steers
    assert not Chain((Momentum(), Steepest())).steers
    x, g = uniform(4, *SHAPE), normal(4, *SHAPE)
    memory = links.init(x)
    assert [len(own) for own in memory] == [0, 2, 0, 1, 0]
    turned, memory = links.turn(g, memory)
    one, own = Nesterov(0.5).turn(g, Nesterov(0.5).init(x))
    two, _ = Translation(3).turn(one, ())
    three, kept = Momentum(0.9).turn(two, Momentum(0.9).init(x))
    assert torch.equal(turned, three)
    for mine, theirs in zip((*memory[1], *memory[3]), (*own, *kept), strict=True):
        assert torch.equal(mine, theirs)
    size = torch.full((4,), 0.1).double()
    memory = links.moved(size, memory, ball(Linf, x, 0.1))
    assert torch.allclose(links.ahead(x, memory), x + 0.05 * one, rtol=1e-5)
    there = ball(Linf, x, 0.1)
    assert torch.equal(links.move(turned, x, there, size), there.steepest(turned, x, size))
    with pytest.raises(NotImplementedError, match="cannot end a direction"):
        Chain((Momentum(),)).move(g, x, there, size)
    same, _ = Chain((Chain((Momentum(0.9),)), Steepest())).turn(g, ((Momentum().init(x),), ()))
    assert torch.equal(same, Momentum(0.9).turn(g, Momentum().init(x))[0])


# schedules and places


def test_schedules() -> None:
    assert [Constant(0.2).length(k, 5) for k in range(5)] == [0.2] * 5
    assert sum(Spread(2.5).length(k, 40) for k in range(40)) == pytest.approx(2.5)
    curve = [Cosine(0.5, 0.1).length(k, 10) for k in range(10)]
    assert curve[0] == 0.5 and curve[5] == pytest.approx(0.3)
    assert all(a > b for a, b in pairwise(curve)) and curve[-1] > 0.1
    there = ball(L2, uniform(3, *SHAPE), torch.tensor([1.0, 2.0, 4.0]))
    answer = Answer(torch.zeros(3) > 0, torch.zeros(3).long())
    size, x, same, memory = Spread(2.0).next(0, 4, there, there.center, answer, ())
    assert size.tolist() == [0.5, 1.0, 2.0] and x is there.center and same is answer
    assert memory == ()


@pytest.mark.parametrize("norm", RADIUS, ids=str)
def test_moves_land_within(norm: Norm) -> None:
    there = ball(norm, images_of(SHAPE, 5), RADIUS[norm])
    move = normal(5, *SHAPE)
    landed, memory = Within()(there, there.center, move, ())
    assert there.inside(landed).all() and memory == ()
    assert torch.equal(landed, there.project(there.center + move))


@pytest.mark.parametrize("norm", [Linf, L2], ids=str)
def test_clipped_lands_in_the_ball_and_then_in_the_box(norm: Norm) -> None:
    around = ball(norm, images_of(SHAPE, 6), RADIUS[norm])
    x, move = around.center, normal(6, *SHAPE)
    landed, _ = Clipped()(around, x, move, ())
    within, _ = Within()(around, x, move, ())
    if norm is Linf:
        assert torch.equal(landed, within)
        return
    scale = (RADIUS[norm] / distances(move, L2)).clamp_max(1.0)
    assert torch.allclose(landed, (x + around.scaled(scale) * move).clamp(0, 1), atol=1e-6)
    # Inside both, but short of the nearest point.
    assert around.inside(landed).all()
    assert (distances(landed - x, L2) < distances(within - x, L2)).all()

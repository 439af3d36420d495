"""ZOO: partial derivatives against known ones, what is drawn and counted, and how near it comes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tests.attacks.test_evolutionary import smooth
from tests.victims import Spy, siege, smallest, uniform
from torch import Tensor, nn

from besiege.attacks.attack import parse
from besiege.attacks.coordinates import Moments, likelihood
from besiege.attacks.weighting import UNSET, USUAL_DECAYS, corrections, floors
from besiege.attacks.zoo import ZOO
from besiege.core.errors import AttackError
from besiege.core.samples import Samples
from besiege.core.siege import Siege
from besiege.core.threat import L2, Access, Goal, Threat
from besiege.evaluation import craft
from besiege.evaluation.crafting import Crafted
from besiege.models.classifier import Classifier
from besiege.testing.victims import Counting, Linear, digits, natural

SHAPE = (1, 6, 6)


class Bowl(nn.Module):
    """``z = (1 + sum(a x^2 / 2 + b x), 0)`` with known derivatives."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = uniform(36, seed=1), uniform(36, seed=2) - 0.5

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1).double()
        height = 1 + (self.a * flat**2 / 2 + self.b * flat).sum(1)
        return torch.stack((height, torch.zeros_like(height)), 1)

    def slope(self, x: Tensor) -> Tensor:
        return self.a * x.flatten(1) + self.b


def bowl(images: Tensor, grid: float | None = None) -> tuple[Bowl, Siege]:
    net = Bowl()
    victim = Classifier(net, classes=2)
    victim.grid = grid
    laid = siege(victim, images, torch.zeros(len(images)).long(), 9.0, L2, leave="end")
    return net, laid


def test_partial_derivatives_are_those_of_a_quadratic() -> None:
    x = 0.2 + 0.6 * uniform(3, *SHAPE)
    net, laid = bowl(x)
    w = 0.1 * (uniform(3, *SHAPE, seed=4) - 0.5)
    told = ZOO(coordinates=20, h=0.01).ask(laid, w, 0)
    assert told.coordinates.shape == (3, 20)
    assert all(len(set(row.tolist())) == 20 for row in told.coordinates)
    exact = net.slope(x + w).gather(1, told.coordinates).double()
    assert torch.allclose(told.slope, exact, atol=1e-3)
    bend = net.a.expand(3, -1).gather(1, told.coordinates).double()
    assert torch.allclose(told.bend, bend, atol=2e-2)
    pull = 2 * w.flatten(1).gather(1, told.coordinates).double()
    assert torch.allclose(told.pull, pull, atol=1e-4)
    assert torch.allclose(told.hold, torch.full_like(told.hold, 2.0), rtol=1e-3)
    assert torch.allclose(told.far, (w.flatten(1).double() ** 2).sum(1), rtol=1e-4)
    assert torch.allclose(told.gap, net(x + w)[:, 0].double(), rtol=1e-6)
    assert laid.record.meter.queries.tolist() == [41] * 3 and not told.won.any()


@pytest.mark.parametrize("grid", [None, 1 / 255])
def test_probes_cut_by_the_box_or_a_grid_tell_the_same(grid: float | None) -> None:
    x = uniform(3, *SHAPE).round()
    net, laid = bowl(x, grid)
    told = ZOO(coordinates=36, h=0.001).ask(laid, torch.zeros_like(x), 0)
    exact = net.slope(x).gather(1, told.coordinates).double()
    assert torch.allclose(told.slope, exact, atol=4e-3)


def test_derivatives_on_a_coarse_grid_and_behind_a_tanh() -> None:
    x = 0.2 + 0.6 * uniform(2, *SHAPE)
    for attack in (ZOO(coordinates=9, side=3, h=0.01), ZOO(coordinates=36, tanh=True, h=0.01)):
        net, laid = bowl(x)
        w = attack.begin(laid).w + 0.1
        told = attack.ask(laid, w, 0)
        along = w.clone().requires_grad_()
        image = attack.images(laid.ball, along[:, None])[:, 0]
        net(image)[:, 0].sum().backward()
        assert along.grad is not None
        exact = along.grad.flatten(1).gather(1, told.coordinates).double()
        assert torch.allclose(told.slope, exact, atol=1e-3)
        along = w.clone().requires_grad_()
        ((attack.images(laid.ball, along[:, None])[:, 0] - x) ** 2).sum().backward()  # type: ignore[no-untyped-call]
        assert along.grad is not None
        exact = along.grad.flatten(1).gather(1, told.coordinates).double()
        assert torch.allclose(told.pull, exact, atol=1e-3)


def test_every_coordinate_counts_its_own_draws() -> None:
    laid = siege(natural(), digits(4).images, digits(4).labels, 9.0, L2, leave="end")
    attack = ZOO(coordinates=10, by="adam")
    table = torch.ones(50).double()
    state, drawn = attack.begin(laid), torch.zeros(4, 64).long()
    for step in range(12):
        told = attack.ask(laid, state.w, step)
        drawn.scatter_add_(1, told.coordinates, torch.ones_like(told.coordinates))
        before = state
        state = attack._descend(laid.ball, state, told, (table, None))
        touched = torch.zeros(4, 64, dtype=torch.bool).scatter(1, told.coordinates, True)
        for new, old in zip(state.moments[:2], before.moments[:2], strict=True):
            assert torch.equal(new.flatten(1)[~touched], old.flatten(1)[~touched])
    assert torch.equal(state.moments.drawn.flatten(1), drawn)
    assert drawn.max() > 3 and laid.record.meter.queries.tolist() == [12 * 21] * 4
    rows = {tuple(row) for row in told.coordinates.tolist()}
    assert len(rows) == 4  # each row draws its own


def test_importance_follows_the_change_and_forgets_nobody() -> None:
    w = torch.zeros(2, 1, 16, 16)
    w[0, 0, 3, 5] = -2.0
    p = likelihood(w)
    assert torch.allclose(p.sum((1, 2, 3)), torch.ones(2)) and (p > 0).all()
    assert torch.allclose(p[1], torch.full_like(p[1], 1 / 256))
    block = p[0, 0, 2:4, 4:6]
    assert float(block.sum()) > 0.9 and torch.allclose(block, block[0, 0].expand(2, 2))
    assert likelihood(torch.rand(1, 3, 5, 9)).shape == (1, 3, 5, 9)
    laid = siege(natural(), digits(2).images, digits(2).labels, 9.0, L2)
    attack = ZOO(coordinates=4, important=True)
    w = torch.zeros(2, 1, 8, 8)
    w[:, 0, 1, 2] = 1.0
    often = sum(int((attack._draw(laid, w, 4, step) == 10).any(1).sum()) for step in range(50))
    assert often > 90


@pytest.mark.parametrize("by", ["adam", "newton"])
def test_it_comes_near_to_the_closed_form(by: str) -> None:
    victim = Linear((1, 5, 5), 3)
    samples = victim.samples(8)
    known = torch.from_numpy(victim.distance(L2, samples.images, samples.labels))
    attack = ZOO(coordinates=25, steps=40, rounds=1, rate=0.2, by=by)
    made = smallest(victim, attack, samples, L2)
    assert made.success.all()
    assert float((made.distance / known).median()) < 1.05, made.distance / known


@pytest.mark.parametrize(
    "text",
    [
        "zoo(steps=6, rounds=2, coordinates=16, by='adam')",
        "zoo(steps=6, coordinates=70, rounds=2)",
        "zoo(steps=8, rounds=1, coordinates=8, side=4, grow=(3, 5), important=True, tanh=True)",
        "zoo(steps=6, rounds=3, coordinates=1, by='adam', compat=True, abort=2, reset=True)",
    ],
)
def test_rows_alone_and_accounts(text: str) -> None:
    victim, samples, attack = natural(), digits(9), parse(text)
    threat = Threat(L2, None, access=Access.SCORE)
    counting = Counting(victim, access=Access.SCORE, metered=True)
    whole = craft(counting, attack, samples, threat)
    assert counting.forwards == int(whole.queries.sum())
    most = attack.cost((1, 8, 8), 10)
    assert most is not None and int(whole.queries.max()) <= 1 + most
    if "abort" not in text:
        assert int(whole.queries.max()) == 1 + most
    for row in (0, 4, 8):
        alone = craft(victim, attack, samples.at(torch.tensor([row])), threat)
        for name in ("images", "success", "queries", "first_query", "distance"):
            assert torch.equal(getattr(alone, name)[0], getattr(whole, name)[row]), (row, name)


def test_the_smallest_change_of_digits() -> None:
    victim, samples = natural(), digits(8)
    known = smallest(victim, parse("ddn"), samples, L2).distance
    made = craft(victim, parse("zoo"), samples, Threat(L2, None, access=Access.SCORE), queries=2000)
    assert int(made.success.sum()) >= 7
    assert float((made.distance / known.clamp_min(1e-9)).median()) < 1.15
    aimed = Samples(samples.images, samples.labels, samples.ids, (samples.labels + 1) % 10)
    threat = Threat(L2, None, Goal.GIVEN, Access.SCORE)
    assert int(craft(victim, parse("zoo"), aimed, threat, queries=2000).success.sum()) >= 6


def test_changes_of_large_images_live_on_a_coarse_grid() -> None:
    grid = ZOO().grid
    assert grid((3, 32, 32)) == (3, 32, 32) and grid((1, 1, 300)) == (1, 1, 300)
    assert grid((3, 224, 224)) == (3, 32, 32) and grid((3, 64, 256)) == (3, 16, 64)
    assert ZOO(side=50).grid((3, 224, 40)) == (3, 50, 40)
    assert ZOO(compat=True).grid((3, 224, 224)) == (3, 224, 224)
    assert (
        ZOO(coordinates=64, grow=(1,), steps=2, rounds=1, side=4).cost((1, 6, 9), 3) == 33 + 97 + 1
    )


def test_large_images_come_across_on_a_coarse_grid() -> None:
    victim, samples, best = smooth(96)
    threat = Threat(L2, None, access=Access.SCORE)
    made = craft(victim, parse("zoo"), samples, threat, queries=3000)
    assert made.success.all() and bool((made.distance < 2.5 * best).all())
    full = craft(victim, parse("zoo(side=96)"), samples, threat, queries=3000)
    assert not full.success.any()


def test_as_published() -> None:
    victim, samples = natural(), digits(12).at(torch.tensor([0, 3, 4, 5]))
    spy = Spy(victim)
    spy.metered = True
    attack = ZOO(steps=60, rounds=1, coordinates=1, first=10, rate=0.1, by="adam", compat=True)
    made = craft(spy, attack, samples, Threat(L2, None, access=Access.SCORE))
    assert made.queries.tolist() == [1 + 3 * 60] * 4
    last = spy.images[-1][0] - samples.images[0]
    assert 0 < int((last.abs() > 1e-6).sum()) <= 60


def test_values() -> None:
    assert parse("zoo").minimal
    for text, said in {
        "zoo(coordinates=0)": "coordinates is 0",
        "zoo(h=0)": "h is 0",
        "zoo(by='sgd')": "by is 'sgd'",
        "zoo(side=0)": "side is 0",
        "zoo(rate=-1)": "rate is -1",
    }.items():
        with pytest.raises(AttackError, match=said):
            parse(text)


def test_adams_epsilon_of_every_coordinate() -> None:
    at, g = torch.tensor([[0, 1]]), torch.tensor([[1e-9, 1.0]], dtype=torch.float64)
    tables = (make(USUAL_DECAYS, 5, torch.device("cpu")) for make in (corrections, floors))
    moments = Moments.at(torch.zeros(1, 1, 1, 2)).drew(at)
    _, move = moments.step(at, g, torch.ones(1, 1), *tables)
    assert move[0].tolist() == pytest.approx([1e-9 / (1e-9 + 1e-8), 1.0])


def followed(attack: ZOO, many: int = 6) -> tuple[list[Any], Crafted]:
    """The state after every step, and the result."""
    noted, descend = [], ZOO._descend

    def spy(self: ZOO, ball: Any, *given: Any) -> Any:
        found = descend(self, ball, *given)
        noted.append((ball.center + found.w, given[0].weights, given[0].turn))
        return found

    with patch.object(ZOO, "_descend", spy):
        threat = Threat(L2, None, access=Access.SCORE)
        return noted, craft(natural(), attack, digits(12).at(torch.arange(many)), threat)


def test_as_published_steps_stay_in_the_box() -> None:
    attack = ZOO(8, 1, 64, first=10, rate=0.2, by="adam", compat=True)
    ends = torch.cat([x for x, _, _ in followed(attack)[0]])
    assert ends.min() > -1e-6 and ends.max() < 1 + 1e-6
    assert (ends < 1e-6).any() and (ends > 1 - 1e-6).any()


def test_as_published_the_first_iterate_is_checked_too() -> None:
    """A weight that is much too small: every round ends at its second check."""
    attack = ZOO(20, 2, 4, first=1e-12, rate=1e-3, by="adam", abort=5, compat=True)
    queries = followed(attack)[1].queries
    assert queries.max() == 1 + 2 * 6 * 9


def test_the_last_of_many_rounds_repeats_the_smallest_weight() -> None:
    attack = ZOO(3, 10, 64, first=100, rate=0.3, by="adam", compat=True, repeat=True)
    noted, _ = followed(attack)
    last = next(weights for _, weights, turn in noted if (turn == 9).all())
    assert (last.high < UNSET).any() and torch.equal(last.c, last.high)
    noted, _ = followed(replace(attack, repeat=False))
    other = next(weights for _, weights, turn in noted if (turn == 9).all())
    assert not torch.equal(other.c, other.high)

"""Bandits: how its prior grows towards the gradient, and what each step asks."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from tests.victims import Spy, affine, normal, siege, uniform
from torch import Tensor, nn

from besiege.attacks.attack import parse
from besiege.attacks.bandits import LEARNING, SURE, Bandits, enlarged, exponentiated
from besiege.core.ball import ball, distances
from besiege.core.errors import AttackError
from besiege.core.samples import Samples
from besiege.core.threat import L2, Access, Goal, Linf, Norm, Threat
from besiege.evaluation import craft
from besiege.models.classifier import Classifier
from besiege.testing.victims import Counting, digits, natural, untrained

EPS = {Linf: 0.1, L2: 0.5}
SHAPE = (3, 16, 16)


def score(norm: Norm, eps: float, goal: Goal = Goal.UNTARGETED) -> Threat:
    return Threat(norm, eps, goal, Access.SCORE)


@pytest.mark.parametrize("steps", [200, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("norm", [Linf, L2], ids=str)
def test_the_prior_grows_towards_the_gradient(norm: Norm, steps: int) -> None:
    """One estimate of two queries has a cosine of 0.03 with the gradient."""
    w = normal(2, 768, seed=5) / 10
    victim, slope = affine(w, torch.zeros(2)), (w[1] - w[0])
    x = 0.3 + 0.4 * uniform(8, *SHAPE)
    laid = siege(victim, x, torch.zeros(8).long(), EPS[norm], norm, leave="end")
    attack = Bandits(tile=16)
    prior, found = attack.begin(laid), {}
    for step in range(steps):
        e, difference = attack.compare(laid, x, prior.v, step)
        prior = attack.learnt(laid.ball, prior, e, difference)
        if step + 1 in (1, 100, 200, 1000):
            cosine = torch.cosine_similarity(prior.v.flatten(1), slope[None], dim=1)
            found[step + 1] = float(cosine.mean())
    assert found[1] < 0.06
    assert found[100] > 0.15 and found[200] > 0.25 and found.get(1000, 1.0) > 0.5, found
    assert laid.record.meter.queries.tolist() == [3 * steps] * 8


def test_exponentiated_gradients_stay_between_one_and_minus_one() -> None:
    v, step = torch.tensor([0.0, 0.5, -0.9, 1.0, -1.0]), torch.tensor([0.3, -2.0, 9.0, 5.0, 80.0])
    moved = exponentiated(v, step)
    assert (moved.abs() <= 1).all() and torch.isfinite(moved).all()
    p, h = (v.double() + 1) / 2, step.double()
    wanted = p * torch.exp(h) / (p * torch.exp(h) + (1 - p) * torch.exp(-h))
    assert torch.allclose(moved[:4].double(), (2 * wanted[:4] - 1).clamp(-SURE, SURE), atol=1e-5)
    back = exponentiated(exponentiated(v, torch.full_like(v, 60.0)), torch.full_like(v, -5.0))
    assert (back < 0).all(), "however sure, it can be unlearnt"
    assert float(exponentiated(torch.ones(1), torch.zeros(1), 1.0)) == 1.0, "as published"
    assert abs(float(exponentiated(torch.zeros(1), torch.full((1,), 0.3))) - 0.2913) < 1e-3
    assert torch.equal(LEARNING[L2](v, step, 1.0), v + step)


def test_a_step_asks_about_the_point_and_beside_it() -> None:
    victim = untrained((1, 8, 8), 5)
    images = 0.3 + 0.4 * uniform(1, 1, 8, 8)
    spy = Spy(victim)
    spy.metered = True
    attack = Bandits(steps=4, tile=4)
    samples = Samples.of(images, victim(images).argmax(1))
    made = craft(spy, attack, samples, score(Linf, 0.02), leave="end")
    asked = spy.images[1:]
    assert [len(x) for x in asked] == [3, 3, 3, 3, 1]
    assert int(made.queries) == 1 + attack.cost((1, 8, 8), 5)
    for before, after in pairwise(asked):
        for probe in before[1:] - before[0]:
            assert abs(float(probe.norm()) - 0.1) < 1e-4
            tiles = probe.view(1, 4, 2, 4, 2)
            assert torch.allclose(tiles, tiles[:, :, :1, :, :1].expand_as(tiles), atol=1e-6)
        step = after[0] - before[0]
        assert abs(float(step.abs().max()) - 0.002) < 1e-5
    first = asked[0][1:] - asked[0][0]
    assert torch.allclose(first[0], -first[1], atol=1e-6)  # nothing is known yet


@pytest.mark.parametrize("norm", [Linf, L2], ids=str)
def test_rows_alone_and_accounts(norm: Norm) -> None:
    victim, samples, attack = natural(), digits(12), Bandits(steps=30)
    counting = Counting(victim, access=Access.SCORE, metered=True)
    whole = craft(counting, attack, samples, score(norm, EPS[norm]))
    assert counting.forwards == int(whole.queries.sum())
    assert (distances(whole.images - samples.images, norm) <= EPS[norm] * (1 + 1e-6)).all()
    assert whole.success.any() and not whole.success.all()
    for row in (0, 5, 11):
        alone = craft(victim, attack, samples.at(torch.tensor([row])), score(norm, EPS[norm]))
        for name in ("images", "success", "queries", "first_query", "first_step"):
            assert torch.equal(getattr(alone, name)[0], getattr(whole, name)[row]), (row, name)


@pytest.mark.parametrize("norm", [Linf, L2], ids=str)
def test_as_published_what_is_learnt_is_proportional_to_the_difference(norm: Norm) -> None:
    attack = Bandits(tile=4, probe=0.1, explore=0.5, learn=0.02, relative=False, exact=False)
    images = 0.3 + 0.4 * uniform(3, 1, 8, 8)
    laid = siege(natural(), images, digits(3).labels, EPS[norm], norm)
    prior = attack.begin(laid)
    e, difference = attack.compare(laid, images, prior.v, 0)
    drawn = laid.dice.of("explore", 0).normal((1, 4, 4))
    assert torch.allclose(e, 0.5 * drawn / 4, atol=1e-6)
    once, thrice = (attack.learnt(laid.ball, prior, e, n * difference).v for n in (1, 3))
    step = 0.02 * e * (difference / (0.1 * 0.5)).view(3, 1, 1, 1).float()
    if norm is Linf:
        once, thrice = torch.atanh(once), torch.atanh(thrice)
    assert torch.allclose(once, step, rtol=1e-3, atol=1e-6)
    assert torch.allclose(thrice, 3 * step, rtol=1e-3, atol=1e-5)


def test_a_step_that_is_not_exact_is_lost_where_the_box_is() -> None:
    images = torch.where(uniform(6, 1, 8, 8) < 0.5, 0.0, 0.5)
    victim = untrained((1, 8, 8), 5)
    samples = Samples.of(images, victim(images).argmax(1))
    sizes = []
    for exact in (True, False):
        attack = Bandits(steps=1, rate=1.0, exact=exact)
        made = craft(victim, attack, samples, score(L2, 0.5), keep="last", leave="end")
        sizes.append(distances(made.images - images, L2))
    assert (sizes[0] > 0.49).all() and (sizes[1] < 0.48).all()


class Within(nn.Module):
    """The natural net on images of another box."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.low, self.width, self.net = low, high - low, natural()

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x - self.low) / self.width)


@pytest.mark.parametrize("levels", [None, 255, 16])
@pytest.mark.parametrize(
    "box",
    [pytest.param((0.0, 1.0), marks=pytest.mark.slow), (-1.0, 1.0), (0.0, 255.0)],
    ids=str,
)
def test_probes_grow_with_the_box_and_the_grid(
    box: tuple[float, float], levels: int | None
) -> None:
    """Shorter than half a step probes are rounded away, and the attack learns nothing."""
    low, high = box
    width, samples = high - low, digits(30)
    grid = None if levels is None else width / levels
    victim = Classifier(Within(low, high), box=box, classes=10, grid=grid)
    images = low + width * torch.round(samples.images * (levels or 16)) / (levels or 16)
    around = ball(Linf, images, 0.1 * width, box, grid)
    assert Bandits().length(around) == pytest.approx(width * (0.25 if levels == 16 else 0.1))
    given = Samples.of(images, samples.labels, box=box)
    made = craft(victim, Bandits(), given, score(Linf, 3 / 16 * width), queries=400)
    assert int(made.success.sum()) >= (22 if levels == 16 else 25)


def test_targets_and_the_scale_of_the_loss() -> None:
    victim, samples = natural(), digits(12).at(torch.arange(10))
    aimed = Samples(samples.images, samples.labels, samples.ids, (samples.labels + 1) % 10)
    made = craft(victim, Bandits(), aimed, score(Linf, 0.3, Goal.GIVEN), queries=1000)
    assert int(made.success.sum()) >= 6


def test_values() -> None:
    for text in ("bandits@ilyas", "bandits@ilyas-l2"):
        assert str(parse(str(parse(text)))) == str(parse(text))
    around = ball(Linf, torch.zeros(1, 1, 5, 7), 0.1)
    assert enlarged(around, torch.arange(6.0).view(1, 1, 2, 3)).shape == (1, 1, 5, 7)
    for text, said in {
        "bandits(tile=0)": "tile is 0",
        "bandits(learn=0)": "learn is 0",
        "bandits(steps=0)": "steps is 0",
    }.items():
        with pytest.raises(AttackError, match=said):
            parse(text)

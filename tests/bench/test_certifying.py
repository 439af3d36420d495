"""Certificates of randomised smoothing: sound on models whose exact radius is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm
from torch import Tensor, nn

import besiege
from besiege.bench.certifying import certified
from besiege.bounds.votes import lower_bound
from besiege.core.dice import Dice
from besiege.core.errors import BesiegeError
from besiege.core.victim import Victim
from besiege.defenses import BitDepth, Defended, GaussianNoise, Pooled, RandMix, Smoothed, load
from besiege.defenses.counting import counted, voter
from besiege.models import Classifier
from besiege.training import recipe, train
from besiege.training.fitting import build

BASE = "zoo:digits-natural"
DATA = besiege.data.load("digits", "test", count=12)
GREY = torch.full((400, 1, 4, 4), 0.5)
IDS = torch.arange(400)


class Line(nn.Module):
    """Two classes, separated by a plane: class 1 where the mean pixel is above 1/2."""

    def forward(self, x: Tensor) -> Tensor:
        height = (x.flatten(1) - 0.5).sum(1)
        return torch.stack([-height, height], 1)


class Constant(Victim):
    """Always class 2 of 4."""

    classes = 4

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        return torch.tensor([[0.0, 0, 1, 0]]).expand(len(x), -1) + 0 * x.flatten(1)[:, :1]


def at_margins(count: int, least: float, most: float) -> tuple[Tensor, Tensor]:
    """Images ``[count, 1, 4, 4]`` at known distances to the plane of `Line`."""
    margins = torch.linspace(least, most, count)
    # A step of m along the unit normal adds m / sqrt(16) to every pixel.
    return 0.5 + (margins / 4)[:, None, None, None].expand(-1, 1, 4, 4), margins


@pytest.mark.parametrize("sigma", [0.1, 0.5])
@pytest.mark.parametrize(("n", "published"), [(100, 1.500475), (1000, 2.463263)])
def test_a_constant_classifier_has_the_largest_radius(
    sigma: float, n: int, published: float
) -> None:
    """It grows with the noise of the test, whatever the model was trained with; never infinite."""
    found = certified(Smoothed(Constant(), sigma), GREY[:3], [2, 2, 0], n=n)
    assert found.prediction.tolist() == [2, 2, 2] and found.right.tolist() == [True, True, False]
    assert found.radius == pytest.approx([sigma * published] * 3, abs=1e-6)
    assert found.linf == pytest.approx(found.radius / 4, rel=1e-12)


def test_a_coin_abstains() -> None:
    """Images on the plane itself: each class has half of the votes."""
    found = certified(Smoothed(Classifier(Line()), 0.3), GREY, n0=20, n=200, alpha=0.01)
    assert found.abstains.mean() >= 0.98 and not found.radius[found.abstains].any()
    many = certified(Smoothed(Classifier(Line()), 0.3), GREY, n0=20, n=200, alpha=0.001)
    assert many.abstains.mean() >= 0.99


def test_a_radius_exceeds_the_true_margin_as_rarely_as_alpha_says() -> None:
    """Of a linear classifier the smoothed one is itself, and the margin its exact radius."""
    alpha, count, sigma = 0.05, 2000, 0.25
    images, margins = at_margins(count, 0.02, 0.3)
    # A normalisation that leaves the plane where it is: noise comes before it.
    victim = Smoothed(Classifier(Line(), mean=0.375, std=0.25), sigma)
    found = certified(victim, images, torch.ones(count, dtype=torch.int64), n=200, alpha=alpha)
    wrong = int(((found.radius > margins.numpy() + 1e-6) & found.right).sum())
    most = int(binom.ppf(0.9999, count, alpha))
    assert 0.2 * alpha * count < wrong <= most
    # No cheap bound: on average it is close to the margin.
    share = norm.cdf(margins.numpy() / sigma)
    usual = sigma * norm.ppf(lower_bound(np.round(200 * share).astype(int), 200, alpha))
    assert float(found.radius.mean()) == pytest.approx(float(usual.clip(0).mean()), rel=0.05)


def test_votes_that_chose_the_class_do_not_estimate_it() -> None:
    """Every copy is sent once, and counts that chose a coin's side would favour it."""
    keys: list[Tensor] = []

    class Notes(Constant):
        stochastic = True

        def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
            assert dice is not None
            keys.append(dice.key.clone())
            return super().__call__(x)

    certified(Smoothed(Notes()), GREY[:3], n0=32, n=64)
    every = [key for some in keys for key in some.tolist()]
    assert len(every) == len(set(every)) == 3 * 96
    # With n0 = n the same draws would give the chosen side more than half of the votes always.
    found = counted(Smoothed(Classifier(Line()), 0.3), GREY, IDS, n0=25, n=25)
    assert 0.4 < float((found.hits > 12).double().mean()) < 0.6


def test_votes_do_not_depend_on_batch_or_neighbours() -> None:
    victim = load(f"{BASE}+smoothed(sigma=0.3)")
    whole = counted(victim, DATA.images, DATA.ids, n0=20, n=150)
    assert whole.votes.sum(1).tolist() == [150] * 12
    for rows, batch in ((slice(0, 5), None), (slice(5, 12), 8), (slice(3, 4), 1000)):
        part = counted(victim, DATA.images[rows], DATA.ids[rows], n0=20, n=150, batch=batch)
        assert torch.equal(part.votes, whole.votes[rows])
        assert torch.equal(part.chosen, whole.chosen[rows])
    other = counted(victim, DATA.images, DATA.ids, n0=20, n=150, seed=1)
    assert not torch.equal(other.votes, whole.votes)
    assert not torch.equal(
        counted(victim, DATA.images, DATA.ids + 100, n0=20, n=150).votes, whole.votes
    )


def test_votes_are_those_of_a_plain_loop() -> None:
    victim = load(f"{BASE}+smoothed(sigma=0.3)")
    found = counted(victim, DATA.images[:3], DATA.ids[:3], n0=20, n=40)
    single, dice = load(f"{BASE}+gaussian_noise(sigma=0.3)"), Dice.throw(0, DATA.ids[:3])
    drawn = dice.of("certify").of("estimate")
    votes = torch.zeros(3, 10, dtype=torch.int64)
    with single.held(), torch.no_grad():
        for number in range(40):
            own = drawn.counted(torch.full((3,), number))
            votes[torch.arange(3), single(DATA.images[:3], own).argmax(1)] += 1
    assert torch.equal(found.votes, votes)


def test_the_network_votes_in_evaluation_mode_and_in_full_precision() -> None:
    norm2d = nn.BatchNorm2d(1)
    net = nn.Sequential(norm2d, nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 32), nn.Linear(32, 10))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for part in net.modules():
            if isinstance(part, nn.Linear):
                nn.init.normal_(part.weight)
    victim = Smoothed(Classifier(net.eval()), 0.5)
    asked = (DATA.images, DATA.ids)
    usual = counted(victim, *asked, n=300)
    before = str(norm2d.state_dict())
    net.train()
    assert torch.equal(counted(victim, *asked, n=300).votes, usual.votes)
    assert net[1].training and str(norm2d.state_dict()) == before
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        assert torch.equal(counted(victim, *asked, n=300).votes, usual.votes)


def test_the_unit_of_a_vote_decides_the_radius() -> None:
    net = Classifier(Line(), box=(0.0, 2.0))
    cases: list[tuple[Victim, float]] = [
        (Smoothed(net, 0.3), 0.6),
        (Defended(net, GaussianNoise(0.3), BitDepth(3)), 0.6),
        (Smoothed(Defended(net, BitDepth(3)), 0.3), 0.6),
        (Defended(net, RandMix(sigma=0.1)), 0.2 / math.sqrt(2)),
        # One vote is the mean of ten draws: it sees 20 copies.
        (Pooled(Defended(net, RandMix(sigma=0.1)), 10), 0.2 / math.sqrt(20)),
        (Pooled(Defended(net, GaussianNoise(0.3)), 4, "votes"), 0.3),
    ]
    for victim, sigma in cases:
        assert voter(victim).sigma == pytest.approx(sigma, rel=1e-12)


def test_randmix_is_certified_by_the_pair_of_its_copies() -> None:
    images = DATA.images[:4]
    victim = load(f"{BASE}+randmix(sigma=0.05)")
    found = certified(victim, images, ids=DATA.ids[:4], n0=20, n=200)
    votes = counted(victim, images, DATA.ids[:4], n0=20, n=200)
    low = lower_bound(votes.hits.numpy(), 200)
    wanted = np.where(low > 0.5, 0.05 / math.sqrt(2) * norm.ppf(low), 0)
    assert found.radius == pytest.approx(wanted, abs=1e-9) and found.radius.max() > 0.02
    assert found.deviations == (0.05, 0.05)


def test_progress_reaches_the_end() -> None:
    told: list[tuple[int, int]] = []
    tick = lambda done, total: told.append((done, total))  # noqa: E731  # a list's method
    certified(
        f"{BASE}+smoothed", DATA.images[:3], ids=DATA.ids[:3], n0=10, n=20, batch=8, tick=tick
    )
    assert told[-1] == (90, 90) and [done for done, _ in told] == sorted({d for d, _ in told})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"n": 9}, "it takes 10 votes"),
        ({"n": 1, "alpha": 0.5}, "it takes 2 votes"),
        ({"n": 0}, "whole one from 1"),
        ({"n0": 0}, "whole one from 1"),
        ({"n": 2.5}, "whole one from 1"),
        ({"alpha": 0}, "between 0 and 1"),
        ({"alpha": 1.0}, "between 0 and 1"),
        ({"alpha": -0.1}, "between 0 and 1"),
        ({"labels": [1, 2]}, "labels"),
        ({"labels": [0, 1, 99]}, "classes are whole numbers"),
        ({"ids": [1, 1, 2]}, "not unique"),
        ({"victim": BASE}, r"Write 'zoo:digits-natural\+smoothed\(sigma=0.25\)'"),
        ({"victim": f"{BASE}+bits+gaussian_noise"}, "first that the image passes"),
        ({"victim": f"{BASE}+jitter+pooled"}, "first that the image passes"),
        ({"victim": f"{BASE}+randmix(sigma=0)"}, "first that the image passes"),
    ],
)
def test_what_is_refused(given: dict[str, Any], said: str) -> None:
    asked = {"victim": f"{BASE}+smoothed", "images": DATA.images[:3], "n": 100, **given}
    with pytest.raises(BesiegeError, match=said):
        certified(**asked)


def test_ten_votes_are_enough_to_certify_something() -> None:
    found = certified(Smoothed(Constant(), 0.25), GREY[:2], n=10)
    assert (found.radius > 0).all() and found.radius.max() < 0.001


@pytest.mark.slow
def test_no_attack_breaks_what_is_certified() -> None:
    """Accuracy under attack is above the certified curve at every radius, image by image."""
    train_on = besiege.data.load("digits", "train")
    plan = recipe("gaussian(epochs=10)", "digits")
    net, _ = build("digits_mlp", train_on, 0, plan.layers)
    train(net, train_on, plan)
    some = besiege.data.load("digits", "test", count=60)
    found = certified(Smoothed(net, 0.25), some.images, some.labels, ids=some.ids, n=4000)
    curve = found.accuracy()
    # Deployed with many draws, attacked with fewer: each answer of the attack is a mean over 100.
    deployed, attacked = Smoothed(net, 0.25, 1000), Smoothed(net, 0.25, 11)
    left = []
    for radius in (0.1, 0.25, 0.4, 0.55, 0.7):
        crafted = besiege.attack(
            "averaged(pgd(steps=8), 100)",
            attacked,
            some.images,
            some.labels,
            ids=some.ids,
            threat=f"l2:{radius}",
            keep="last",
            leave="end",
        )
        with deployed.held(), torch.no_grad():
            answer = deployed(crafted.images, Dice.throw(7, some.ids)).argmax(1)
        broken = ((answer != some.labels) & (answer != 10)).numpy()
        assert not (broken & found.right & (found.radius >= radius)).any()
        left.append(float((found.right & ~broken).mean()))
        assert left[-1] >= curve.at(radius)
    # It is an attack: with noise alone in its place most images would be left.
    assert left[-1] < left[0] - 0.3 and curve.at(0.25) > 0.5

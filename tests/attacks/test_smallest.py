"""Every attack that looks for the smallest change, on affine victims, whose smallest is known."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy, deepcopy

import numpy as np
import pytest
import torch
from tests.victims import affine, saturated
from torch import Tensor, nn

from besiege.attacks import parse
from besiege.attacks.radii import Closing
from besiege.attacks.suites import suite
from besiege.core.answer import Answer
from besiege.core.ball import ball
from besiege.core.errors import AttackError, ThreatError
from besiege.core.samples import Samples
from besiege.core.threat import L0, L1, L2, Linf, Norm, Threat
from besiege.evaluation import craft
from besiege.models.classifier import Classifier
from besiege.testing.victims import Linear, digits, images_of, natural, scaled

SHAPES = ((1, 6, 7), (3, 8, 8), (1, 1, 30))

# The minimum over runs steered to each class: which class is nearest is not what is tested here.
TIGHT = [
    ("each_target(ddn)", L2, 1.005),
    ("each_target(fmn)", L2, 1.005),
    ("each_target(fmn)", Linf, 1.005),
    ("each_target(fmn)", L1, 1.005),
    ("each_target(deepfool)", L2, 1.0201),
    ("each_target(deepfool)", Linf, 1.0201),
    ("each_target(superdeepfool)", L2, 1.02),
    ("fabt", L2, 1.01),
    ("fabt", Linf, 1.01),
    ("fabt", L1, 1.01),
    ("each_target(cw)", L2, 1.02),
]


def ratio(text: str, victim: Linear, samples: Samples, norm: Norm, scale: float = 1.0) -> Tensor:
    found = craft(scaled(victim, scale), parse(text), samples, Threat(norm, None))
    assert found.success.all()
    return found.distance / torch.from_numpy(victim.distance(norm, samples.images, samples.labels))


@pytest.mark.parametrize(
    ("text", "norm", "factor"),
    # The last has its own test of this, with fewer steps, in test_cw.py.
    [*TIGHT[:-1], pytest.param(*TIGHT[-1], marks=pytest.mark.slow)],
    ids=str,
)
@pytest.mark.parametrize(
    "share", [pytest.param(0.0, marks=pytest.mark.slow), 0.3], ids=["inside", "saturated"]
)
@pytest.mark.parametrize("classes", [2, 4, pytest.param(10, marks=pytest.mark.slow)])
def test_the_smallest_change_of_an_affine_victim(
    text: str, norm: Norm, factor: float, share: float, classes: int
) -> None:
    victim = Linear(SHAPES[0], classes)
    found = ratio(text, victim, saturated(victim, 12, share), norm)
    assert found.min() > 1 - 1e-4 and found.max() < factor


@pytest.mark.slow
@pytest.mark.parametrize(("text", "norm", "factor"), TIGHT, ids=str)
@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "share", [pytest.param(0.0, marks=pytest.mark.slow), 0.3], ids=["inside", "saturated"]
)
def test_shapes_batches_and_scales(
    text: str, norm: Norm, factor: float, scale: float, shape: tuple[int, int, int], share: float
) -> None:
    if norm is L1 and "fmn" in text and shape == SHAPES[1]:
        factor = 1.015  # a hundred steps do not carry the whole change to so few entries
    for rows in (1, 7, 40):
        victim = Linear(shape, 10, seed=rows)
        found = ratio(text, victim, saturated(victim, rows, share), norm, scale)
        assert found.min() > 1 - 1e-4 and found.max() < factor


def test_ddn_with_cross_entropy_mixes_classes() -> None:
    """Five hundredths at the median: its direction is a mean over all wrong classes."""
    victim = Linear((1, 8, 8), 6)
    found = ratio("ddn(loss=cross_entropy)", victim, saturated(victim, 48, 0.0), L2)
    assert 1 - 1e-4 < found.median() < 1.05


@pytest.mark.parametrize("norm", [L2, L1, Linf], ids=str)
@pytest.mark.parametrize(
    "share", [pytest.param(0.0, marks=pytest.mark.slow), 0.3], ids=["inside", "saturated"]
)
@pytest.mark.parametrize("seeds", [(0, 1), pytest.param(range(2, 8), marks=pytest.mark.slow)])
def test_fmn_crosses_where_its_guess_lands_on_the_boundary(
    norm: Norm, share: float, seeds: Iterable[int]
) -> None:
    for seed in seeds:
        victim = Linear((1, 8, 8), 6, seed)
        samples = saturated(victim, 4, share, seed)
        assert craft(victim, parse("fmn"), samples, Threat(norm, None)).success.all()


def test_fmn_counts_entries_in_l0() -> None:
    victim = Linear((1, 6, 7), 5)
    samples = saturated(victim, 16, 0.0)
    found = craft(victim, parse("each_target(fmn)"), samples, Threat(L0, None))
    known = victim.distance(L0, samples.images, samples.labels)
    changed = (found.images != samples.images).flatten(1).sum(1)
    assert found.success.all() and torch.equal(changed.double(), found.distance)
    assert (found.distance.numpy() >= known).all()
    assert np.median(found.distance.numpy() / known) <= 1.5


def test_a_radius_falls_beyond_the_boundary_and_rises_before() -> None:
    """A few steps reach a distance that twenty halvings of five hundredths would not."""
    victim = Linear((1, 6, 7), 3)
    samples = saturated(victim, 16, 0.0)
    known = torch.from_numpy(victim.distance(L2, samples.images, samples.labels))
    near = known < 0.2
    assert near.any()
    found = craft(victim, parse("ddn(steps=20)"), samples, Threat(L2, None))
    assert (found.distance / known)[near].median() < 1.5


def test_within_a_budget_the_first_success_is_enough() -> None:
    victim = natural()
    images = images_of((1, 8, 8), 24)
    samples = Samples.of(images, victim(images).argmax(1))
    for text in ("ddn", "fmn"):
        free = craft(victim, parse(text), samples, Threat.parse("l2"))
        eps = float(free.distance.median())
        held = craft(victim, parse(text), samples, Threat(L2, eps))
        assert torch.equal(held.success, free.distance <= eps)
        assert (held.backwards < free.backwards)[held.success].float().mean() > 0.5


@pytest.mark.parametrize("norm", [pytest.param(L2, marks=pytest.mark.slow), Linf, L1, L0], ids=str)
def test_the_suite_minimum_keeps_to_a_thousand_passes(norm: Norm) -> None:
    victim, samples = natural(), digits(12)
    spent, found = torch.zeros(len(samples)), list[Tensor]()
    for text in suite("minimum").attacks_for(norm):
        crafted = craft(victim, parse(text), samples, Threat(norm, None))
        spent = spent + crafted.forwards + crafted.backwards
        found.append(crafted.distance)
    assert spent.max() <= 1050  # each pays its own clean check
    best = torch.stack(found).amin(0)
    assert torch.isfinite(best).all()
    # None of them is idle: somebody else's distance is beaten by each, or equalled.
    for one in found:
        assert (one <= 1.2 * best).float().mean() > 0.3


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("ddn(radius=decoupled(1.5))", "share"),
        ("ddn(radius=decoupled(0.1, first=0))", "first"),
        ("fmn(radius=bracketing(0.05, 1))", "last"),
        ("fmn(schedule=falling(0.1, 1))", "fall"),
    ],
)
def test_radii_and_steps_that_make_no_sense_are_refused(text: str, wrong: str) -> None:
    with pytest.raises(AttackError, match=wrong):
        parse(text)


def test_a_published_form_can_be_written() -> None:
    text = (
        "ddn(loss=cross_entropy, schedule=falling(1, 0.01), radius=decoupled(0.05, gallop=False))"
    )
    attack = parse(text)
    assert parse(str(attack)) == attack
    victim = natural()
    found = craft(victim, attack, digits(8), Threat(L2, None))
    assert found.success.all()


class Flat(nn.Module):
    """No slope around the clean image; beyond it the second class rises."""

    def forward(self, x: Tensor) -> Tensor:
        far = (x - 0.5).flatten(1).norm(dim=1)
        rise = (far - 0.4).clamp_min(0.0)
        return torch.stack((torch.full_like(rise, 0.1), rise), 1)


@pytest.mark.parametrize("text", ["ddn", "fmn"])
def test_where_there_is_no_slope_a_random_way_is_taken(text: str) -> None:
    samples = Samples.of(torch.full((3, 1, 5, 5), 0.5), torch.zeros(3).long())
    found = craft(Classifier(Flat()), parse(text), samples, Threat(L2, None))
    assert found.success.all() and (found.distance < 0.6).all()


def tied(height: float) -> tuple[Classifier, Samples]:
    """Images exactly on the boundary, which the victim sees as the first class: it wins ties.

    The heights are exact in binary, whatever order they are summed in.
    """
    draw = torch.Generator().manual_seed(1)
    weight = torch.randint(-8, 9, (3, 42), generator=draw).float() / 8
    image = torch.randint(1, 8, (1, 42), generator=draw).float() / 8
    bias = height - (image @ weight.T)[0] - torch.tensor([0.0, 0.0, 4.0])
    victim, x = affine(weight, bias), image.view(1, 1, 6, 7)
    assert (victim(x)[0, :2] == height).all()
    return victim, Samples.of(x, torch.tensor([0]))


@pytest.mark.parametrize("height", [pytest.param(0.0, marks=pytest.mark.slow), 2.5])
@pytest.mark.parametrize(
    ("text", "norms"),
    [
        ("fmn", (L2, Linf, L1)),
        ("ddn", (L2,)),
        ("deepfool", (L2, Linf)),
        ("cw", (L2, Linf)),
        ("cw(rounds=4, steps=400, compat=True)", (L2,)),
        pytest.param("each_target(cw)", (L2,), marks=pytest.mark.slow),
        ("optmargin(copies=1)", (L2,)),
        ("ead", (L1,)),
        pytest.param("ead", (L2,), marks=pytest.mark.slow),
        pytest.param("ead(rule='en')", (L2,), marks=pytest.mark.slow),
        ("blb", (L2,)),
        ("alma", (L2, L1)),
    ],
    ids=str,
)
def test_an_exact_tie_is_left_by_a_hair(text: str, norms: tuple[Norm, ...], height: float) -> None:
    victim, samples = tied(height)
    for norm in norms:
        found = craft(victim, parse(text), samples, Threat(norm, None))
        assert found.success.all() and float(found.distance) < 1e-3


def test_a_tie_is_left_in_l0_too() -> None:
    victim, samples = tied(2.5)
    for text in ("fmn", "cw"):
        found = craft(victim, parse(text), samples, Threat(L0, None))
        assert found.distance.tolist() == [1.0]


@pytest.mark.parametrize(
    "text",
    [
        "ddn(steps=20)",
        "cw(rounds=3, steps=20)",
        "blb(weights=3)",
        "alma(steps=30)",
        "deepfool",
        "fab(steps=30)",
    ],
)
def test_the_caller_chooses_what_is_kept(text: str) -> None:
    """Without a budget the smallest by default; and nobody leaves in any case."""
    victim, samples = natural(), digits(12)
    small, said, first, last = (
        craft(victim, parse(text), samples, Threat(L2, None), keep=keep, leave="end")
        for keep in (None, "smallest", "first", "last")
    )
    assert torch.equal(small.images, said.images)
    assert (first.distance >= small.distance).all() and not torch.equal(first.images, small.images)
    assert not torch.equal(last.images, small.images) and not torch.equal(last.images, first.images)
    assert torch.equal(first.backwards, small.backwards)


def test_published_cw_is_refused_where_it_was_not_published() -> None:
    victim = Linear(SHAPES[0], 3)
    samples = saturated(victim, 4, 0.0)
    with pytest.raises(ThreatError, match="l2"):
        craft(victim, parse("cw(compat=True)"), samples, Threat(Linf, None))


def test_where_nothing_was_found_the_descent_says_so() -> None:
    victim = affine(torch.zeros(2, 4), torch.tensor([3.0, 0.0]))
    samples = Samples.of(images_of((1, 2, 2), 3), torch.zeros(3).long())
    found = craft(victim, parse("ddn(steps=3)"), samples, Threat(L2, None))
    assert not found.success.any()
    assert found.descent is not None and torch.isinf(found.descent).all()


@pytest.mark.parametrize("text", ["superdeepfool", "superdeepfool(stop=True, search=10)", "fab"])
def test_successes_hold_alone_and_in_float64(text: str) -> None:
    victim, samples = natural(), digits(64)
    found = craft(victim, parse(text), samples, Threat(L2, None))
    double = copy(victim)
    double.module = deepcopy(victim.module).double()
    with victim.held(), torch.no_grad():
        alone = torch.cat([victim(one) for one in torch.split(found.images, 1)]).argmax(1)
        twice = double(found.images).argmax(1)
    assert not (found.success & (alone == samples.labels)).any()
    assert not (found.success & (twice == samples.labels)).any()


def test_ddn_loses_no_row_badly_to_its_published_form() -> None:
    victim, samples = natural(), digits(60)
    published = parse("ddn(loss=cross_entropy, radius=decoupled(0.05, gallop=False))")
    theirs, ours = (
        craft(victim, attack, samples, Threat(L2, None)).distance
        for attack in (published, parse("ddn"))
    )
    right = theirs > 0
    ratio = ours[right] / theirs[right]
    assert float(ratio.max()) < 1.2 and float(ratio.log().mean()) < 0.0


def test_steps_of_fmn_in_linf_are_as_long_as_the_ball_is_large() -> None:
    there = ball(Linf, torch.zeros(2, 1, 2, 2), torch.tensor([0.1, 0.2]).double())
    nothing = Answer(torch.zeros(2, dtype=torch.bool), torch.zeros(2, dtype=torch.int64))
    size = Closing(4.0, 1.0).next(0, 10, there, there.center, nothing, ())[0]
    assert size.tolist() == pytest.approx([0.8, 1.6])
    square = ball(L2, torch.zeros(2, 1, 2, 2), torch.tensor([0.1, 0.2]).double())
    size = Closing(4.0, 1.0, width=0.25).next(0, 10, square, square.center, nothing, ())[0]
    assert size.tolist() == [1.0, 1.0]

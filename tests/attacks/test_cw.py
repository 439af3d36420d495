"""Carlini and Wagner's attacks against closed forms, and the traps of other implementations."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tests.victims import Curve, Spy, affine, normal, saturated, siege, smallest, uniform
from torch import Tensor

from besiege.attacks import cw_norms, planes
from besiege.attacks.attack import parse, spelled
from besiege.attacks.combine import EachTarget
from besiege.attacks.cw import CW
from besiege.attacks.planes import steering, toward
from besiege.attacks.weighting import (
    UNSET,
    Adam,
    Clip,
    Tanh,
    Weights,
    corrections,
    floors,
    short,
)
from besiege.core.answer import Aim, Answer
from besiege.core.ball import ball
from besiege.core.errors import AttackError
from besiege.core.samples import Samples
from besiege.core.siege import Siege
from besiege.core.threat import L0, L2, Goal, Linf, Norm, Threat
from besiege.evaluation import craft
from besiege.models.classifier import Classifier
from besiege.testing.victims import Linear, digits, images_of, natural, scaled, untrained

SHAPE = (1, 6, 7)
SHORT = CW(rounds=9, steps=20)


def data(victim: Classifier, shape: tuple[int, int, int] = SHAPE, rows: int = 12) -> Samples:
    images = images_of(shape, rows)
    return Samples.of(images, victim(images).argmax(1))


# the search over the weight


def test_the_weight_is_searched_row_by_row() -> None:
    weights = Weights.of(4, 0.5)
    seen = []
    for won in ("1000", "1010", "1100"):
        weights = weights.after(torch.tensor([letter == "1" for letter in won]))
        seen.append(weights.c.tolist())
    # Always lower; ten times until the first success; then between.
    assert seen == [[0.25, 5, 5, 5], [0.125, 50, 2.75, 50], [0.0625, 27.5, 3.875, 500]]
    assert weights.high.tolist() == [0.125, 50, 5, UNSET]
    assert weights.low.tolist() == [0, 5, 2.75, 50]


def test_a_weight_never_grows_beyond_the_open_end() -> None:
    weights = Weights.of(1, 1.0)
    for _ in range(40):
        weights = weights.after(torch.tensor([False]))
    assert weights.c.item() == UNSET


def followed(attack: CW, victim: Any, samples: Samples, **more: Any) -> list[tuple[Any, Any]]:
    """Which rows won each search, and the weights before and after: one entry per step."""
    noted = []
    after = Weights.after

    def spy(weights: Weights, won: Tensor) -> Weights:
        found = after(weights, won)
        noted.append((weights.c.clone(), won.clone()))
        return found

    with patch.object(Weights, "after", spy):
        smallest(victim, attack, samples, L2, **more)
    return noted


def test_weights_differ_between_rows_and_success_is_that_of_the_round() -> None:
    """A success of an earlier round must not lower a weight that has just failed."""
    noted = followed(CW(rounds=6, steps=10, abort=False), natural(), digits(24), leave="end")
    ends = noted[9::10]
    assert len(ends) == 6
    assert len(ends[-1][0].unique()) > 4
    earlier = torch.zeros_like(ends[0][1])
    lost = 0
    for (c, won), (following, _) in pairwise(ends):
        failed = earlier & ~won
        lost += int(failed.sum())
        assert (following[~won] > c[~won]).all()
        assert (following[won] < c[won]).all()
        earlier |= won
    assert lost > 3


def test_a_row_that_stands_still_goes_on_to_its_next_weight_alone() -> None:
    victim = natural()
    samples = digits(24)
    long = smallest(victim, CW(abort=False, rounds=5, steps=40), samples, L2)
    early = smallest(victim, CW(rounds=5, steps=40), samples, L2)
    asked = early.backwards[early.backwards > 0]
    assert (long.backwards[early.backwards > 0] == 200).all()
    assert asked.max() <= 200 and asked.float().mean() < 150 and len(set(asked.tolist())) > 2
    assert early.distance.median() < 1.05 * long.distance.median()


@pytest.mark.parametrize("compat", [False, True])
def test_a_round_that_ends_leaves_the_rounds_of_other_rows_alone(compat: bool) -> None:
    """Rounds end at different steps: whatever is reset there is one row's own."""
    attack = CW(rounds=4, steps=30, first=1, rate=0.1 if compat else None, compat=compat)
    samples = digits(12)
    together = smallest(natural(), attack, samples, L2)
    assert len(set(together.backwards.tolist())) > 3
    for row in range(len(samples)):
        alone = smallest(natural(), attack, samples.at(torch.tensor([row])), L2)
        assert torch.equal(alone.images[0], together.images[row])
        assert alone.backwards[0] == together.backwards[row]


# closed forms


@pytest.mark.parametrize("shape", [SHAPE, pytest.param((3, 8, 8), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize(
    "share", [pytest.param(0.0, marks=pytest.mark.slow), 0.3], ids=["inside", "saturated"]
)
def test_the_smallest_change_of_an_affine_victim(
    shape: tuple[int, int, int], share: float, classes: int
) -> None:
    victim = Linear(shape, classes)
    samples = saturated(victim, 8, share)
    known = victim.distance(L2, samples.images, samples.labels)
    terms = {"keep": "smallest", "leave": "end"}
    found = smallest(victim, EachTarget(SHORT), samples, L2, **terms)
    ratio = found.distance.numpy() / known
    assert ratio.min() > 1 - 1e-4 and ratio.max() < 1.025
    if classes == 2:  # in linf and l0 too
        for norm, most in ((Linf, 1.03), (L0, 3.0)):
            known = victim.distance(norm, samples.images, samples.labels)
            ratio = smallest(victim, SHORT, samples, norm).distance.numpy() / known
            assert ratio.min() > 1 - 1e-4 and ratio.max() < most
            assert norm is Linf or ratio.mean() < 1.3


@pytest.mark.parametrize("norm", [L2, Linf, L0], ids=str)
def test_the_scale_of_the_logits_does_not_matter(norm: Norm) -> None:
    victim = Linear(SHAPE, 10)
    samples = saturated(victim, 8, 0.3)
    plain, *others = (
        smallest(scaled(victim, times), CW(rounds=5, steps=20), samples, norm).distance
        for times in (1.0, 0.01, 100.0, 2.0**-12)
    )
    for other in others:  # long first steps in linf: rounding may end elsewhere
        assert torch.allclose(other, plain, rtol=2e-2 if norm is Linf else 1e-2)
    assert torch.equal(others[-1], plain)


@pytest.mark.slow
def test_as_published_the_scale_matters_and_the_closed_form_is_reached() -> None:
    victim = Linear(SHAPE, 2)
    samples = saturated(victim, 6, 0.0)
    known = victim.distance(L2, samples.images, samples.labels)
    attack = CW(rounds=6, steps=400, first=0.1, rate=0.005, compat=True)
    ratio = smallest(victim, attack, samples, L2).distance.numpy() / known
    assert ratio.max() < 1.02
    blunt = smallest(scaled(victim, 1e-3), CW(rounds=2, steps=50, compat=True), samples, L2)
    assert not blunt.success.any()


# the variable


def test_saturated_pixels_move() -> None:
    """Only they can: all others have no weight."""
    weight = torch.zeros(2, 42)
    weight[1, :10] = 1.0
    victim = affine(weight, torch.tensor([0.0, -8.5]))
    x = 0.2 + 0.6 * images_of(SHAPE, 4)
    x.flatten(1)[:, :10] = 1.0
    samples = Samples.of(x, torch.ones(4).long())
    tanh = CW(rounds=3, steps=200, first=1, rate=0.1, abort=False, compat=True)
    for attack, most in ((SHORT, 1.02), (tanh, 1.3)):
        found = smallest(victim, attack, samples, L2)
        assert found.success.all() and torch.isfinite(found.images).all()
        assert (found.distance < most * 1.5 / 10**0.5).all()
        if not attack.compat:
            assert torch.equal(found.images.flatten(1)[:, 10:], x.flatten(1)[:, 10:])


def test_the_tanh_is_where_the_image_is_and_has_a_slope_everywhere() -> None:
    x = torch.tensor([0.0, 0.25, 0.5, 1.0]).view(1, 1, 1, 4) * 3 - 1
    there = ball(L2, x, torch.inf, (-1.0, 2.0))
    w = Tanh().of(there, x).requires_grad_()
    assert torch.isfinite(w).all()
    image = (torch.tanh(w) * 1.5 + 0.5).clamp(-1, 2)
    assert torch.allclose(Tanh().image(there, w), x, atol=3e-6)
    g = normal(1, 1, 1, 4)
    (expected,) = torch.autograd.grad((image * g).sum(), w)
    pulled = Tanh().pull(there, w.detach(), g)
    assert torch.allclose(pulled, expected, rtol=1e-4) and (pulled != 0).all()
    assert torch.equal(Clip().land(there, torch.full_like(x, 9.0)), torch.full_like(x, 2.0))


def test_adam_is_torchs() -> None:
    decays = (0.9, 0.999)
    table = corrections(decays, 20, torch.device("cpu"))
    start = normal(3, 1, 2, 2)
    theirs = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([theirs], lr=0.1, betas=decays, eps=0.0)
    ours, adam = start.clone(), Adam.at(start)
    for turn in range(20):
        g = normal(3, 1, 2, 2, seed=turn)
        theirs.grad = g.clone()
        optimizer.step()
        adam, move = adam.step(g, decays, table)
        ours -= 0.1 * move
    assert torch.allclose(ours, theirs.detach(), atol=1e-5)
    rested = adam.rested(torch.tensor([True, False, False]))
    assert rested.made.tolist() == [0, 20, 20] and rested.mean[0].abs().max() == 0


# steering


def test_the_hinge_of_each_steering() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.5], [0.0, 4.0, 1.0]])
    labels, targets = torch.tensor([0, 0]), torch.tensor([1, 2])
    victim = Linear(SHAPE, 3)
    x = images_of(SHAPE, 2)
    free = siege(victim, x, labels, norm=L2)
    strict = siege(victim, x, labels, norm=L2, targets=targets)
    steered = free.view(aim=targets)
    leads = [
        steering(laid)(logits, aim).tolist()
        for laid, aim in (
            (free, Aim(labels)),
            (steered, Aim(labels, targets)),
            (strict, Aim(labels, targets)),
        )
    ]
    assert leads == [[-0.5, 4.0], [-2.0, 1.0], [-2.0, -3.0]]
    answer = Answer(torch.zeros(2).bool(), logits.argmax(1), loss=torch.tensor(leads[0]))
    assert short(free, answer, 1.0).tolist() == [1.5, 0.0]
    # Nobody leads, and yet only the second row is where it should be.
    tied = Answer(torch.zeros(2).bool(), torch.tensor([0, 1]), loss=torch.zeros(2))
    assert (short(free, tied, 0.0) > 0).tolist() == [True, False]


def test_all_logits_below_zero() -> None:
    """A class masked by zero instead of minus infinity would win here."""
    weight = normal(5, 42)
    victim = affine(weight, -0.5 * weight.sum(1) - 50.0)
    samples = data(victim, rows=8)
    assert victim(samples.images).max() < 0
    found = smallest(victim, SHORT, samples, L2)
    other = smallest(affine(weight, -0.5 * weight.sum(1)), SHORT, samples, L2)
    assert found.success.all()
    assert torch.allclose(found.distance, other.distance, rtol=1e-2)


def test_a_strict_target_is_the_class_answered() -> None:
    victim = untrained((1, 8, 8), 6)
    samples = data(victim, (1, 8, 8), 16)
    targets = (samples.labels + 1 + samples.ids % 5) % 6
    aimed = Samples(samples.images, samples.labels, samples.ids, targets)
    for norm in (L2, Linf, L0):
        strict = craft(victim, SHORT, aimed, Threat(norm, None, Goal.GIVEN))
        assert strict.success.double().mean() > 0.9
        answered = victim(strict.images[strict.success]).argmax(1)
        assert torch.equal(answered, targets[strict.success])


@pytest.mark.parametrize("attack", ["cw", "ead", "zoo"])
@pytest.mark.parametrize("compat", [True, False])
def test_an_aimed_class_is_approached_as_published(attack: str, compat: bool) -> None:
    """Towards an aimed class too, only our own form demands a lead that rounding keeps."""
    losses: list[Any] = []

    def noted(name: str) -> Any:
        usual = getattr(Siege, name)

        def ask(self: Siege, *given: Any, **named: Any) -> Answer:
            found = [one for one in (*given, *named.values()) if callable(one)]
            losses.extend(one for one in found if "toward" in getattr(one, "__name__", ""))
            answer: Answer = usual(self, *given, **named)
            return answer

        return patch.object(Siege, name, ask)

    text = f"each_target({attack}(rounds=1, steps=2, compat={compat}), 2)"
    with noted("gradient"), noted("logits"):
        smallest(natural(), parse(text), digits(4), L2)
    assert set(losses) == {toward if compat else planes._sure_toward}


@pytest.mark.parametrize("norm", [L2, Linf, L0], ids=str)
def test_a_short_run_finds_every_row(norm: Norm) -> None:
    victim = untrained((3, 8, 8), 10)
    for of, samples in ((victim, data(victim, (3, 8, 8), 6)), (natural(), digits(6))):
        short = smallest(of, parse("cw(rounds=3, steps=15)"), samples, norm)
        assert short.success.all()
        if norm is Linf:
            assert smallest(of, parse("cw(rounds=1, steps=15)"), samples, norm).success.all()
            usual = smallest(of, parse("cw(steps=20)"), samples, norm)
            assert (short.distance <= 1.25 * usual.distance).all()


def test_the_tanh_of_a_row_does_not_depend_on_its_neighbours() -> None:
    x = uniform(40, 1, 5, 7)
    there = ball(L2, x, 1.0)
    whole = Tanh().of(there, x)
    assert torch.allclose(Tanh().image(there, whole), x, atol=2e-6)
    for row in range(40):
        assert torch.equal(Tanh().of(there, x[row : row + 1]), whole[row : row + 1])


# confidence


@pytest.mark.parametrize("norm", [L2, Linf, L0], ids=str)
def test_what_is_kept_is_as_sure_as_wanted_and_not_surer(norm: Norm) -> None:
    victim, samples = natural(), digits(24)
    sure = smallest(victim, CW(rounds=6, steps=30, kappa=4.0), samples, norm)
    plain = smallest(victim, CW(rounds=6, steps=30), samples, norm)
    rows = sure.success & (sure.distance > 0)
    assert int(rows.sum()) > 15
    z = victim(sure.images[rows]).detach()
    own = samples.labels[rows][:, None]
    lead = z.scatter(1, own, -torch.inf).amax(1) - z.gather(1, own)[:, 0]
    assert lead.min() >= 4.0 - 1e-4
    assert norm is L0 or lead.median() < 5.0
    assert sure.distance[rows].mean() > plain.distance[rows].mean()
    # The clean check, the steps, and what was nearer than before, of which there is less and less.
    offers = (sure.forwards - sure.backwards - 1)[rows]
    assert offers.min() >= 1 and offers.double().mean() < (12 if norm is L2 else 5)


def test_points_that_are_not_sure_enough_cost_nothing_more() -> None:
    victim, samples = natural(), digits(8)
    never = smallest(victim, CW(rounds=2, steps=10, kappa=1e6, abort=False), samples, L2)
    rows = never.backwards > 0
    assert not never.success[rows].any() and torch.equal(never.images[rows], samples.images[rows])
    assert (never.forwards[rows] == 21).all()


@pytest.mark.parametrize("norm", [L2, Linf, L0], ids=str)
def test_a_limit_on_queries_takes_no_success_back(norm: Norm) -> None:
    """Whoever was sure enough before the queries ended is kept, at the cost of one of them."""
    victim, samples = natural(), digits(16)
    attack = CW(rounds=2, steps=300, kappa=2.0)
    found = [smallest(victim, attack, samples, norm, queries=n) for n in (9, 17, 18, 40)]
    assert int(found[1].success.sum()) > 11
    for fewer, more in pairwise(found):
        assert not (fewer.success & ~more.success).any()
        z = victim(more.images[more.success]).detach()
        own = samples.labels[more.success][:, None]
        lead = z.scatter(1, own, -torch.inf).amax(1) - z.gather(1, own)[:, 0]
        clean = more.distance[more.success] == 0
        assert (clean | (lead >= 2.0 - 1e-4)).all()


# what cannot be


@pytest.mark.parametrize("norm", [L2, Linf, L0], ids=str)
def test_a_failure_returns_the_clean_image(norm: Norm) -> None:
    victim = affine(torch.tensor([[0.0] * 6, [1.0] * 6]), torch.tensor([100.0, 0.0]))
    x = images_of((1, 2, 3), 4)
    spy = Spy(victim)
    found = smallest(spy, SHORT, Samples.of(x, torch.zeros(4).long()), norm, pad=False)
    assert not found.success.any() and torch.equal(found.images, x)
    seen = torch.cat(spy.images)
    assert seen.min() >= 0 and seen.max() <= 1


@pytest.mark.parametrize("norm", [L2, Linf, L0], ids=str)
def test_without_a_slope_it_looks_elsewhere(norm: Norm) -> None:
    bends = Classifier(Curve((0.0, -1.0), (0.52, -1.0), (0.75, 0.0), (1.0, 1.0)), classes=2)
    samples = Samples.of(torch.full((16, 1, 1, 1), 0.5), torch.zeros(16).long())
    found = smallest(bends, CW(steps=40), samples, norm)
    assert found.vanished.all() and int(found.success.sum()) >= 4
    if norm is not L0:
        near = found.distance[found.success]
        assert torch.allclose(near, torch.tensor(0.25).double(), rtol=0.05)


@pytest.mark.parametrize("norm", [L2, Linf, L0], ids=str)
def test_a_boundary_nearer_than_the_grid_is_crossed(norm: Norm) -> None:
    """Steps measured by its distance would all be rounded away."""
    coarse = Classifier(natural().module, grid=1 / 16)
    samples = digits(40)
    samples = Samples.of((samples.images * 16).round() / 16, samples.labels)
    assert smallest(coarse, CW(rounds=4, steps=25), samples, norm).success.all()


# cost


def test_every_step_costs_one_forward_and_one_backward() -> None:
    victim = untrained(SHAPE, 4)
    samples = data(victim, rows=3)
    for norm in (L2, Linf, L0):
        found = smallest(victim, CW(rounds=3, steps=7, abort=False), samples, norm, pad=False)
        assert found.backwards.tolist() == [21] * 3
        assert found.forwards.tolist() == [23] * 3  # the clean check and the last point


def test_in_linf_a_level_that_fails_is_not_gone_below() -> None:
    """Otherwise the last rounds would all fail."""
    victim = Linear(SHAPE, 2)
    samples = saturated(victim, 6, 0.0)
    known = torch.from_numpy(victim.distance(Linf, samples.images, samples.labels))
    rounds = [smallest(victim, CW(rounds=n, steps=40), samples, Linf).distance for n in (3, 6, 9)]
    assert (rounds[1] <= rounds[0]).all() and (rounds[2] <= rounds[1]).all()
    assert (rounds[2] < 1.01 * known).all()


def test_in_l0_only_entries_that_are_needed_change() -> None:
    score = normal(2, 1, 3, 4).abs()
    score[0, 0, 0, 0] = 0.0
    kept = cw_norms._highest(score, torch.tensor([12.0, 3.0]))
    assert kept[0].sum() == 11 and kept[1].sum() == 3
    assert score[1][kept[1] > 0].min() > score[1][kept[1] == 0].max()
    samples = digits(24)
    few = smallest(natural(), SHORT, samples, L0)
    assert few.success.all() and few.distance.median() <= 3


# as published


def right(many: int) -> Samples:
    """Digits that are classified correctly."""
    samples = digits(24)
    good = natural()(samples.images).argmax(1) == samples.labels
    return samples.at(good.nonzero()[:many, 0])


def test_adams_epsilon_is_torchs_too() -> None:
    decays, start = (0.9, 0.999), torch.zeros(1, 1, 1, 3)
    table, least = (make(decays, 9, torch.device("cpu")) for make in (corrections, floors))
    theirs = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([theirs], lr=0.1, betas=decays)
    ours, adam = start.clone(), Adam.at(start)
    for turn in range(9):  # far below, near and far above epsilon
        g = normal(1, 1, 1, 3, seed=turn) * torch.tensor([1e-10, 1e-8, 1.0])
        theirs.grad = g.clone()
        optimizer.step()
        adam, move = adam.step(g, decays, table, least)
        ours -= 0.1 * move
    assert torch.allclose(ours, theirs.detach(), rtol=1e-5, atol=1e-9)


def test_as_published_the_first_iterate_is_checked_too() -> None:
    """A weight that is much too small: nothing improves, and every round ends at its check."""
    victim, samples = natural(), right(6)
    attack = CW(rounds=3, steps=50, first=1e-12, compat=True)
    assert set(smallest(victim, attack, samples, L2).backwards.tolist()) == {3 * 6}
    never = replace(attack, abort=False)
    assert set(smallest(victim, never, samples, L2).backwards.tolist()) == {3 * 50}


@pytest.mark.parametrize(("rounds", "repeats"), [(9, False), (10, True)])
def test_the_last_of_many_rounds_repeats_the_smallest_weight(rounds: int, repeats: bool) -> None:
    attack = CW(rounds, 4, first=100.0, rate=0.5, abort=False, compat=True, repeat=True)
    victim, samples = natural(), right(4)
    noted = followed(attack, victim, samples)[3::4]
    won = torch.stack([won for _, won in noted[:-1]])
    tried = torch.stack([c for c, _ in noted])
    smallest_that_sufficed = tried[:-1].masked_fill(~won, UNSET).amin(0)
    assert won.any(0).all()
    assert torch.equal(tried[-1], smallest_that_sufficed) == repeats


def test_rounds_resume_where_the_last_one_ended() -> None:
    victim, samples = natural(), right(1)
    for resume in (False, True):
        spy = Spy(victim)
        attack = CW(2, 6, first=1.0, rate=0.1, abort=False, compat=True, resume=resume)
        smallest(spy, attack, samples, L2, pad=False)
        moved = [float((x - samples.images).abs().max()) for x in spy.images[1:13]]
        assert moved[0] < 1e-6 < moved[5] and (moved[6] > 1e-6) == resume


def test_saturated_pixels_move_sooner_from_a_lower_edge() -> None:
    victim, samples = natural(), right(4)
    black, moved = samples.images == 0, []
    for edge in (0.999999, 0.9999):
        spy = Spy(victim)
        attack = CW(1, 40, first=10.0, rate=0.05, abort=False, compat=True, edge=edge)
        smallest(spy, attack, samples, L2, pad=False)
        moved.append(float(spy.images[-1][black].mean()))
    assert moved[1] > 2 * moved[0] > 0


def test_only_as_published_is_another_revision() -> None:
    for name, old, new in [("cw", 2, 3), ("optmargin", 2, 3), ("ead", 1, 2), ("zoo", 1, 2)]:
        assert spelled(parse(name))["revision"] == old
        assert spelled(parse(f"{name}(compat=True)"))["revision"] == new
        assert not {"repeat", "resume", "edge", "decay", "measure"} & set(spelled(parse(name)))


# values


@pytest.mark.parametrize("text", ["cw", "cw(rounds=4, steps=25, kappa=2.5, abort=False)"])
def test_texts_read_back(text: str) -> None:
    assert str(parse(text)) == text and parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cw(steps=0)", "steps is 0"),
        ("cw(rounds=True)", "rounds is True"),
        ("cw(kappa=-1)", "kappa is -1"),
        ("cw(first=0)", "first is 0"),
        ("cw(rate=-0.1)", "rate is -0.1"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(AttackError, match=said):
        parse(text)

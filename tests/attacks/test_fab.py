"""FAB and FAB-T against closed forms, and what their steps must and must not do."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from tests.victims import Curve, Spy, affine, normal, saturated, siege, smallest
from torch import Tensor

from besiege.attacks import planes as planes_
from besiege.attacks.attack import parse
from besiege.attacks.fab import FAB, FABT
from besiege.attacks.planes import nearest, planes
from besiege.core.ball import ball, distances
from besiege.core.errors import AttackError
from besiege.core.samples import Samples
from besiege.core.siege import Siege
from besiege.core.threat import L1, L2, Goal, Linf, Norm, Threat
from besiege.evaluation import craft
from besiege.models.classifier import Classifier
from besiege.testing.victims import (
    Counting,
    Linear,
    digits,
    images_of,
    natural,
    scaled,
    untrained,
)

SHAPE = (1, 6, 7)
NORMS = (Linf, L2, L1)
EPS = {Linf: 0.02, L2: 0.2, L1: 1.2}


def data(victim: Classifier, shape: tuple[int, int, int] = SHAPE, rows: int = 12) -> Samples:
    images = images_of(shape, rows)
    return Samples.of(images, victim(images).argmax(1))


# closed forms


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize(
    "share", [pytest.param(0.0, marks=pytest.mark.slow), 0.3], ids=["inside", "saturated"]
)
@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_the_smallest_change_of_an_affine_victim(norm: Norm, share: float, classes: int) -> None:
    victim = Linear(SHAPE, classes)
    samples = saturated(victim, 24, share)
    known = victim.distance(norm, samples.images, samples.labels)
    for attack in (FAB(steps=20), FABT(steps=20)):
        found = smallest(victim, attack, samples, norm)
        assert found.success.all()
        ratio = found.distance.numpy() / known
        assert ratio.min() > 1 - 1e-4 and ratio.max() < 1.01


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_a_budget_just_above_the_distance_breaks_and_just_below_does_not(norm: Norm) -> None:
    victim = Linear(SHAPE, 5)
    samples, known = victim.equidistant(norm)
    for attack in (FAB(steps=25), FABT(steps=25, targets=4)):
        above = craft(victim, attack, samples, Threat(norm, 1.01 * float(known.max())))
        below = craft(victim, attack, samples, Threat(norm, 0.99 * float(known.min())))
        assert above.success.all() and not below.success.any()


def test_the_class_is_the_nearest_with_the_box() -> None:
    """One pixel says class 1 loudly, but has no room; the others say class 2."""
    weight = torch.zeros(3, 4)
    weight[1, 0], weight[2, 1:] = 10.0, 1.0
    victim = affine(weight, torch.tensor([0.5, -9.9, -0.5]))
    x = torch.tensor([[1.0, 0.1, 0.1, 0.1]]).view(1, 1, 2, 2)
    labels = torch.tensor([0])
    assert victim(x).argmax(1) == 0
    for norm in NORMS:
        laid = siege(victim, x, labels, 1.0, norm, survey=True)
        every = laid.gradients(x, torch.arange(3)[None])
        w, f = planes(every, labels)
        assert f[0].tolist() == pytest.approx([0.0, -0.4, -0.7], abs=1e-5)
        assert nearest(laid.ball, x, w, f, labels).tolist() == [2]
        found = smallest(victim, FAB(steps=10), Samples.of(x, labels), norm)
        known = {Linf: 0.7 / 3, L2: 0.7 / 3**0.5, L1: 0.7}[norm]
        assert float(found.distance) == pytest.approx(known, rel=5e-3)


# the scale of the logits


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("kind", [FAB, FABT])
def test_any_scale_of_the_logits_gives_the_same_distances(kind: type[FAB], norm: Norm) -> None:
    # A power of two would change no bit: these round otherwise at every step.
    for victim in (Linear(SHAPE, 5), untrained(SHAPE, 5)):
        samples = data(victim)
        plain = smallest(victim, kind(steps=6), samples, norm).distance
        assert torch.isfinite(plain).all()
        verdicts = plain <= float(plain.median())
        assert 0 < int(verdicts.sum()) < len(samples)
        for times in (1e-8, 1e-4, 1e4, 1e8):
            other = smallest(scaled(victim, times), kind(steps=6), samples, norm).distance
            assert torch.allclose(other, plain, rtol=2e-3, atol=0.0)
            eps = 1.01 * float(plain.median())
            assert torch.equal(other <= eps, plain <= eps)


# what is recorded


def test_the_kept_point_is_one_that_was_asked_and_not_the_one_stepped_back_to() -> None:
    victim = untrained(SHAPE, 4)
    samples = data(victim, rows=6)
    for norm in NORMS:
        spy = Spy(victim)
        found = smallest(spy, FABT(steps=8, search=0), samples, norm, pad=False, batch=10**6)
        asked = torch.cat([part.view(-1, 6, *SHAPE) for part in spy.images if len(part) == 6])
        wide = torch.cat([part for part in spy.images if len(part) > 6])
        same = (asked == found.images).flatten(2).all(2).any(0)
        same |= (wide[:, None] == found.images).flatten(2).all(2).any(0)
        assert same.all()
        assert (victim(found.images).argmax(1) != samples.labels).all()


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_a_step_back_is_taken_beyond_the_boundary_only(norm: Norm) -> None:
    victim = Linear(SHAPE, 2)
    samples = data(victim, rows=4)
    laid = siege(victim, samples.images, samples.labels, 1.0, norm, survey=True, leave="end")
    over = laid.ball.plane(samples.images, *wall(victim, samples)) * 1.3
    x = (samples.images + over * torch.tensor([1.0, 1.0, 0.1, 0.1]).view(-1, 1, 1, 1)).clamp(0, 1)
    told = []

    def noted(change: Tensor, size: Tensor, share: Tensor) -> Tensor:
        told.append(share.tolist())
        return type(laid.ball).retreat(laid.ball, change, size, share)

    for anneal, step, left in ((True, 0, 0.5), (True, 5, 0.75), (False, 5, 0.5)):
        view = laid.view(aim=laid.ranked()[:, 0])
        with patch.object(view.ball, "retreat", noted):
            form = FABT(steps=10, beta=0.5, anneal=anneal)
            answer = form._ask(view, x)
            beyond = view.record.reached(view.rows, answer.labels)
            assert beyond.tolist() == [True, True, False, False]
            form._step(view, x, beyond, view.ball.distance(x), answer, step)
        assert told.pop() == [left, left, 1.0, 1.0]


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_a_step_mixes_the_moves_from_here_and_from_the_clean_image(norm: Norm) -> None:
    """Written out as in the paper, for rows that did not step back."""
    victim = untrained(SHAPE, 3)
    samples = data(victim, rows=6)
    clean = samples.images
    laid = siege(victim, clean, samples.labels, 1.0, norm, survey=True, leave="end")
    view = laid.view(aim=laid.ranked()[:, 0])
    x = (clean + 0.02 * normal(6, *SHAPE)).clamp(0, 1)
    attack = FABT(steps=10, alpha_max=0.3, eta=1.2)
    answer = attack._ask(view, x)
    w, f = answer.gradient.double(), answer.loss.double()
    nobody = torch.zeros(6, dtype=torch.bool)
    found = attack._step(view, x, nobody, view.ball.distance(x), answer, 1)
    at_clean = f + (w * (clean - x)).flatten(1).sum(1)
    near, far = (view.ball.plane(p, answer.gradient, -c) for p, c in ((x, f), (clean, at_clean)))
    a, b = distances(near, norm), distances(far, norm)
    alpha = (a / (a + b)).clamp_max(0.3).view(-1, 1, 1, 1)
    assert (alpha > 0.05).all()
    expected = ((1 - alpha) * (x + 1.2 * near) + alpha * (clean + 1.2 * far)).clamp(0, 1)
    assert torch.allclose(found.double(), expected, atol=1e-5)


def wall(victim: Linear, samples: Samples) -> tuple[Tensor, Tensor]:
    """Slope and gap of the plane between two classes, for `Ball.plane`."""
    weight, y = torch.from_numpy(victim.weight).float(), samples.labels
    w = (weight[1 - y] - weight[y]).view(samples.images.shape)
    z = victim(samples.images).detach().double()
    return w, (z.gather(1, y[:, None]) - z.gather(1, 1 - y[:, None]))[:, 0]


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_a_retreat_is_the_nearest_change_of_its_size(norm: Norm) -> None:
    clean = images_of(SHAPE, 5)
    there = ball(norm, clean, torch.inf)
    change = images_of(SHAPE, 5, seed=1) - clean
    size, share = distances(change, norm), torch.tensor([0.0, 0.3, 0.9, 1.0, 0.5]).double()
    kept = there.retreat(change, size, share)
    assert torch.allclose(distances(kept, norm), share * size, rtol=1e-5, atol=1e-7)
    assert torch.equal(kept[3], change[3])
    # Nearest in l2 is the projection onto the ball, for linf and l1; in l2 it is a multiple.
    expected = there.of(share * size).confine(clean + change) - clean
    assert torch.allclose(kept, expected, atol=1e-6)
    assert ((clean + kept).clamp(0, 1) - clean - kept).abs().max() < 1e-6


# planes that are none


def test_a_plane_outside_the_box_is_followed_to_the_corner() -> None:
    """No image of the box is an error: nothing is found, nothing breaks, all stay in the box."""
    victim = affine(torch.tensor([[0.0] * 6, [1.0] * 6]), torch.tensor([100.0, 0.0]))
    x = images_of((1, 2, 3), 4)
    samples = Samples.of(x, torch.zeros(4).long())
    for norm in NORMS:
        spy = Spy(victim)
        found = smallest(spy, FABT(steps=6, restarts=2), samples, norm, pad=False)
        assert not found.success.any() and torch.isinf(found.distance).all()
        seen = torch.cat(spy.images)
        assert seen.min() >= 0 and seen.max() <= 1
        assert (spy.images[6].flatten(1) > 0.3).all()  # towards the corner
        assert torch.equal(found.images, x)


def test_pixels_without_weight_stay_exactly_as_they_are() -> None:
    weight = normal(3, 42)
    weight[:, ::3] = 0.0
    victim = affine(weight, -0.5 * weight.sum(1))
    samples = data(victim)
    for norm in NORMS:
        for attack in (FAB(steps=8), FABT(steps=8)):
            found = smallest(victim, attack, samples, norm)
            assert found.success.all()
            same = found.images.flatten(1)[:, ::3] == samples.images.flatten(1)[:, ::3]
            assert same.all()


def test_without_a_gradient_it_looks_elsewhere() -> None:
    # The clean image lies on a plateau; beyond 0.52 is a slope to the boundary at 0.75.
    bends = Classifier(Curve((0.0, -1.0), (0.52, -1.0), (0.75, 0.0), (1.0, 1.0)), classes=2)
    x = torch.full((16, 1, 1, 1), 0.5)
    samples = Samples.of(x, torch.zeros(16).long())
    found = smallest(bends, FABT(steps=40), samples, Linf)
    assert found.vanished.all()  # the first gradient
    assert int(found.success.sum()) >= 8
    assert torch.allclose(found.distance[found.success], torch.tensor(0.25).double(), rtol=0.02)


# restarts and the final search


def test_restarts_begin_at_half_the_smallest_distance_known() -> None:
    victim = Linear(SHAPE, 3)
    samples = data(victim, rows=5)
    starts: list[Tensor] = []
    known: list[Tensor] = []

    def noted(self: FAB, laid: Siege, x: Tensor) -> None:
        starts.append(laid.ball.distance(x))
        known.append(laid.distance.clone())
        run(self, laid, x)

    run = FAB._run
    for norm in NORMS:
        starts.clear()
        known.clear()
        with patch.object(FAB, "_run", noted):
            smallest(victim, FAB(steps=6, restarts=3), samples, norm)
        assert len(starts) == 3 and starts[0].max() == 0
        for start, best in zip(starts[1:], known[1:], strict=True):
            assert torch.isfinite(best).all()
            assert (start <= 0.5 * best * 1.0001).all() and (start > 0.3 * best).all()
        assert not torch.equal(starts[1], starts[2])
        # Inside a budget that nothing has broken, half of the budget.
        starts.clear()
        with patch.object(FAB, "_run", noted):
            craft(victim, FAB(steps=2, restarts=2), samples, Threat(norm, 1e-3))
        assert (starts[1] <= 0.50001e-3).all() and (starts[1] > 0.3e-3).all()


def test_restarts_only_help() -> None:
    samples, improved = digits(24), 0
    for norm in NORMS:
        once, often = (
            smallest(natural(), FABT(steps=3, targets=2, restarts=n), samples, norm) for n in (1, 4)
        )
        assert (often.distance <= once.distance).all()
        improved += int((often.distance < once.distance).sum())
    assert improved > 3


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_the_final_search_shrinks_what_was_found(norm: Norm) -> None:
    victim = untrained((1, 8, 8), 10)
    samples = data(victim, (1, 8, 8), 32)
    for kind in (FAB, FABT):
        far, near = (smallest(victim, kind(steps=4, search=n), samples, norm) for n in (0, 3))
        assert (near.distance <= far.distance).all()
        assert (near.distance < 0.999 * far.distance).double().mean() > 0.5
        cost = near.forwards - far.forwards
        assert (cost <= 3 * (1 if kind is FAB else 9)).all() and (cost >= 3).all()
        assert torch.equal(near.backwards, far.backwards)


def test_the_final_search_finds_what_lies_inside_the_budget() -> None:
    """The walk ends a little outside; on the way back to the clean image is the boundary."""
    victim = Linear(SHAPE, 2)
    samples, known = victim.equidistant(L2)
    # One step goes five hundredths too far; with a budget of two it breaks nobody.
    threat = Threat(L2, 1.02 * float(known.max()))
    without = craft(victim, FABT(steps=1, search=0), samples, threat)
    with_it = craft(victim, FABT(steps=1, search=3), samples, threat)
    assert not without.success.any() and with_it.success.all()
    assert (with_it.distance <= 1.02 * known.max()).all()


# goals


def test_a_strict_target_is_the_class_answered() -> None:
    victim = untrained((1, 8, 8), 6)
    samples = data(victim, (1, 8, 8), 24)
    targets = (samples.labels + 1 + samples.ids % 5) % 6
    aimed = Samples(samples.images, samples.labels, samples.ids, targets)
    for norm in NORMS:
        threat = Threat(norm, None, Goal.GIVEN)
        strict = craft(victim, FABT(steps=12), aimed, threat)
        assert strict.success.double().mean() > 0.9
        answered = victim(strict.images[strict.success]).argmax(1)
        assert torch.equal(answered, targets[strict.success])
        loose = smallest(victim, FABT(steps=12), samples, norm)
        assert (loose.distance <= strict.distance * 1.0001).double().mean() > 0.9
        assert strict.distance.median() > 1.05 * loose.distance.median()


# shapes, classes, rows


@pytest.mark.parametrize("classes", [2, 3, 4, 100, 1000])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 36)], ids=["grey", "32x36"])
def test_any_shape_and_number_of_classes(shape: tuple[int, int, int], classes: int) -> None:
    victim = untrained(shape, classes)
    samples = data(victim, shape, 2)
    for norm in NORMS if shape[0] == 1 else (Linf,):
        found = smallest(victim, FABT(steps=4, targets=3), samples, norm, pad=False)
        assert found.success.all()
        assert found.backwards.tolist() == [4 * min(3, classes - 1)] * 2
    if shape[0] * classes <= 100:
        assert smallest(victim, FAB(steps=4), samples, L2).success.all()


def test_the_last_survivor_is_attacked_to_the_end() -> None:
    victim = Linear(SHAPE, 3)
    samples = data(victim, rows=9)
    known = torch.from_numpy(victim.distance(Linf, samples.images, samples.labels))
    eps = float(known.sort().values[-2:].mean())
    for attack in (FAB(steps=25), FABT(steps=25)):
        crafted = craft(victim, attack, samples, Threat(Linf, eps))
        assert int((~crafted.success).sum()) == 1 and not crafted.success[known.argmax()]
        alone = craft(victim, attack, samples.at(known.argmax()[None]), Threat(Linf, eps))
        assert alone.queries[0] == crafted.queries[known.argmax()]


# several classes of one row


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
        samples = data(victim, rows=3)
        spy = Spy(victim)
        attack = FABT(steps=2, together=together)
        crafted = craft(spy, attack, samples, Threat.parse("linf:1e-6"), pad=False, batch=10**6)
        assert spy.calls == [3] + [3 * many for many in expected for _ in range(3)]
        tried = min(9, classes - 1)
        assert crafted.forwards.tolist() == [1 + 3 * tried] * 3
        assert crafted.backwards.tolist() == [2 * tried] * 3


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_classes_side_by_side_change_no_verdict(norm: Norm) -> None:
    victim = untrained(SHAPE, 10)
    samples = data(victim, rows=24)
    threat = Threat(norm, {Linf: 0.006, L2: 0.08, L1: 0.4}[norm])
    one, *others = (craft(victim, FABT(steps=4, together=n), samples, threat) for n in (1, 3, 8))
    assert 3 <= int(one.success.sum()) <= 21
    for other in others:
        assert torch.equal(one.success, other.success)
        standing = ~one.success
        assert torch.equal(one.queries[standing], other.queries[standing])
    # Without a budget nobody leaves, and the smallest of all is kept.
    alone, abreast = (
        smallest(victim, FABT(steps=4, together=n, search=0), samples, norm) for n in (1, 4)
    )
    assert torch.equal(alone.distance, abreast.distance)
    assert torch.equal(alone.images, abreast.images)


def test_turns_hold_whole_rows() -> None:
    victim = untrained(SHAPE, 10)
    samples = data(victim, rows=7)
    whole = smallest(victim, FABT(steps=3), samples, L2)
    with patch.object(planes_, "ENTRIES", 2 * 4 * 42):
        split = smallest(victim, FABT(steps=3), samples, L2)
        spy = Spy(victim)
        bare = smallest(spy, FABT(steps=3), samples, L2, pad=False)
    assert torch.equal(whole.images, split.images)
    # Without padding, the last digits may depend on the size of a block.
    assert torch.allclose(whole.images, bare.images, atol=1e-4)
    assert set(spy.calls) >= {8, 7, 4} and max(spy.calls) == 8


# cost


def test_every_step_costs_one_forward_and_one_backward() -> None:
    victim = untrained(SHAPE, 4)
    samples = data(victim, rows=2)
    for attack, backwards, walks in (
        (FABT(steps=7, targets=3), 7 * 3, 3),
        (FAB(steps=7), 7 * 4, 1),
        (FABT(steps=7, targets=1, restarts=2), 14, 2),
    ):
        counting = Counting(victim)
        crafted = craft(counting, attack, samples, Threat(Linf, 1e-6), pad=False)
        assert crafted.backwards.tolist() == [backwards] * 2
        assert crafted.forwards.tolist() == [1 + 8 * walks] * 2
        assert counting.forwards == int(crafted.forwards.sum())


# values


@pytest.mark.parametrize(
    "text",
    [
        "fab",
        "fab(steps=50, restarts=5, beta=0.9, anneal=False)",
        "fabt(alpha_max=0.2, eta=1.1, search=0, targets=5, together=2)",
    ],
)
def test_texts_read_back(text: str) -> None:
    assert str(parse(text)) == text and parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fab(steps=0)", "steps is 0"),
        ("fab(restarts=True)", "restarts is True"),
        ("fab(search=-1)", "search is -1"),
        ("fab(beta=1.5)", "beta is 1.5"),
        ("fab(alpha_max=-1)", "alpha_max is -1"),
        ("fab(eta=0.9)", "eta is 0.9"),
        ("fabt(targets=0)", "targets is 0"),
        ("fabt(together=0)", "together is 0"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(AttackError, match=said):
        parse(text)

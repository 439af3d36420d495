"""Square against what its proposals must look like, and its search replayed from what was asked."""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import cycle

import pytest
import torch
from tests.victims import Noisy, Spy, affine, siege, uniform
from torch import Tensor

from besiege.attacks.attack import parse
from besiege.attacks.losses import margin
from besiege.attacks.square import HALVINGS, Square
from besiege.attacks.windows import PROPOSALS, Bumps, Corners, Form, Proposals, _halves
from besiege.core.answer import Aim
from besiege.core.ball import LinfBall, ball, distances
from besiege.core.dice import Dice
from besiege.core.errors import AttackError
from besiege.core.oracle import Oracle
from besiege.core.samples import Samples
from besiege.core.threat import L1, L2, Access, Goal, Linf, Norm, Threat
from besiege.evaluation import Crafted, craft
from besiege.models.classifier import Classifier
from besiege.testing.victims import Counting, Linear, images_of, untrained

EPS = {Linf: 0.06, L2: 0.6, L1: 4.0}
SHAPES = [
    (1, 8, 8),
    (3, 9, 9),
    (3, 32, 36),
    (1, 1, 40),
    (1, 40, 1),
    (3, 1, 1),
    (1, 1, 3),
    (1, 3, 1),
    (2, 3, 3),
    (1, 1, 1),
]


def data(victim: Classifier, shape: tuple[int, int, int], rows: int = 6) -> Samples:
    """Images labelled as the victim sees them."""
    images = images_of(shape, rows)
    return Samples.of(images, victim(images).argmax(1))


def some(samples: Samples, rows: list[int]) -> Samples:
    return Samples(samples.images[rows], samples.labels[rows], samples.ids[rows])


def share_at(step: int, steps: int, rescale: bool, first: float = 0.8) -> float:
    """The share of the image that windows cover, read off the published schedule."""
    when = int(step / steps * 10000) if rescale else step
    return first / 2.0 ** sum(when > last for last in HALVINGS)


def asked(
    attack: Square, victim: Classifier, samples: Samples, threat: Threat, leave: str = "end"
) -> tuple[list[Tensor], Crafted]:
    """What the victim was asked after the clean check, one by one, and what came of it."""
    spy = Spy(victim)
    spy.metered = True
    made = craft(spy, attack, samples, threat, leave=leave, batch=10**6)  # type: ignore[arg-type]
    return spy.images[1:], made


def margins(victim: Classifier, x: Tensor, samples: Samples) -> Tensor:
    return margin(victim(x), Aim(samples.labels))


# the schedule


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("steps", [37, 1000, 5000, 10000, 12345])
def test_windows_are_halved_as_published(steps: int, rescale: bool) -> None:
    halvings = Square(steps=steps, rescale=rescale).halvings()
    for step in range(steps):
        expected = share_at(step, steps, rescale)
        assert 0.8 / 2.0 ** bisect_right(halvings, step) == expected, step
    if steps == 5000 and not rescale:  # as AutoAttack runs it
        assert share_at(4999, 5000, False) == 0.8 / 128


def proposals(norm: Norm, shape: tuple[int, int, int], rows: int = 3) -> Proposals:
    around = ball(norm, images_of(shape, rows), EPS[norm])
    return PROPOSALS[norm](around, 0.8, Square().halvings())


@pytest.mark.parametrize("norm", EPS, ids=str)
def test_windows_have_the_size_of_their_step(norm: Norm) -> None:
    made = proposals(norm, (3, 32, 32))
    step = torch.tensor([0, 10, 11, 50, 51, 200, 201, 1000, 1001, 4001])
    draws = made.draw(Dice.throw(0, torch.arange(10)), step, 1)
    down, across = draws[:2] if norm is Linf else draws[2:4]
    found = [(int(a.sum()), int(b.sum())) for a, b in zip(down, across, strict=True)]
    sides = [max(round(math.sqrt(share_at(s, 5000, False) * 1024)), 1) for s in step.tolist()]
    if norm is not Linf:
        sides = [max(side // 2 * 2 + 1, 3) for side in sides]
    assert found == [(side, side) for side in sides]
    # Rows at different steps: each row is what it is alone.
    for row, at in enumerate(step):
        alone = made.draw(Dice.throw(0, torch.tensor([row])), at[None], 1)
        assert all(torch.equal(a[0], b[row]) for a, b in zip(alone, draws, strict=True))


@pytest.mark.parametrize("norm", EPS, ids=str)
@pytest.mark.parametrize("shape", [(1, 7, 5), (1, 1, 9), (2, 9, 1)], ids=str)
def test_windows_reach_every_pixel_and_lie_inside(norm: Norm, shape: tuple[int, int, int]) -> None:
    made = proposals(norm, shape)
    for step in (0, 5000):
        dice = Dice.throw(1, torch.arange(400))
        draws = made.draw(dice, torch.full((400,), step), 1)
        pairs = [draws[:2]] if norm is Linf else [draws[2:4]]
        if isinstance(made, Bumps):
            bump = made._table.take(draws[0] + draws[1]) != 0
            pairs.append((bump.any(4, keepdim=True), bump.any(3, keepdim=True)))
        for down, across in pairs:
            window = (down & across).flatten(0, 2)
            assert window.any(0).all()
            size = window.flatten(1).sum(1)
            assert (size == size[0]).all()


def test_every_row_has_windows_and_signs_of_its_own() -> None:
    victim = untrained((3, 8, 8), 5)
    image = images_of((3, 8, 8), 1)
    twins = Samples.of(image.expand(2, -1, -1, -1), victim(image).argmax(1).expand(2))
    for norm in EPS:
        images, _ = asked(Square(steps=5), victim, twins, Threat(norm, EPS[norm]))
        assert all(not torch.equal(x[0], x[1]) for x in images)


def test_the_last_place_of_a_wide_image_is_not_passed() -> None:
    """Not by the largest uniform either, whatever the number of places."""
    made = proposals(Linf, (1, 300, 299), 1)
    draw = torch.full((1, 1, made.numbers), 1.0 - 2.0**-24)
    for size in range(10):
        down, across = made.decide(draw, torch.full((1, 1), size))[:2]
        assert [int(down.sum()), int(across.sum())] == list(made.windows[size])
        assert down.flatten()[-1] and across.flatten()[-1]
    largest, places = torch.tensor(1.0 - 2.0**-24), torch.arange(1, 5000)
    assert ((largest * places).to(torch.int64) == places - 1).all()


# proposals


@pytest.mark.parametrize("channels", [1, 3])
def test_a_proposal_that_changes_nothing_is_drawn_again(channels: int) -> None:
    around = LinfBall(images_of((channels, 6, 6), 1), torch.tensor([0.05]).double())
    made = Corners(around, 0.8, Square().halvings())
    low, high = around.bounds()
    draws = made.draw(Dice.throw(0, torch.arange(1)), torch.zeros(1).long(), 2000)
    idle = draws[2].flatten(2).all(2)
    assert 0.5 ** (channels + 1) < idle.double().mean() < 0.5 ** (channels - 1)
    new = made.propose(around, high, draws)[0]
    assert (new != high).flatten(1).any(1).all()
    # It is not always the same that is drawn instead.
    lowered = (new != high).flatten(2).any(2)[idle[0]]
    assert len({tuple(row) for row in lowered.tolist()}) == 2**channels - 1
    assert ((new == high) | (new == low)).all()


def test_in_autoattack_such_a_proposal_is_sent() -> None:
    around = LinfBall(images_of((1, 6, 6), 1), torch.tensor([0.05]).double())
    made = Corners(around, 0.8, Square().halvings(), Form(redraw=False))
    high = around.bounds()[1]
    draws = made.draw(Dice.throw(0, torch.arange(1)), torch.zeros(1).long(), 200)
    idle = draws[2].flatten(2).all(2)[0]
    same = (made.propose(around, high, draws)[0] == high).flatten(1).all(1)
    assert torch.equal(same, idle) and idle.any()


@pytest.mark.parametrize("norm", EPS, ids=str)
def test_windows_of_the_authors_code_miss_the_last_row_and_column(norm: Norm) -> None:
    around = ball(norm, images_of((1, 9, 7), 400), EPS[norm])
    made = PROPOSALS[norm](around, 0.8, Square().halvings(), Form(edge=False))
    draws = made.draw(Dice.throw(1, torch.arange(400)), torch.full((400,), 5000), 1)
    down, across = draws[:2] if norm is Linf else draws[2:4]
    window = (down & across).flatten(0, 2)
    assert window[:, :-1, :-1].any(0).all()
    assert not window[:, -1].any() and not window[:, :, -1].any()


def test_in_the_authors_code_the_box_takes_from_an_l2_change() -> None:
    """It is scaled to the budget, and then clipped."""
    images = 0.5 + 0.5 * uniform(4, 3, 16, 16).sub(0.5).sign()
    around = ball(L2, images, EPS[L2])
    made = PROPOSALS[L2](around, 0.8, Square().halvings(), Form(compat=True))
    assert isinstance(made, Bumps)
    change = uniform(4, 2, 3, 16, 16, seed=1) - 0.5
    size = change.flatten(2).norm(dim=2).view(4, 2, 1, 1, 1)
    wanted = (images[:, None] + change * (EPS[L2] / size)).clamp(0, 1)
    assert torch.allclose(made.land(around, change), wanted, atol=1e-6)
    start = made.start(around, Dice.throw(0, torch.arange(4)))
    assert (around.distance(start) < 0.8 * EPS[L2]).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_in_the_authors_code_an_l1_window_is_as_large_as_there_are_channels(channels: int) -> None:
    around = ball(L1, images_of((channels, 8, 8), 2), EPS[L1])
    made = PROPOSALS[L1](around, 0.8, Square().halvings(), Form(compat=True))
    assert isinstance(made, Bumps)
    whole = torch.tensor([2.0])
    assert float(made.grown(whole)) == 2.0 * channels
    far = around.center[:, None] + uniform(2, 3, channels, 8, 8) - 0.5
    landed = made.land(around, far - around.center[:, None])
    assert torch.equal(landed, around.confine(far))


@pytest.mark.parametrize("fall", [2, 4])
@pytest.mark.parametrize("norm", [L2, L1], ids=str)
@pytest.mark.parametrize("size", [(1, 1), (1, 7), (3, 3), (7, 5)], ids=str)
def test_a_bump_is_two_pyramids_of_opposite_sign(
    norm: Norm, fall: int, size: tuple[int, int]
) -> None:
    bump = _halves(*size, fall, norm)
    assert bump.shape == size and bump.abs().min() > 0
    assert distances(bump[None], norm).item() == pytest.approx(1.0)
    half = size[0] // 2
    assert (bump[:half] > 0).all() and (bump[half:] < 0).all()
    if size == (7, 5):
        layers = [1.0, 2.0**-fall, 3.0**-fall]
        lower = -bump[half:] / -bump[half + 2, 2]
        expected = torch.tensor([sum(layers[k:]) for k in (2, 1, 0, 1, 2)]).double()
        assert torch.allclose(lower[2], expected / sum(layers))


@pytest.mark.parametrize("norm", [L2, L1], ids=str)
@pytest.mark.parametrize("box", ["far", "near"])
def test_the_whole_budget_is_spent(norm: Norm, box: str) -> None:
    """In l2 and l1 what the box takes goes to other entries, and what was lost comes back."""
    images = 0.5 + (0.0 if box == "far" else 0.5) * uniform(4, 3, 16, 16).sub(0.5).sign()
    around = ball(norm, images, EPS[norm])
    made = PROPOSALS[norm](around, 0.8, Square().halvings())
    x = made.start(around, Dice.throw(0, torch.arange(4)))
    draws = made.draw(Dice.throw(1, torch.arange(4)), torch.full((4,), 40), 50)
    size = around.distance(made.propose(around, x, draws))
    assert (size <= EPS[norm] * (1 + 1e-6)).all()
    assert size.mean() > (0.999 if box == "far" else 0.97) * EPS[norm]


@pytest.mark.parametrize("norm", [L2, L1], ids=str)
def test_one_window_gives_its_change_to_another(norm: Norm) -> None:
    around = ball(norm, 0.5 + 0.1 * uniform(4, 2, 16, 16), EPS[norm])
    made = PROPOSALS[norm](around, 0.8, Square().halvings())
    assert isinstance(made, Bumps)
    x = made.start(around, Dice.throw(0, torch.arange(4)))
    draws = made.draw(Dice.throw(1, torch.arange(4)), torch.full((4,), 100), 20)
    change = made.propose(around, x, draws) - around.center[:, None]
    before = (x - around.center)[:, None].expand_as(change)
    gains = (made._table.take(draws[0] + draws[1]) != 0).expand_as(change)
    gives = (draws[2] & draws[3] & ~gains).expand_as(change)
    assert gives.any() and before[gives].abs().max() > 0.01
    assert (change[gives] == 0).all()
    rest = ~gains & ~gives
    if norm is L2:
        assert torch.allclose(change[rest], before[rest], atol=1e-5)
    else:
        assert (change[rest].abs() <= before[rest].abs() + 1e-6).all()
    assert (change[gains] - before[gains]).abs().max() > 0.01


@pytest.mark.parametrize("box", ["far", "near"])
def test_in_l1_the_projection_is_the_exact_one_but_for_little(box: str) -> None:
    images = 0.5 + (0.0 if box == "far" else 0.45) * uniform(8, 3, 16, 16).sub(0.5).sign()
    around = ball(L1, images, EPS[L1])
    made = PROPOSALS[L1](around, 0.8, Square().halvings())
    assert isinstance(made, Bumps)
    few = uniform(8, 1, 3, 16, 16, seed=2) < 0.05
    change = few * (uniform(8, 1, 3, 16, 16, seed=3) - 0.5) * 1.5
    landed = made.land(around, change)[:, 0]
    exact = around.confine(images + change[:, 0])
    assert (distances(exact - images - change[:, 0], L1) > EPS[L1] / 2).all()
    assert (distances(landed - exact, L1) < 0.02 * EPS[L1]).all()


@pytest.mark.parametrize("norm", EPS, ids=str)
@pytest.mark.parametrize(
    "shape",
    [pytest.param(s, marks=pytest.mark.slow if s in SHAPES[6:9] else []) for s in SHAPES],
    ids=str,
)
def test_any_shape_stays_in_ball_and_box(norm: Norm, shape: tuple[int, int, int]) -> None:
    victim = Linear(shape, 2)
    samples = data(victim, shape, 4)
    threat = Threat(norm, EPS[norm])
    images, made = asked(Square(steps=70), victim, samples, threat)
    for x in images:
        assert x.min() >= 0 and x.max() <= 1
        assert (distances(x - samples.images, norm) <= EPS[norm] * (1 + 1e-6)).all()
    assert (made.queries == 72).all()
    free = craft(victim, Square(steps=70), samples, threat, leave="end", pad=False)
    assert torch.allclose(free.distance, made.distance) and torch.equal(free.success, made.success)


@pytest.mark.parametrize("norm", [L2, L1], ids=str)
@pytest.mark.parametrize("eps", [1e-4, 1e-2, 1.0])
def test_small_radii_are_kept_too(norm: Norm, eps: float) -> None:
    """Where writing to float32 moves an entry by more than a millionth of the radius."""
    around = ball(norm, images_of((3, 16, 16), 4), eps)
    made = PROPOSALS[norm](around, 0.8, Square().halvings())
    x = made.start(around, Dice.throw(0, torch.arange(4)))
    for turn in range(20):
        draws = made.draw(Dice.throw(1, torch.arange(4)), torch.full((4,), 10 * turn), 3)
        new = made.propose(around, x, draws)
        assert around.inside(new).all()
        x = new[:, turn % 3]
    assert around.distance(x).min() > 0.4 * eps


# the search, replayed


def window_of(change: Tensor) -> tuple[int, int]:
    """Height and width of the smallest rectangle that holds all that changed."""
    lines = change.any(0).nonzero()
    high, wide = (lines.amax(0) - lines.amin(0) + 1).tolist()
    return high, wide


def test_each_step_changes_one_window_of_the_best_point() -> None:
    """One row at a time: from the best point so far, in a window, to the bounds, by channel."""
    victim = untrained((3, 12, 12), 5)
    samples = data(victim, (3, 12, 12), 3)
    steps = 80
    images, _ = asked(Square(steps=steps), victim, samples, Threat(Linf, 0.02))
    assert len(images) == steps + 1
    x, loss = images[0], margins(victim, images[0], samples)
    low, high = LinfBall(samples.images, torch.full((3,), 0.02).double()).bounds()
    kept = 0
    for step, new in enumerate(images[1:]):
        side = round(math.sqrt(share_at(step, steps, False) * 144))
        for row in range(3):
            change = new[row] != x[row]
            assert change.any(), step
            assert max(window_of(change)) <= side, (step, row)
            up = new[row] == high[row]
            assert (up | (new[row] == low[row])).all()
            assert all(len({*up[c][change[c]].tolist()}) < 2 for c in range(3))
        value = margins(victim, new, samples)
        better = value > loss
        kept += int(better.sum())
        x = torch.where(better[:, None, None, None], new, x)
        loss = torch.where(better, value, loss)
    assert 3 * steps * 0.02 < kept < 3 * steps * 0.9


@pytest.mark.parametrize("norm", [L2, L1], ids=str)
def test_a_bump_moves_the_best_point_in_two_windows(norm: Norm) -> None:
    """Far from the box an l2 step leaves the rest alone, and an l1 step only shrinks it."""
    victim = untrained((2, 12, 12), 5)
    images = 0.5 + 0.1 * (uniform(2, 2, 12, 12, seed=4) - 0.5)
    samples = Samples.of(images, victim(images).argmax(1))
    eps = {L2: 0.3, L1: 1.0}[norm]
    asks, _ = asked(Square(steps=60), victim, samples, Threat(norm, eps))
    x, loss = asks[0], margins(victim, asks[0], samples)
    kept = 0
    for step, new in enumerate(asks[1:]):
        side = max(round(math.sqrt(share_at(step, 60, False) * 144)) // 2 * 2 + 1, 3)
        before, after = x - images, new - images
        if norm is L2:
            changed = (after - before).abs() > 1e-5
        else:  # what grew or turned: the rest is thinned by the projection
            changed = (after.abs() > before.abs() + 1e-5) | (after * before < -1e-12)
        for row in range(2):
            assert changed[row].any() or norm is L1
            assert int(changed[row].any(0).sum()) <= 2 * side**2, (step, row)
            lines = changed[row].any(0)
            if side < 6 and norm is L1 and lines.any():  # only the window that gains
                assert max(window_of(changed[row])) <= side
        size = distances(after, norm)
        assert (size <= eps * (1 + 1e-6)).all() and (size > 0.98 * eps).all()
        value = margins(victim, new, samples)
        better = value > loss
        kept += int(better.sum())
        x = torch.where(better[:, None, None, None], new, x)
        loss = torch.where(better, value, loss)
    assert kept > 10


def test_a_longer_search_continues_a_shorter_one() -> None:
    victim = untrained((1, 8, 8), 5)
    samples = data(victim, (1, 8, 8), 3)
    for norm in EPS:
        short, _ = asked(Square(steps=20), victim, samples, Threat(norm, 0.1))
        long, _ = asked(Square(steps=80), victim, samples, Threat(norm, 0.1))
        assert all(torch.equal(a, b) for a, b in zip(short, long, strict=False))


def test_restarts_begin_elsewhere_and_rows_that_are_broken_stay_away() -> None:
    victim = untrained((1, 8, 8), 5)
    samples = data(victim, (1, 8, 8), 8)
    threat = Threat(Linf, 0.1)
    images, made = asked(Square(steps=5, restarts=3), victim, samples, threat, "success")
    lengths = [len(x) for x in images]
    assert lengths == sorted(lengths, reverse=True) and 0 < lengths[-1] < 8
    assert len(images) == 18
    assert (made.queries[~made.success] == 19).all()
    assert torch.equal(made.queries[made.success], made.first_query[made.success])
    images, _ = asked(Square(steps=5, restarts=2), victim, samples, threat)
    assert len(images) == 12 and (images[0] != images[6]).flatten(1).any(1).all()


@pytest.mark.parametrize("norm", EPS, ids=str)
def test_a_row_is_what_it_is_alone(norm: Norm) -> None:
    victim = untrained((3, 8, 8), 5)
    samples = data(victim, (3, 8, 8), 9)
    # A third or so is broken; those that remain are few enough for scans.
    attack, threat = Square(steps=150), Threat(norm, {Linf: 0.02, L2: 0.25, L1: 1.0}[norm])
    whole = craft(victim, attack, samples, threat)
    assert 0 < int(whole.success.sum()) < 9
    for rows in ([4], [8], [0, 3, 7]):
        part = craft(victim, attack, some(samples, rows), threat)
        for name in ("images", "success", "queries", "first_query", "first_step"):
            assert torch.equal(getattr(part, name), getattr(whole, name)[rows]), (rows, name)


# computing ahead


@pytest.mark.parametrize("leave", ["success", "end"])
@pytest.mark.parametrize("norm", EPS, ids=str)
def test_computing_ahead_changes_nothing(
    norm: Norm, leave: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = untrained((3, 8, 8), 5)
    samples = data(victim, (3, 8, 8), 7)
    threat = Threat(norm, {Linf: 0.02, L2: 0.25, L1: 1.0}[norm])
    found: list[Crafted] = []
    for plan in ([1], [9], [1, 2, 30, 1, 5]):
        turns = cycle(plan)
        monkeypatch.setattr(Oracle, "ahead", lambda *a, turns=turns: next(turns))
        monkeypatch.setattr("besiege.attacks.square.SCANS", 3)
        found.append(craft(victim, Square(steps=130), samples, threat, leave=leave))  # type: ignore[arg-type]
    plain = found[0]
    assert torch.equal(plain.forwards, plain.queries)
    assert 0 < int(plain.success.sum()) < 7
    for other in found[1:]:
        for name in ("images", "success", "distance", "queries", "first_query", "first_step"):
            assert torch.equal(getattr(other, name), getattr(plain, name)), name
        assert other.forwards.sum() > plain.forwards.sum()


def test_few_rows_are_computed_ahead() -> None:
    """Without being made to: many proposals per call when one row is left, none for a meter."""
    victim = untrained((1, 8, 8), 5)
    samples = data(victim, (1, 8, 8), 1)
    calls = []
    for metered in (False, True):
        spy = Spy(victim)
        spy.metered = metered
        made = craft(spy, Square(steps=300), samples, Threat(Linf, 1e-3), leave="end")
        assert made.queries.tolist() == [302]
        calls.append(len(spy.calls))
    assert calls[1] == 302 and calls[0] < 150


def test_a_search_that_never_keeps_anything_ends() -> None:
    victim = affine(torch.zeros(3, 4), torch.tensor([3.0, 0.0, -1.0]))
    samples = Samples.of(uniform(2, 1, 2, 2), torch.zeros(2).long())
    for norm in EPS:
        made = craft(victim, Square(steps=1500), samples, Threat(norm, EPS[norm]))
        assert made.queries.tolist() == [1502] * 2 and not made.success.any()


# accounts


@pytest.mark.parametrize("norm", EPS, ids=str)
def test_every_query_is_counted(norm: Norm) -> None:
    victim = untrained((1, 8, 8), 5)
    samples = data(victim, (1, 8, 8), 6)
    counting = Counting(victim, access=Access.SCORE, metered=True)
    made = craft(counting, Square(steps=40), samples, Threat(norm, 0.05))
    assert counting.forwards == int(made.queries.sum()) and counting.backwards == 0
    assert (made.queries[~made.success] == 42).all()
    limited = craft(counting, Square(steps=40), samples, Threat(norm, 0.05), queries=17)
    assert limited.queries.max() == 17
    hit = made.success & (made.first_query <= 17)
    assert torch.equal(limited.success, hit)
    assert torch.equal(limited.images[hit], made.images[hit])


def test_the_loss_never_falls_and_the_point_is_the_best_seen() -> None:
    victim = untrained((3, 8, 8), 5)
    samples = data(victim, (3, 8, 8), 4)
    held: list[Tensor] = []
    laid = siege(
        victim,
        samples.images,
        samples.labels,
        0.02,
        keep="highest",
        leave="end",
        watch=lambda record: held.append(record.loss.clone()),
    )
    Square(steps=80).run(laid)
    path = torch.stack(held)
    assert (path[1:] >= path[:-1]).all() and (path[-1] > path[0]).all()
    assert torch.allclose(margins(victim, laid.record.images, samples), path[-1], atol=1e-5)


# goals and losses


def test_targets_are_reached() -> None:
    victim = Linear((1, 6, 6), 4)
    samples = data(victim, (1, 6, 6), 8)
    targets = (samples.labels + 1) % 4
    aimed = Samples(samples.images, samples.labels, samples.ids, targets)
    for norm, eps in {Linf: 0.4, L2: 1.5, L1: 6.0}.items():
        made = craft(victim, Square(steps=400), aimed, Threat(norm, eps, Goal.GIVEN))
        assert made.success.double().mean() >= 0.7
        hit = made.success
        assert torch.equal(victim(made.images[hit]).argmax(1), targets[hit])


def test_two_classes_and_scale_do_not_matter() -> None:
    victim = Linear((1, 6, 6), 2)
    samples = data(victim, (1, 6, 6), 8)
    big = Linear((1, 6, 6), 2)
    with torch.no_grad():
        for p in big.module.parameters():
            p.mul_(1024.0)
    for norm, eps in {Linf: 0.05, L2: 0.3, L1: 1.0}.items():
        a = craft(victim, Square(steps=100), samples, Threat(norm, eps))
        b = craft(big, Square(steps=100), samples, Threat(norm, eps))
        assert torch.equal(a.images, b.images) and a.success.any()


# stochastic victims


class Noted(Noisy):
    """Remembers what it was sent and what it said."""

    def __init__(self, victim: Classifier, size: float) -> None:
        super().__init__(victim, size)
        self.sent: list[Tensor] = []
        self.said: list[Tensor] = []

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Logits, noted."""
        self.sent.append(x.clone())
        self.said.append(super().__call__(x, dice))
        return self.said[-1]


def test_proposals_are_kept_by_the_mean_of_twenty_passes() -> None:
    victim = untrained((1, 8, 8), 5)
    samples = data(victim, (1, 8, 8), 1)
    noted = Noted(victim, 0.05)
    attack = parse("averaged(square(steps=60), 20)")
    made = craft(noted, attack, samples, Threat(Linf, 0.01), leave="end", pad=False)
    assert made.forwards.tolist() == made.queries.tolist() == [20 * 62]
    said = torch.cat(noted.said).view(62, 20, 5)[1:]
    sent = torch.cat(noted.sent).view(62, 20, 1, 8, 8)[1:]
    assert (sent == sent[:, :1]).all()
    each = margin(said.flatten(0, 1), Aim(samples.labels.expand(61 * 20))).view(61, 20)
    assert each.std(1).min() > 1e-3
    x, loss, apart = sent[0, 0], each[0].mean(), 0
    first = each[0, 0]
    for step in range(1, 61):
        side = round(math.sqrt(share_at(step - 1, 60, False) * 64))
        change = sent[step, 0] != x
        assert change.any() and max(window_of(change)) <= side, step
        value = each[step].mean()
        apart += int((value > loss) != (each[step, 0] > first))
        if value > loss:
            x, loss, first = sent[step, 0], value, each[step, 0]
    assert apart > 0  # one pass alone would have decided otherwise


def test_the_suite_for_random_victims_runs_as_it_is_written() -> None:
    victim = untrained((1, 8, 8), 5)
    samples = data(victim, (1, 8, 8), 6)
    attack = parse("averaged(square(steps=1000), 20)")
    made = craft(Noisy(victim, 0.02), attack, samples, Threat(Linf, 0.02), queries=400)
    # A hit of such a victim may be luck: the search goes on to the highest loss.
    assert made.queries.tolist() == [400] * 6 and torch.equal(made.forwards, made.queries)
    hit = made.first_query >= 0
    assert hit.any() and (made.first_query[hit] % 20 == 0).all()
    assert int(made.first_query[hit].min()) < 400


# values


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("square(steps=0)", "steps is 0"),
        ("square(restarts=True)", "restarts is True"),
        ("square(p_init=0)", "p_init is 0"),
        ("square(p_init=1.5)", "p_init is 1.5"),
        ("square(rescale=3)", "rescale is 3"),
        ("square(loss=3)", "not a loss"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(AttackError, match=said):
        parse(text)


def test_the_text_reads_back() -> None:
    text = "square(steps=100, p_init=0.1, restarts=2, rescale=True, loss=cross_entropy)"
    assert str(parse(text)) == text and parse(text).norms == {Linf, L2, L1}
    assert parse("square").access is Access.SCORE

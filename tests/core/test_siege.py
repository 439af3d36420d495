"""The siege: asking, charging, looking, keeping, leaving, and views on other terms."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.victims import Curve, Noisy, Spy, affine, siege, uniform
from torch import Tensor, nn

from besiege.core.answer import Aim, Answer
from besiege.core.attack_registry import fitting
from besiege.core.blocks import BLOCK
from besiege.core.dice import Dice
from besiege.core.errors import AccessError, AttackError, StochasticError, ThreatError
from besiege.core.record import Keep, Leave
from besiege.core.siege import Siege, target_class
from besiege.core.terms import Terms
from besiege.core.threat import L2, Access, Goal, Linf
from besiege.core.victim import Victim
from besiege.models.classifier import Classifier
from besiege.testing.victims import Linear

# One pixel decides: below 0.5 class 0 (the label), above it class 1.
STEP = affine(torch.tensor([[-1.0, 0, 0, 0], [1.0, 0, 0, 0]]), torch.tensor([0.5, -0.5]))


def dots(*values: float) -> Tensor:
    """Images of four pixels of which the first has these values."""
    x = torch.full((len(values), 1, 2, 2), 0.5)
    x[:, 0, 0, 0] = torch.tensor(values)
    return x


def apart(rows: int) -> Tensor:
    """Images far from each other, so that what is near one belongs to it."""
    x = torch.zeros(rows, 1, 4, 4)
    for row in range(rows):
        x[row].view(-1)[row] = 1.0
    return x * 0.9 + 0.05


def rise(logits: Tensor, aim: Aim) -> Tensor:
    """The margin of class 1 over class 0."""
    return logits[:, 1] - logits[:, 0]


def laid(
    *values: float,
    radius: float = 0.3,
    keep: Keep = "first",
    leave: Leave = "success",
    queries: int | None = None,
    access: Access = Access.GRADIENT,
) -> Siege:
    """A siege of images of label 0 on STEP."""
    x = dots(*values)
    labels = torch.zeros(len(values), dtype=torch.int64)
    return siege(STEP, x, labels, radius, access=access, keep=keep, leave=leave, queries=queries)


# accounts


def test_what_the_victim_saw_is_what_the_meter_says() -> None:
    x = apart(6)
    spy = Spy(Linear((1, 4, 4), 3))
    labels = torch.zeros(6, dtype=torch.int64)
    s = siege(spy, x, labels, 0.05, leave="end")
    s.gradient(x, rise)
    s.logits(x, rows=None)
    s.labels(x[[1, 1, 4]], rows=torch.tensor([1, 1, 4]))
    s.gradient(x[:, None].expand(-1, 3, -1, -1, -1), rise)
    s.gradients(x, torch.tensor([[0, 1]]).expand(6, 2))
    s.offer(x)
    s.leave(torch.tensor([True, False, False, True, False, False]))
    s.offer(x)
    s.scan(x[:, None].expand(-1, 2, -1, -1, -1), lambda a: torch.zeros_like(a.hit))
    meter = s.record.meter
    assert torch.equal(meter.forwards, spy.owned_by(x))
    assert meter.forwards.tolist() == [7, 12, 10, 7, 11, 10]
    assert torch.equal(meter.queries, meter.forwards)
    assert meter.backwards.tolist() == [6] * 6  # 1 + 3 + 2 classes
    assert meter.padding == 0


def test_padding_is_nobodys() -> None:
    x = apart(3)
    s = siege(Linear((1, 4, 4), 3), x, torch.zeros(3).long(), 0.05, leave="end", pad=True)
    s.logits(x)
    assert s.record.meter.forwards.tolist() == [1, 1, 1] and s.record.meter.padding == 13


def test_gradients_are_those_of_each_class() -> None:
    victim = Linear((1, 4, 4), 4)
    x = apart(5)
    classes = torch.stack([torch.arange(5) % 4, (torch.arange(5) + 1) % 4], 1)
    s = siege(victim, x, torch.zeros(5).long(), 0.05, leave="end")
    answer = s.gradients(x, classes)
    weight = torch.tensor(victim.weight).float().view(4, 1, 4, 4)
    assert "logits" in answer
    assert torch.allclose(answer.gradient, weight[classes], atol=1e-6)
    assert torch.allclose(answer.logits, victim(x), atol=1e-6)
    assert "loss" not in answer
    # With candidates, every candidate of a row has its row's classes.
    some = s.gradients(x[:, None].expand(-1, 3, -1, -1, -1), classes)
    assert some.gradient.shape == (5, 3, 2, 1, 4, 4)
    assert torch.allclose(some.gradient[:, 2], weight[classes], atol=1e-6)
    # With some rows gone, the others keep theirs.
    s.leave(torch.tensor([True, False, True, False, False]))
    rest = s.gradients(x, classes).gradient
    assert rest is not None
    assert torch.equal(rest[1], answer.gradient[1]) and not rest[2].any()


def test_a_request_of_another_shape_is_refused() -> None:
    s = laid(0.4, 0.3)
    good = dots(0.4, 0.3)
    for bad in (good[:1], good[0], good[:, :, :1], good[None, None], good.flatten(1)):
        with pytest.raises(AttackError, match="2 rows of images"):
            s.logits(bad)
    with pytest.raises(AttackError, match="out of order"):
        s.logits(good[[1, 0]], rows=torch.tensor([1, 0]))
    with pytest.raises(AttackError, match="rows of images"):
        s.scan(good[:1][:, None], lambda a: a.hit)
    lone = laid(0.4)
    with pytest.raises(AttackError, match="1 rows of images"):
        lone.logits(good[0])


# what is noted and kept


def test_answers_are_looked_at() -> None:
    s = laid(0.3, 0.4, 0.4)
    answer = s.labels(dots(0.45, 0.6, 0.95))
    assert answer.labels.tolist() == [0, 1, 1]
    assert answer.hit.tolist() == [False, True, False]  # the third is too far away
    record = s.record
    assert record.success.tolist() == [False, True, False]
    assert torch.equal(record.images, dots(0.3, 0.6, 0.4))
    assert record.distance[1] == pytest.approx(0.2) and record.distance[0] == torch.inf
    assert record.first_step.tolist() == [-1, 0, -1] and record.first_query.tolist() == [-1, 1, -1]
    s.labels(dots(0.55, 0.4, 0.6))
    assert record.success.tolist() == [True, True, True]
    assert record.first_step.tolist() == [1, 0, 1] and record.first_query.tolist() == [2, 1, 2]


def test_points_outside_the_box_are_no_hits() -> None:
    s = laid(0.3, radius=5.0)
    for value in (1.5, -0.1):
        x = dots(0.6)
        x[0, 0, 1, 1] = value
        answer = s.labels(x)
        assert answer.labels.tolist() == [1] and not answer.hit.any()
    assert not s.record.success.any()


def trail(keep: Keep, leave: Leave, *steps: float) -> Siege:
    """One row that visits these values of its pixel, starting from 0.4."""
    s = laid(0.4, radius=0.5, keep=keep, leave=leave)
    for value in steps:
        s.logits(dots(value), loss=rise)
    return s


@pytest.mark.parametrize(
    ("keep", "leave", "kept", "success"),
    [
        ("first", "success", 0.7, True),
        ("first", "end", 0.7, True),
        ("smallest", "success", 0.7, True),
        ("smallest", "end", 0.55, True),
        ("highest", "success", 0.7, True),
        ("highest", "end", 0.8, True),
        ("last", "success", 0.7, True),
        ("last", "end", 0.3, False),
    ],
)
def test_what_is_kept_and_when_a_row_leaves(
    keep: Keep, leave: Leave, kept: float, success: bool
) -> None:
    s = trail(keep, leave, 0.45, 0.7, 0.55, 0.8, 0.6, 0.3)
    assert s.record.images[0, 0, 0, 0] == pytest.approx(kept)
    assert bool(s.record.success[0]) is success
    distance = s.record.distance[0]
    assert distance == pytest.approx(kept - 0.4) if success else distance == torch.inf
    assert s.record.first_step[0] == 1
    assert s.record.meter.queries[0] == (2 if leave == "success" else 6)


@pytest.mark.parametrize(
    ("keep", "kept"), [("first", 0.4), ("smallest", 0.4), ("highest", 0.45), ("last", 0.35)]
)
def test_what_is_kept_of_a_failure(keep: Keep, kept: float) -> None:
    s = trail(keep, "end", 0.42, 0.45, 0.35)
    assert s.record.images[0, 0, 0, 0] == pytest.approx(kept)
    assert not s.record.success[0] and s.record.distance[0] == torch.inf


def test_a_success_counts_above_any_failure_of_higher_loss() -> None:
    """Keep highest: a far success must not be dropped for a point outside the ball."""
    s = laid(0.4, radius=0.2, keep="highest", leave="end")
    s.logits(dots(0.9), loss=rise)  # outside: a failure of high loss
    s.logits(dots(0.55), loss=rise)
    assert s.record.success[0] and s.record.images[0, 0, 0, 0] == pytest.approx(0.55)
    s.logits(dots(0.95), loss=rise)
    assert s.record.success[0] and s.record.images[0, 0, 0, 0] == pytest.approx(0.55)
    s.logits(dots(0.59), loss=rise)
    assert s.record.images[0, 0, 0, 0] == pytest.approx(0.59)


def test_keep_highest_without_a_loss_still_keeps_a_success() -> None:
    """Labels, scans and the clean check tell no loss; what they hit is not lost."""
    s = laid(0.4, 0.4, radius=0.5, keep="highest")
    s.logits(dots(0.49, 0.49), loss=rise)
    s.labels(dots(0.7, 0.3))
    assert s.record.success.tolist() == [True, False]
    assert torch.equal(s.record.images, dots(0.7, 0.49))
    wrong = laid(0.6, keep="highest")
    wrong.survey()
    assert wrong.record.success[0] and wrong.record.distance[0] == 0
    # A success with a loss then takes its place, however low the loss.
    end = laid(0.4, radius=0.5, keep="highest", leave="end")
    end.labels(dots(0.8))
    end.logits(dots(0.51), loss=rise)
    assert end.record.images[0, 0, 0, 0] == pytest.approx(0.51)


@pytest.mark.parametrize(
    ("keep", "kept"), [("first", 0.55), ("smallest", 0.52), ("highest", 0.7), ("last", 0.3)]
)
def test_of_many_candidates_the_right_one_is_kept(keep: Keep, kept: float) -> None:
    s = laid(0.4, 0.4, radius=0.5, keep=keep, leave="end")
    values = torch.tensor([[0.45, 0.55, 0.7, 0.52, 0.3], [0.1, 0.2, 0.3, 0.3, 0.2]])
    x = dots(*values.flatten().tolist()).view(2, 5, 1, 2, 2)
    answer = s.logits(x, loss=rise)
    assert answer.hit[0].tolist() == [False, True, True, True, False]
    assert s.record.first_query.tolist() == [2, -1]  # a budget of two would have been enough
    assert s.record.images[0, 0, 0, 0] == pytest.approx(kept)
    failed = {"first": 0.4, "smallest": 0.4, "highest": 0.3, "last": 0.2}[keep]
    assert s.record.images[1, 0, 0, 0] == pytest.approx(failed)


def test_a_candidate_outside_does_not_hide_a_success_of_lower_loss() -> None:
    s = laid(0.4, radius=0.2, keep="highest", leave="end")
    s.logits(dots(0.95, 0.55, 0.58, 0.52).view(1, 4, 1, 2, 2), loss=rise)
    assert s.record.success[0] and s.record.images[0, 0, 0, 0] == pytest.approx(0.58)


def test_answers_through_a_map_steer_but_do_not_count() -> None:
    s = laid(0.4, radius=0.5, leave="end", keep="last")
    answer = s.gradient(dots(0.3), rise, lambda image, dice, slot: image + 0.5)
    assert answer.labels.tolist() == [1] and not answer.hit.any()
    assert not s.record.success.any() and torch.equal(s.record.images, dots(0.4))
    assert s.record.meter.queries.tolist() == [1] and s.record.asked.tolist() == [1]


def test_maps_get_each_images_dice_and_its_place_among_copies() -> None:
    seen: list[tuple[list[int], list[int]]] = []

    def through(image: Tensor, dice: Dice, slot: Tensor) -> Tensor:
        seen.append((dice.key.tolist(), slot.tolist()))
        return image

    s = laid(0.4, 0.3, 0.2)
    s.leave(torch.tensor([False, True, False]))
    s.gradient(dots(*[0.4] * 6).view(3, 2, 1, 2, 2), rise, through)
    key = s.dice.key.tolist()
    assert seen == [([key[0], key[0], key[2], key[2]], [0, 1, 0, 1])]


def test_a_watcher_sees_every_answer() -> None:
    seen: list[int] = []
    x = dots(0.4)
    base = laid(0.4)
    s = Siege.start(
        base._queries.oracle,
        base.ball,
        torch.zeros(1).long(),
        Dice.throw(0, torch.arange(1)),
        Terms(watch=lambda record: seen.append(int(record.meter.queries.sum()))),
    )
    s.labels(x)
    s.view().labels(x)
    assert seen == [1, 2]


# leaving


def test_settle_drops_what_is_done_and_keeps_rows_together() -> None:
    s = laid(0.4, 0.3, 0.45, 0.2, radius=0.3)
    x = dots(0.6, 0.3, 0.6, 0.2)
    answer = s.gradient(x, rise)
    numbers = torch.arange(4)
    x, answer, numbers = s.settle(x, answer, numbers)
    assert numbers.tolist() == s.rows.tolist() == [1, 3] and len(s) == 2
    assert torch.equal(x, dots(0.3, 0.2)) and len(answer.hit) == 2
    assert torch.equal(s.ball.center, dots(0.3, 0.2)) and len(s.dice) == len(s.aim.labels) == 2
    assert torch.equal(s.settle(numbers), numbers)
    assert s.settle() == ()
    s.labels(dots(0.55, 0.2))
    (one,) = s.settle(numbers)
    assert one == 3
    s.labels(dots(0.45))
    assert len(s) == 1


@pytest.mark.parametrize("wrong", [3, 5])
def test_settle_refuses_another_length(wrong: int) -> None:
    s = laid(0.4, 0.3, 0.45, 0.2)
    with pytest.raises(AttackError, match=rf"state of {wrong} rows, but 4"):
        s.settle(torch.zeros(4), torch.zeros(wrong))
    with pytest.raises(AttackError, match=rf"state of {wrong} rows"):
        s.settle(Answer(torch.zeros(wrong) > 0, torch.zeros(wrong).long()))


def test_finished_rows_answer_nothing_and_are_not_sent() -> None:
    spy = Spy(STEP)
    x = dots(0.4, 0.3)
    s = siege(spy, x, torch.zeros(2).long(), 0.3)
    s.labels(dots(0.6, 0.3))
    spy.calls.clear()
    answer = s.gradient(dots(0.7, 0.3), rise)
    assert spy.calls == [1]
    assert answer.hit.tolist() == [False, False] and answer.labels.tolist() == [-1, 0]
    assert answer.loss[0] == -torch.inf and answer.loss[1].isfinite()
    assert "logits" in answer
    assert not answer.gradient[0].any() and answer.gradient[1].any()
    assert not answer.logits[0].any() and answer.logits[1].any()
    assert s.record.meter.queries.tolist() == [1, 2]
    s.leave(torch.tensor([False, True]))
    spy.calls.clear()
    for ask in (s.offer, s.labels, s.logits):
        nothing = ask(dots(0.7, 0.3))
        assert not nothing.hit.any() and nothing.labels.tolist() == [-1, -1]
    assert not s.gradients(x, torch.zeros(2, 1).long()).hit.any()
    assert s.scan(x[:, None], lambda a: ~a.hit).choice.tolist() == [1, 1]
    assert spy.calls == []  # not even an empty batch
    s.settle()
    assert len(s) == 0 and len(s.labels(x[:0]).hit) == 0


def test_leaving_is_an_attacks_own_choice_and_its_own_alone() -> None:
    s = laid(0.4, 0.3, 0.2)
    view = s.view()
    view.leave(torch.tensor([False, True, False]))
    view.settle()
    assert view.rows.tolist() == [0, 2]
    view.leave(torch.tensor([False, True]))  # rows are now numbered anew
    view.settle()
    assert view.rows.tolist() == [0]
    s.settle()
    assert s.rows.tolist() == [0, 1, 2] and not s.record.success.any()


def test_blocks_cover_all_rows_in_pieces() -> None:
    s = laid(*[0.4] * 300)
    for k in (1, 7, 100, 1000):
        pieces = list(s.blocks(k))
        assert torch.equal(torch.cat(pieces), torch.arange(300))
        assert max(map(len, pieces)) == min(300, max(1, 512 // k))
    assert list(laid(0.4).view(torch.zeros(0).long()).blocks(5)) == []


def test_blocks_of_large_images_hold_fewer() -> None:
    victim = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 2)))
    s = siege(victim, torch.full((300, 3, 64, 64), 0.5), torch.zeros(300).long(), 0.1)
    assert max(map(len, s.blocks(1))) == BLOCK
    assert max(map(len, s.blocks(50))) == BLOCK // 50


# budgets


@pytest.mark.parametrize("budget", [1, 2, 5, 6, 7, 100])
def test_requests_are_answered_up_to_the_budget_in_order(budget: int) -> None:
    x = apart(3)
    spy = Spy(Linear((1, 4, 4), 3))
    s = siege(spy, x, torch.zeros(3).long(), 0.05, leave="end", queries=budget)
    first = s.logits(x[:, None].expand(-1, 4, -1, -1, -1))
    assert (first.labels >= 0).sum(1).tolist() == [min(4, budget)] * 3
    assert (first.labels[:, : min(4, budget)] >= 0).all()
    rows = torch.tensor([0, 0, 0, 2])
    second = s.labels(x[rows], rows=rows)
    left = max(0, budget - 4)
    assert (second.labels >= 0).tolist() == [n < left for n in (0, 1, 2, 0)]
    s.offer(x)
    s.scan(x[:, None].expand(-1, 3, -1, -1, -1), lambda a: torch.zeros_like(a.hit))
    assert (s.record.meter.queries <= budget).all()
    assert torch.equal(s.record.meter.forwards, spy.owned_by(x))


def test_rows_without_budget_leave_at_settle() -> None:
    s = laid(0.4, 0.3, queries=3)
    assert s.settle(torch.arange(2)).tolist() == [0, 1]
    s.labels(dots(0.3, 0.3, 0.3), rows=torch.tensor([0, 0, 0]))
    assert s.settle(torch.arange(2)).tolist() == [1]
    view = s.view()
    view.labels(dots(*[0.3] * 5).view(1, 5, 1, 2, 2))
    assert len(s.view()) == 0  # nobody left to enter
    s.settle()
    assert len(s) == 0 and s.record.meter.queries.tolist() == [3, 3]


# scanning


def one_by_one(s: Siege, x: Tensor, accept: Callable[[Answer], Tensor]) -> list[int]:
    """What scanning means: ask about the next candidate of every row still looking."""
    r, k = x.shape[:2]
    choice = torch.full((r,), k)
    for j in range(k):
        looking = (choice == k) & s._queries.alive(s._active)
        rows = looking.nonzero()[:, 0]
        if len(rows) == 0:
            break
        answer = s.offer(x[:, j]) if len(rows) == r else s.logits(x[rows, j], rows=rows)
        whole = torch.full((r,), False)
        taken = accept(answer.at(torch.arange(len(rows))))
        whole[rows] = taken | (answer.hit if s.leaves == "success" else torch.zeros_like(taken))
        choice[whole & looking] = j
    return choice.tolist()


@pytest.mark.parametrize("budget", [None, 3, 5])
@pytest.mark.parametrize("leave", ["success", "end"])
@pytest.mark.parametrize("threshold", [-3.0, -0.5, 0.5, 9.0])
def test_a_scan_is_asking_one_by_one(budget: int | None, leave: Leave, threshold: float) -> None:
    x = apart(6)
    k = 6
    candidates = (x[:, None] + 0.4 * (uniform(6, k, 1, 4, 4, seed=3) - 0.5)).clamp(0, 1)

    def accept(answer: Answer) -> Tensor:
        assert "logits" in answer
        return (answer.logits[..., 1] > threshold) & (answer.labels >= 0)

    def run(how: str) -> tuple[Siege, list[int]]:
        victim = Spy(Linear((1, 4, 4), 3))
        victim.metered = how == "metered"
        labels = victim(x).argmax(1)
        s = siege(victim, x, labels, 0.25, keep="smallest", leave=leave, queries=budget)
        s.survey()
        if how == "plain":
            return s, one_by_one(s, candidates, accept)
        scan = s.scan(candidates, accept)
        chosen = scan.choice.clamp_max(k - 1)
        found = scan.choice < k
        told = victim.victim(candidates[torch.arange(6), chosen])
        assert scan.answer.logits is not None
        assert torch.allclose(scan.answer.logits[found], told[found], atol=1e-5)
        assert (scan.answer.labels[found] == told.argmax(1)[found]).all()
        return s, scan.choice.tolist()

    plain, choice = run("plain")
    for how in ("local", "metered"):
        s, got = run(how)
        assert got == choice
        a, b = s.record, plain.record
        for name in ("success", "distance", "images", "first_query"):
            assert torch.equal(getattr(a, name), getattr(b, name)), (how, name)
        assert torch.equal(a.meter.queries, b.meter.queries)
        if how == "metered":
            assert torch.equal(a.meter.forwards, b.meter.forwards)
        else:
            assert (a.meter.forwards >= b.meter.forwards).all()
            if budget is None and min(choice) < k - 1:
                assert a.meter.forwards.sum() > b.meter.forwards.sum()
        assert torch.equal(s.view().rows, plain.view().rows)


@pytest.mark.parametrize("metered", [False, True])
def test_a_scan_counts_as_one_step_and_accept_sees_whole_rows(metered: bool) -> None:
    """Thresholds per row, as Square needs, whichever rows are still there."""
    spy = Spy(STEP)
    spy.metered = metered
    x = dots(0.1, 0.2, 0.3)
    s = siege(spy, x, torch.zeros(3).long(), 0.9, leave="end")
    s.leave(torch.tensor([True, False, False]))
    least = torch.tensor([0.0, 0.25, 0.45])
    values = torch.tensor([[0.9, 0.9, 0.9], [0.2, 0.3, 0.6], [0.3, 0.4, 0.6]])
    candidates = dots(*values.flatten().tolist()).view(3, 3, 1, 2, 2)

    def accept(answer: Answer) -> Tensor:
        assert len(answer.logits) == 3
        return (answer.logits[..., 1] + 0.5) > least[:, None]

    scan = s.scan(candidates, accept)
    assert scan.choice.tolist() == [3, 1, 2]
    assert s.record.asked.tolist() == [0, 1, 1]
    assert s.record.first_step.tolist() == [-1, -1, 0]
    assert s.record.meter.queries.tolist() == [0, 2, 3]
    assert scan.answer.labels.tolist() == [-1, 0, 1]


def test_a_scan_that_runs_out_of_budget_tells_of_the_last_it_saw() -> None:
    answers = []
    for metered in (False, True):
        spy = Spy(STEP)
        spy.metered = metered
        s = siege(spy, dots(0.1), torch.zeros(1).long(), 0.9, leave="end", queries=2)
        candidates = dots(0.1, 0.2, 0.3, 0.4).view(1, 4, 1, 2, 2)
        scan = s.scan(candidates, lambda a: torch.zeros_like(a.hit))
        assert scan.choice.tolist() == [4] and s.record.meter.queries.tolist() == [2]
        answers.append(scan.answer)
    assert torch.equal(answers[0].logits, answers[1].logits)
    assert answers[0].logits[0, 1] == pytest.approx(0.2 - 0.5)


# views


def test_a_hit_counts_where_it_lies_inside() -> None:
    s = laid(0.3, 0.3, 0.3, radius=0.4, keep="smallest")
    small = s.view(radius=torch.tensor([0.25, 0.25, 0.25]).double(), leave="end")
    inner = small.view(radius=torch.tensor([0.6, 0.6, 0.6]).double(), leave="success")
    answer = inner.labels(dots(0.52, 0.65, 0.85))
    assert answer.hit.tolist() == [True, True, True]  # in the ball of 0.6
    assert small.broken.tolist() == [True, False, False]
    assert s.broken.tolist() == [True, True, False]
    assert s.record.success.tolist() == [True, True, False]
    assert s.record.first_step.tolist() == [0, 0, -1]
    for level, left in ((inner, []), (small, [0, 1, 2]), (s, [2])):
        level.settle()
        assert level.rows.tolist() == left
    assert torch.equal(s.record.images, dots(0.52, 0.65, 0.3))  # 0.85 is outside the root's ball


def test_a_hit_in_a_smaller_ball_counts_for_the_parents() -> None:
    s = laid(0.4, 0.4, radius=0.4)
    view = s.view(radius=torch.tensor([0.15, 0.15]).double())
    answer = view.labels(dots(0.54, 0.6))
    assert answer.hit.tolist() == [True, False]  # 0.6 is outside the view's ball ...
    assert view.broken.tolist() == [True, False]
    assert s.broken.tolist() == [True, True]  # ... but inside the parent's
    assert s.record.success.tolist() == [True, True]


def test_a_view_has_its_own_rows_aims_and_chances() -> None:
    victim = Linear((1, 4, 4), 4)
    x = apart(4)
    labels = victim(x).argmax(1)
    s = siege(victim, x, labels, 0.05, leave="end", survey=True)
    rows = torch.tensor([3, 1])
    other = Dice.throw(9, torch.tensor([3, 1]))
    aims = torch.tensor([0, 2])
    view = s.view(rows, radius=torch.tensor([0.1, 0.2]), aim=aims, dice=other)
    assert view.rows.tolist() == [3, 1]
    assert torch.equal(view.ball.center, x[rows]) and view.ball.radius.dtype == torch.float64
    assert view.ball.radius.tolist() == pytest.approx([0.1, 0.2])
    assert torch.equal(view.dice.key, other.key)
    assert view.aim.targets is not None and view.aim.targets.tolist() == [0, 2]
    assert torch.equal(view.aim.labels, labels[rows])
    assert view.aim.clean is not None
    assert torch.allclose(view.aim.clean, victim(x)[rows], atol=1e-6)
    assert s.aim.targets is None and not view.targeted  # steering is not the goal
    view.offer(x[rows])
    assert s.record.meter.queries.tolist() == [1, 2, 1, 2]


def test_done_rows_do_not_enter_a_view_and_are_not_broken_in_it() -> None:
    s = laid(0.4, 0.3, 0.2)
    s.labels(dots(0.6, 0.3, 0.2))
    view = s.view(torch.tensor([0, 2]))
    assert view.rows.tolist() == [2]
    assert view.broken.tolist() == [False, False]  # one entry for each row it was given


def test_goal_and_aim_are_separate() -> None:
    """Steered to class 2, any error counts; with targets, only the target does."""
    victim = affine(torch.eye(3, 4) * 4, torch.zeros(3))
    x = torch.tensor([0.6, 0.5, 0.1, 0.0]).view(1, 1, 2, 2)
    other = torch.tensor([0.4, 0.5, 0.1, 0.0]).view(1, 1, 2, 2)
    s = siege(victim, x, torch.tensor([0]), 0.3)
    assert s.view(aim=torch.tensor([2])).labels(other).hit.all()
    t = siege(victim, x, torch.tensor([0]), 0.5, targets=torch.tensor([2]))
    assert t.targeted and t.aim.targets is not None
    assert not t.labels(other).hit.any()
    assert t.labels(torch.tensor([0.4, 0.5, 0.6, 0.0]).view(1, 1, 2, 2)).hit.all()


# the clean check


def test_the_survey_is_charged_and_no_step() -> None:
    s = laid(0.4, 0.6)
    answer = s.survey()
    assert answer.hit.tolist() == [False, True]
    assert s.record.meter.queries.tolist() == [1, 1] and s.record.asked.tolist() == [0, 0]
    assert s.record.distance.tolist() == [torch.inf, 0.0]
    assert s.record.first_step.tolist() == [-1, 0] and s.record.first_query.tolist() == [-1, 1]
    assert s.aim.clean is not None and torch.allclose(s.aim.clean, STEP(dots(0.4, 0.6)))
    s.settle()
    s.labels(dots(0.6))
    assert s.record.first_step.tolist() == [0, 0] and s.record.first_query.tolist() == [2, 1]


def test_targets_may_be_chosen_by_the_survey() -> None:
    victim = Linear((1, 4, 4), 4)
    x = apart(5)
    logits = victim(x)
    labels = logits.argmax(1)
    labels[0] = (labels[0] + 1) % 4  # already an error
    order = logits.scatter(1, labels[:, None], -torch.inf).argsort(1, descending=True)
    for goal, column in ((Goal.SECOND, 0), (Goal.LEAST_LIKELY, 2)):
        s = siege(victim, x, labels, 0.05, targets=torch.full((5,), -1))
        answer = s.survey(lambda laid, goal=goal: target_class(laid, goal))  # type: ignore[misc]  # a default in a lambda has no type
        assert s.record.targets is not None
        assert torch.equal(s.record.targets, order[:, column])
        assert s.aim.targets is not None and torch.equal(s.aim.targets, order[:, column])
        # Row 0 is predicted as its second class: the goal is reached at once.
        assert answer.hit.tolist() == [goal is Goal.SECOND, False, False, False, False]
        assert torch.equal(s.record.success, answer.hit)


def test_other_classes_are_ranked_by_the_clean_scores() -> None:
    victim = Linear((1, 4, 4), 5)
    x = apart(6)
    labels = victim(x).argmax(1)
    s = siege(victim, x, labels, 0.05, leave="end", survey=True)
    ranked = s.ranked()
    scores = victim(x).gather(1, ranked)
    assert ranked.shape == (6, 4) and (scores[:, :-1] >= scores[:, 1:]).all()
    assert (ranked != labels[:, None]).all()
    blind = siege(victim, x, labels, 0.05, leave="end", survey=True, access=Access.DECISION)
    assert torch.equal(blind.ranked(), (labels[:, None] + torch.arange(1, 5)) % 5)
    with pytest.raises(ThreatError, match="decision access"):
        target_class(blind, Goal.SECOND)


def test_the_number_of_classes_is_not_known_before() -> None:
    layer = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    s = siege(Classifier(layer), dots(0.4), torch.tensor([0]))
    with pytest.raises(AttackError, match="clean check"):
        s.classes
    s.survey()
    assert s.classes == 3


# access


def test_decision_access_gives_labels_only() -> None:
    s = laid(0.4, 0.3, access=Access.DECISION)
    survey = s.survey()
    assert "logits" not in survey and s.aim.clean is None and s.record.logits is None
    for answer in (s.labels(dots(0.4, 0.3)), s.offer(dots(0.4, 0.3))):
        assert set(answer.parts) == {"hit", "labels"}
    seen: list[Answer] = []

    def accept(answer: Answer) -> Tensor:
        seen.append(answer)
        return answer.labels == 1

    scan = s.scan(dots(0.4, 0.45, 0.3, 0.35).view(2, 2, 1, 2, 2), accept)
    assert "logits" not in seen[0] and "logits" not in scan.answer


@pytest.mark.parametrize("access", [Access.DECISION, Access.SCORE])
def test_asking_above_the_access_names_what_fits(access: Access) -> None:
    s = laid(0.4, access=access)
    asks: list[Callable[[], object]] = [
        lambda: s.gradient(dots(0.4), rise),
        lambda: s.gradients(dots(0.4), torch.zeros(1, 1).long()),
    ]
    if access is Access.DECISION:
        asks.append(lambda: s.logits(dots(0.4)))
    for ask in asks:
        with pytest.raises(AccessError) as problem:
            ask()
        said = str(problem.value)
        assert f"grants {access} access only" in said and "attacks that fit" in said
        for name in fitting(access):
            assert name in said
        assert "pgd" not in said.split("fit")[1]
    assert not s.record.meter.queries.any()  # nothing was sent
    assert {"pgd", "fgsm", "mim"} <= set(fitting(Access.GRADIENT))


# chance


def noisy_siege(rows: int = 3, leave: Leave = "end", seed: int = 0) -> tuple[Noisy, Siege]:
    victim = Noisy(Linear((1, 4, 4), 3))
    return victim, siege(
        victim, apart(rows), torch.zeros(rows).long(), 0.05, leave=leave, seed=seed
    )


def test_one_gradient_of_a_stochastic_victim_is_refused() -> None:
    _, s = noisy_siege()
    with pytest.raises(StochasticError, match=r"averaged\(pgd, 20\)"):
        s.gradient(apart(3), rise)
    with pytest.raises(StochasticError):
        s.gradients(apart(3), torch.zeros(3, 1).long())
    s.logits(apart(3))  # scores of one draw are no gradient
    s.averaged(2).gradient(apart(3), rise)


def test_averages_are_over_chances_that_vary_and_repeat() -> None:
    x = apart(3)

    def square(logits: Tensor, aim: Aim) -> Tensor:
        return logits[:, 0] ** 2  # its gradient depends on the draw

    victim, s = noisy_siege()
    answer = s.averaged(4).gradient(x, square)
    (shifts,) = victim.shifts
    assert shifts.shape == (12, 1, 4, 4) and len(torch.unique(shifts.flatten(1), dim=0)) == 12
    # The mean over exactly those draws.
    images = (x.repeat_interleave(4, 0) + 0.1 * shifts).requires_grad_(True)
    value = victim.victim(images)[:, 0] ** 2
    (each,) = torch.autograd.grad(value.sum(), images)
    assert each.view(3, 4, -1).var(1).min() > 0
    assert answer.loss is not None
    assert torch.allclose(answer.gradient, each.view(3, 4, 1, 4, 4).mean(1), atol=1e-5)
    assert torch.allclose(answer.loss, value.detach().view(3, 4).mean(1), atol=1e-5)
    assert s.record.meter.queries.tolist() == [4, 4, 4]
    assert s.record.meter.backwards.tolist() == [4, 4, 4]
    # The next time other chances, the next run the same ones, another seed others.
    s.averaged(4).gradient(x, square)
    assert not torch.equal(victim.shifts[0], victim.shifts[1])
    again, t = noisy_siege()
    t.averaged(2).averaged(2).gradient(x, square)
    assert torch.equal(again.shifts[0], shifts)
    third, u = noisy_siege(seed=1)
    u.averaged(4).gradient(x, square)
    assert not torch.equal(third.shifts[0], shifts)


def test_a_rows_chances_do_not_depend_on_its_neighbours() -> None:
    x = apart(3)
    victim, s = noisy_siege()
    s.leave(torch.tensor([True, False, False]))
    s.logits(x)
    s.logits(x[[1, 2, 2]], rows=torch.tensor([1, 2, 2]))
    other, t = noisy_siege()
    t.logits(x)
    t.logits(x)
    assert torch.equal(victim.shifts[0], other.shifts[0][1:])
    assert torch.equal(victim.shifts[1][:2], other.shifts[1][1:])
    assert not torch.equal(victim.shifts[1][1], victim.shifts[1][2])  # asked twice: two draws


def test_a_scan_of_an_averaged_siege_is_averaged() -> None:
    x = apart(2)[:, None].expand(-1, 3, -1, -1, -1)
    victim, s = noisy_siege(2)
    seen: list[Tensor] = []

    def accept(answer: Answer) -> Tensor:
        assert "logits" in answer
        seen.append(answer.logits)
        return torch.zeros_like(answer.hit)

    s.averaged(5).scan(x, accept)
    assert s.record.meter.queries.tolist() == [15, 15]
    assert [len(shift) for shift in victim.shifts] == [10, 10, 10]  # one by one
    mean = (
        victim.victim(x[:, 0].repeat_interleave(5, 0) + 0.1 * victim.shifts[0])
        .view(2, 5, -1)
        .mean(1)
    )
    assert torch.allclose(seen[0][:, 0], mean, atol=1e-5)


@pytest.mark.parametrize("budget", [4, 7, 8])
def test_draws_are_paid_for(budget: int) -> None:
    victim = Noisy(Linear((1, 4, 4), 3))
    x = apart(2)
    s = siege(victim, x, torch.zeros(2).long(), 0.05, leave="end", queries=budget).averaged(4)
    answer = s.logits(x[:, None].expand(-1, 3, -1, -1, -1))
    assert (answer.labels >= 0).sum(1).tolist() == [budget // 4] * 2
    assert s.record.meter.queries.tolist() == [budget // 4 * 4] * 2
    s.settle()
    assert len(s) == 0
    poor = siege(victim, x, torch.zeros(2).long(), 0.05, queries=3).averaged(4)
    assert len(poor) == 0  # not even one answer can be paid


# gradients that are not


def test_vanished_and_broken_gradients_are_noted() -> None:
    flat = Classifier(Curve((0.0, -1.0), (0.45, -1.0), (1.0, 1.0)), classes=2)
    x = dots(0.2, 0.6)
    s = siege(flat, x, torch.zeros(2).long(), 0.1, leave="end")
    s.gradient(x, rise)
    assert s.record.vanished.tolist() == [True, False]

    def broken(logits: Tensor, aim: Aim) -> Tensor:
        return torch.sqrt(logits[:, 1].clamp_min(0.0))  # infinite slope at zero

    t = siege(STEP, dots(0.5, 0.8), torch.zeros(2).long(), 0.1, leave="end")
    answer = t.gradient(dots(0.5, 0.8), broken)
    assert torch.isfinite(answer.gradient).all()
    assert t.record.vanished.tolist() == [True, False] and answer.gradient[1].any()


# neighbours


def test_answers_of_a_row_do_not_depend_on_the_others() -> None:
    victim = Linear((3, 8, 8), 5)
    x = uniform(20, 3, 8, 8)
    labels = victim(x).argmax(1)
    whole = siege(victim, x, labels, 0.5, L2, leave="end", pad=True).gradient(x, rise)
    for rows in ([4], [4, 9, 17], [*range(19, -1, -1)]):
        part = siege(victim, x[rows], labels[rows], 0.5, L2, leave="end", pad=True)
        answer = part.gradient(x[rows], rise)
        assert "gradient" in whole
        assert torch.equal(answer.gradient, whole.gradient[rows])
        assert "logits" in whole
        assert torch.equal(answer.logits, whole.logits[rows])


def test_other_layouts_are_made_contiguous() -> None:
    spy = Spy(Linear((3, 8, 8), 5))
    x = uniform(8, 3, 8, 8)
    s = siege(spy, x, torch.zeros(8).long(), 0.1, Linf, leave="end")
    strided: list[bool] = []
    call = spy.victim.__call__

    def check(image: Tensor, dice: Dice | None = None) -> Tensor:
        strided.append(image.is_contiguous())
        return call(image, dice)

    spy.victim = check  # type: ignore[assignment]  # only called
    plain = s.logits(x).logits
    odd = s.logits(x.contiguous(memory_format=torch.channels_last)).logits
    s.logits(x[:, None].expand(-1, 2, -1, -1, -1))
    assert torch.equal(plain, odd)
    assert all(strided)


def test_candidates_of_one_request_are_one_step_and_counted_in_their_order() -> None:
    s = laid(0.4, 0.4, queries=3, leave="end")
    some = torch.stack([dots(0.45, 0.45), dots(0.6, 0.45), dots(0.6, 0.6)], 1)
    s.logits(some)
    assert s.record.asked.tolist() == [1, 1]
    assert s.record.first_query.tolist() == [2, 3]
    # Of two candidates the second alone can be paid for by nobody: the first is seen, and counted.
    poor = laid(0.4, 0.4, queries=2, leave="end")
    poor.logits(some)
    assert poor.record.first_query.tolist() == [2, -1]
    assert poor.record.meter.queries.tolist() == [2, 2]


def test_a_scan_of_a_sample_held_twice_is_as_asking_one_by_one() -> None:
    s = laid(0.4, 0.4, queries=3, leave="end").view(torch.tensor([0, 0, 1]))
    found = s.scan(
        dots(0.6, 0.6, 0.6)[:, None].repeat(1, 4, 1, 1, 1), lambda told: told.labels == 1
    )
    assert found.choice.tolist() == [0, 0, 0]
    assert s.record.meter.queries.tolist() == [2, 1]


class Ballot(Victim):
    """Labels alone; every third answer is another one."""

    access, metered = Access.DECISION, True

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        labels = torch.tensor([1, 1, 0]).repeat(len(x))[: len(x)]
        return torch.where(nn.functional.one_hot(labels, 2) > 0, 0.0, -torch.inf)


def test_a_scan_by_votes_counts_labels_as_requests_do() -> None:
    ballot = Ballot()
    s = siege(ballot, dots(0.4), torch.zeros(1).long(), 0.3, access=Access.DECISION, leave="end")
    view = s.averaged(3)
    assert view.labels(dots(0.6)).labels.tolist() == [1]
    assert view.scan(dots(0.6)[:, None], lambda told: told.labels == 1).choice.tolist() == [0]

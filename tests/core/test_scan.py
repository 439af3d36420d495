"""Scans with a loss, scans whose every candidate is a step, and how many candidates pay.

What scanning means as such is in test_siege.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.victims import Noisy, Spy, siege, uniform
from torch import Tensor

from besiege.core.answer import Aim, Answer
from besiege.core.oracle import Oracle
from besiege.core.record import Leave, Record
from besiege.core.siege import Siege
from besiege.core.threat import Access
from besiege.testing.victims import Linear

SHAPE = (1, 4, 4)
ROWS, K = 6, 7


def rise(logits: Tensor, aim: Aim) -> Tensor:
    """The best wrong class over the label."""
    own = logits.gather(1, aim.labels[:, None])[:, 0]
    return logits.scatter(1, aim.labels[:, None], -torch.inf).amax(1) - own


def points() -> Tensor:
    return 0.1 + 0.8 * uniform(ROWS, *SHAPE, seed=1)


def candidates() -> Tensor:
    return (points()[:, None] + 0.4 * (uniform(ROWS, K, *SHAPE, seed=3) - 0.5)).clamp(0, 1)


def laid(
    how: str,
    leave: Leave = "success",
    queries: int | None = None,
    watch: Callable[[Record], None] | None = None,
) -> tuple[Spy, Siege]:
    victim = Spy(Linear(SHAPE, 3))
    victim.metered = how == "metered"
    x = points()
    labels = victim.victim(x).argmax(1)
    s = siege(victim, x, labels, 0.25, leave=leave, queries=queries, watch=watch)
    s.survey()
    return victim, s


def one_by_one(s: Siege, x: Tensor, least: Tensor) -> tuple[list[int], Tensor]:
    """Which candidate of each row is the first above `least`, and the loss last seen."""
    choice, seen = torch.full((len(x),), K), torch.full((len(x),), -torch.inf)
    for k in range(K):
        rows = ((choice == K) & s._queries.alive(s._active)).nonzero()[:, 0]
        if not len(rows):
            break
        answer = s.logits(x[rows, k], rows=rows, loss=rise)
        seen[rows] = answer.loss
        stop = answer.loss > least[rows]
        if s.leaves == "success":
            stop |= answer.hit
        choice[rows[stop]] = k
    return choice.tolist(), seen


@pytest.mark.parametrize("budget", [None, 3, 5])
@pytest.mark.parametrize("leave", ["success", "end"])
@pytest.mark.parametrize("threshold", [-2.0, 0.0, 9.0])
def test_each_candidate_is_a_step_and_tells_its_loss(
    budget: int | None, leave: Leave, threshold: float
) -> None:
    least = threshold + uniform(ROWS, seed=5)
    _, plain = laid("plain", leave, budget)
    # Rows have been asked unequally often before.
    first = torch.tensor([1, 4])
    plain.logits(plain.ball.center[first], rows=first)
    choice, loss = one_by_one(plain, candidates(), least)
    for how in ("local", "metered"):
        _, s = laid(how, leave, budget)
        s.logits(s.ball.center[first], rows=first)
        scan = s.scan(candidates(), lambda a: a.loss > least[:, None], rise, each=True)
        assert scan.choice.tolist() == choice
        assert torch.allclose(scan.answer.loss, loss, atol=1e-5)
        a, b = s.record, plain.record
        for name in ("success", "images", "distance", "first_query", "first_step", "asked"):
            assert torch.equal(getattr(a, name), getattr(b, name)), (how, name)
        assert torch.equal(a.meter.queries, b.meter.queries)
    if threshold == 9.0 and leave == "end" and budget is None:
        assert choice == [K] * ROWS
        assert plain.record.asked.tolist() == [K, K + 1, K, K, K + 1, K]


def test_a_hit_in_the_middle_of_a_scan_is_dated_by_its_place() -> None:
    """Also where earlier hits are known, and where a second scan follows."""
    _, s = laid("local", "end")
    _, plain = laid("plain", "end")
    never = torch.full((ROWS,), torch.inf)
    for _ in range(2):
        s.scan(candidates(), lambda a: a.loss > torch.inf, rise, each=True)
        one_by_one(plain, candidates(), never)
    found = s.record.first_step
    assert torch.equal(found, plain.record.first_step)
    assert len({*found.tolist()}) > 2 and found.max() > 0
    assert torch.equal(s.record.asked, plain.record.asked)


def test_without_each_a_scan_is_one_step() -> None:
    _, s = laid("local", "end")
    s.scan(candidates(), lambda a: a.loss > torch.inf, rise)
    assert s.record.asked.tolist() == [1] * ROWS
    assert set(s.record.first_step.tolist()) <= {-1, 0}


@pytest.mark.parametrize("how", ["local", "metered"])
def test_rows_that_are_not_asked_have_no_loss(how: str) -> None:
    _, s = laid(how, "end")
    s.leave(torch.tensor([True] + [False] * (ROWS - 1)))
    seen: list[Answer] = []

    def accept(answer: Answer) -> Tensor:
        seen.append(answer)
        return answer.loss > torch.inf

    scan = s.scan(candidates(), accept, rise, each=True)
    assert all(answer.loss.shape[0] == ROWS for answer in seen)
    assert all((answer.loss[0] == -torch.inf).all() for answer in seen)
    assert scan.answer.loss[0] == -torch.inf and scan.answer.loss[1:].isfinite().all()
    s.leave(torch.ones(ROWS, dtype=torch.bool))
    nobody = s.scan(candidates(), accept, rise, each=True)
    assert (nobody.answer.loss == -torch.inf).all() and nobody.choice.tolist() == [K] * ROWS
    assert s.record.asked.tolist() == [0] + [K] * (ROWS - 1)


def test_the_loss_of_an_averaged_scan_is_a_mean_of_losses() -> None:
    x = points()
    victim = Noisy(Linear(SHAPE, 3), 0.2)
    s = siege(victim, x, victim.victim(x).argmax(1), 0.25, leave="end")
    labels = s.aim.labels.repeat_interleave(5)
    scan = s.averaged(5).scan(candidates()[:, :2], lambda a: a.loss > torch.inf, rise, each=True)
    each = [
        rise(
            victim.victim(candidates()[:, k].repeat_interleave(5, 0) + 0.2 * victim.shifts[k]),
            Aim(labels),
        ).view(ROWS, 5)
        for k in range(2)
    ]
    assert torch.allclose(scan.answer.loss, each[1].mean(1), atol=1e-5)
    assert s.record.asked.tolist() == [2] * ROWS and s.record.meter.queries.tolist() == [10] * ROWS


def test_scans_are_watched() -> None:
    seen: list[Record] = []
    _, s = laid("local", "end", watch=seen.append)
    seen.clear()  # the clean check
    s.scan(candidates(), lambda a: a.loss > torch.inf, rise, each=True)
    assert seen == [s.record]


# how many pay


def test_a_siege_computes_ahead_only_where_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Oracle, "ahead", lambda self, x, draws, chance: 10 * len(x) + draws)
    _, s = laid("local")
    assert s.ahead(0.1) == 10 * ROWS + 1
    assert s.view(torch.tensor([0, 2])).ahead(0.1) == 21
    assert s.averaged(3).ahead(0.1) == 10 * ROWS + 3
    assert s.view(torch.tensor([0, 0, 2])).ahead(0.1) == 1  # a sample with several aims
    _, metered = laid("metered")
    assert metered.ahead(0.1) == 1
    noisy = Noisy(Linear(SHAPE, 3))
    assert siege(noisy, points(), torch.zeros(ROWS).long()).ahead(0.1) == 1
    s.leave(torch.ones(ROWS, dtype=torch.bool))
    s.settle()
    assert s.ahead(0.1) == 1


def oracle(pad: bool = True, batch: int | None = None) -> Oracle:
    return Oracle(Linear(SHAPE, 3), Access.SCORE, batch, pad)


def test_fewer_rows_and_smaller_chances_mean_more_ahead() -> None:
    many = [oracle().ahead(torch.zeros(rows, *SHAPE), 1, 0.05) for rows in (1, 2, 4, 8, 16, 200)]
    assert many == sorted(many, reverse=True) and many[0] > 8 and many[-1] == 1
    rare = [oracle().ahead(torch.zeros(1, *SHAPE), 1, p) for p in (0.0, 0.01, 0.1, 0.5)]
    assert rare == sorted(rare, reverse=True) and rare[0] == 128
    assert oracle().ahead(torch.zeros(8, *SHAPE), 1, 1.0) == 1
    # Draws are images too.
    assert oracle().ahead(torch.zeros(1, *SHAPE), 20, 0.05) < many[0]


@pytest.mark.parametrize("rows", [1, 3, 5, 9, 40])
def test_what_is_computed_ahead_fits_into_a_call(rows: int) -> None:
    for batch in (16, 64, None):
        asked = oracle(batch=batch)
        k = asked.ahead(torch.zeros(rows, *SHAPE), 1, 0.02)
        assert k >= 1 and (k == 1 or rows * k <= min(batch or 128, 128))


def test_padding_is_filled_first() -> None:
    """Up to the padded size, candidates cost nothing."""
    assert oracle().ahead(torch.zeros(1, *SHAPE), 1, 0.9) >= 2
    assert oracle(pad=False).ahead(torch.zeros(1, *SHAPE), 1, 0.9) == 1

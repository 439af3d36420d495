from __future__ import annotations

import pytest
import torch

from besiege.attacks import parse
from besiege.core.dice import Dice
from besiege.core.meter import Meter
from besiege.core.record import COSTS, Record, largest, sure
from besiege.core.threat import Threat
from besiege.evaluation import craft
from besiege.testing.victims import digits, natural


def fresh(rows: int) -> Record:
    images = torch.zeros(rows, 1, 2, 2)
    zero = torch.zeros(rows, dtype=torch.int64)
    meter = Meter(rows, images.device)
    return Record(images, zero, None, meter, Dice.throw(0, zero))


def test_the_climb_is_the_best_loss_so_far_at_three_moments() -> None:
    for length in (1, 3, 8, 63, 64, 65, 500, 1000):
        record = fresh(2)
        for step in range(length):
            # One row rises throughout, the other is best in the middle.
            fall = -abs(step - length // 2)
            record.note_losses(torch.tensor([0, 1]), torch.tensor([float(step), float(fall)]))
        climbed = record.ascent()
        assert climbed is not None
        first, late, best = climbed[0].tolist()
        assert first == 0 and best == length - 1
        # Kept moments are at most a 32nd of the way apart.
        assert abs(late - 0.75 * (length - 1)) <= 1 + length / 32
        assert climbed[1].tolist()[2] == 0 and climbed[1].tolist()[1] <= 0


def test_rows_that_left_and_rows_that_stand_for_several() -> None:
    record = fresh(3)
    record.note_losses(torch.tensor([0, 0, 2]), torch.tensor([1.0, 5.0, 2.0]))
    record.note_losses(torch.tensor([2]), torch.tensor([1.0]))
    assert record.best.tolist() == [5.0, -torch.inf, 2.0]
    assert fresh(1).ascent() is None


def test_craft_tells_the_climb() -> None:
    victim, samples = natural(), digits(8)
    crafted = craft(victim, parse("pgd(steps=12)"), samples, Threat.parse("linf:0.02"))
    assert crafted.ascent is not None and crafted.ascent.shape == (8, 3)
    stands = ~crafted.success
    first, late, best = crafted.ascent[stands].unbind(1)
    assert bool(((first <= late) & (late <= best)).all()) and bool((first < best).any())
    assert not crafted.vanished.any()


def test_of_equal_losses_the_first_is_kept() -> None:
    record, sample = fresh(1), torch.tensor([0])
    for shade in (0.25, 0.75):
        x = torch.full((1, 1, 2, 2), shade)
        record.keep("highest", x, sample, torch.tensor([0.1]).double(), torch.tensor([2.0]))
    assert float(record.images[0, 0, 0, 0]) == 0.25
    both = torch.tensor([0.5, 1.0]).view(2, 1, 1, 1).expand(2, 1, 2, 2)
    twice, far = torch.zeros(2, dtype=torch.int64), torch.full((2,), 0.1).double()
    record.keep("highest", both, twice, far, torch.tensor([3.0, 3.0]))
    assert float(record.images[0, 0, 0, 0]) == 0.5


def test_the_descent_is_the_smallest_distance_within_so_many_passes() -> None:
    record = fresh(2)
    x = torch.zeros(2, 1, 2, 2)

    def keep(samples: list[int], distance: list[float], spent: list[int]) -> None:
        far = torch.tensor(distance, dtype=torch.float64)
        record.keep("smallest", x, torch.tensor(samples), far, None, torch.tensor(spent))

    assert record.descent() is None
    keep([0, 1], [0.5, torch.inf], [2, 2])
    keep([0, 1], [0.75, 0.25], [11, 11])  # larger than before: not noted
    keep([0, 0], [0.3, 0.125], [13, 14])  # of one request the smaller
    keep([1, 1], [0.2, torch.inf], [5_000_000, 5_000_001])
    descent = record.descent()
    assert descent is not None and descent.shape == (2, len(COSTS) + 1)
    at = {cost: place for place, cost in enumerate(COSTS)}
    first, second = descent.tolist()
    assert first[at[1]] == torch.inf and first[at[2]] == 0.5
    assert first[at[12]] == 0.5 and first[at[15]] == 0.125 == first[-1]
    assert second[at[10]] == torch.inf and second[at[12]] == 0.25
    assert second[at[1_000_000]] == 0.25 and second[-1] == pytest.approx(0.2)
    assert bool((descent[:, 1:] <= descent[:, :-1]).all())


def test_the_descent_ends_at_the_distance_and_begins_with_the_first_success() -> None:
    victim, samples = natural(), digits(12)
    for text in ("fabt(steps=10)", "minimal(pgd(steps=5))"):
        attack, threat = parse(text), Threat.parse("l2")
        crafted = craft(victim, attack, samples, threat)
        found = crafted.descent
        assert found is not None
        assert torch.allclose(found[:, -1].double(), crafted.distance, rtol=1e-6)
        marks = torch.tensor([*COSTS, 10**9])
        first = marks[(found < torch.inf).int().argmax(1)]
        spent = crafted.queries + crafted.backwards
        # Within the mark at which it begins, the first success had been seen.
        assert bool((crafted.first_query <= first).all())
        last = (found > found[:, -1:]).sum(1)
        assert bool((marks[(last - 1).clamp(min=0)][last > 0] < spent[last > 0]).all())
        # A row is the same among others, in another order and alone.
        some = torch.tensor([7, 2, 11])
        few = craft(victim, attack, samples.at(some), threat).descent
        assert few is not None and torch.equal(few, found[some])


def test_a_run_of_fewer_steps_is_the_beginning_of_the_descent() -> None:
    victim, samples = natural(), digits(12)
    threat = Threat.parse("l2")
    long = craft(victim, parse("fab(steps=20)"), samples, threat, queries=None)
    assert long.descent is not None
    for budget in (10, 20, 40):
        short = craft(victim, parse("fab(steps=20)"), samples, threat, queries=budget)
        spent = short.queries + short.backwards
        assert short.descent is not None
        # What a limited run found lies between the marks before and after what it spent.
        for row in range(len(samples)):
            after = sum(cost < int(spent[row]) for cost in COSTS)
            assert float(long.descent[row, after]) <= float(short.descent[row, -1])
            if after:
                assert float(long.descent[row, after - 1]) >= float(short.descent[row, -1])


def test_with_a_budget_and_the_first_success_nothing_is_noted() -> None:
    crafted = craft(natural(), parse("pgd(steps=3)"), digits(8), Threat.parse("l2:0.5"))
    assert crafted.descent is None


def test_without_gradients_a_limited_run_ends_exactly_at_its_mark() -> None:
    victim, samples, threat = natural(), digits(12), Threat.parse("linf")
    attack = parse("minimal(square(steps=12))")
    whole = craft(victim, attack, samples, threat).descent
    assert whole is not None
    for place, cost in enumerate(COSTS[:22]):
        short = craft(victim, attack, samples, threat, queries=cost)
        assert torch.equal(short.distance.float(), whole[:, place]), cost


def test_what_rounding_could_turn_counts_as_the_other_side() -> None:
    logits = torch.tensor([[1.0, 1.5, 0.0], [1.0, 1.01, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    labels, hair = torch.zeros(4, dtype=torch.int64), torch.full((4,), 0.1)
    assert sure(logits, labels, None, hair).tolist() == [1, 0, 0, 0]
    goal = torch.ones(4, dtype=torch.int64)
    assert sure(logits, labels, goal, hair).tolist() == [1, 0, 0, 0]
    # Against the best of all others, not against the label alone.
    assert sure(torch.tensor([[0.0, 2.0, 1.95]]), labels[:1], goal[:1], hair[:1]).tolist() == [2]
    assert largest(torch.tensor([[-3.0, 2.0, -torch.inf]])).tolist() == [3.0]

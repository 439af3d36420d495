from __future__ import annotations

import torch

from besiege.attacks import parse
from besiege.core.dice import Dice
from besiege.core.oracle import Meter
from besiege.core.record import Record
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
            record.climb(torch.tensor([0, 1]), torch.tensor([float(step), float(fall)]))
        climbed = record.ascent()
        assert climbed is not None
        first, late, best = climbed[0].tolist()
        assert first == 0 and best == length - 1
        # Kept moments are at most a 32nd of the way apart.
        assert abs(late - 0.75 * (length - 1)) <= 1 + length / 32
        assert climbed[1].tolist()[2] == 0 and climbed[1].tolist()[1] <= 0


def test_rows_that_left_and_rows_that_stand_for_several() -> None:
    record = fresh(3)
    record.climb(torch.tensor([0, 0, 2]), torch.tensor([1.0, 5.0, 2.0]))
    record.climb(torch.tensor([2]), torch.tensor([1.0]))
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

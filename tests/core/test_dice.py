from __future__ import annotations

from hashlib import blake2b

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest
from torch import Tensor

from besiege.core.dice import Dice, random_targets

ROWS = torch.arange(64)

GOLDEN_KEYS = [2220556011230802769, 5673378201298482031, -307967701211469447]
GOLDEN_INTEGERS = [[688, 419, 897], [189, 731, 273], [866, 357, 956]]
GOLDEN_UNIFORMS = [
    [8700886, 7855459, 4908895],
    [6673713, 14077226, 13854950],
    [10621409, 14794867, 1831153],
]
GOLDEN_SIGNS = [-1.0, 1.0, 1.0, -1.0, 1.0, -1.0, -1.0, -1.0]
GOLDEN_NORMALS = [-0.563257, -1.497231, -1.302464]
GOLDEN_COUNTED = [7733648730386958616, 5066583258542126478, -4713681749532397274]
GOLDEN_TARGETS = [2, 2, 8, 2, 4, 6, 2, 5]


def dice(rows: Tensor = ROWS, seed: int = 0) -> Dice:
    return Dice.throw(seed, rows).of("test")


def correlation(a: Tensor, b: Tensor) -> float:
    return float(np.corrcoef(a.flatten().double().numpy(), b.flatten().double().numpy())[0, 1])


def test_uniforms_are_uniform() -> None:
    draw = dice().uniform((3000,))
    assert draw.dtype == torch.float32 and draw.shape == (64, 3000)
    assert draw.min() >= 0 and draw.max() < 1
    assert kstest(draw.flatten().double().numpy(), "uniform").pvalue > 1e-3
    row_means = draw.double().mean(1)
    assert (row_means - 0.5).abs().max() < 5 / (12 * 3000) ** 0.5
    column_means = draw.double().mean(0)
    assert (column_means - 0.5).abs().max() < 5.5 / (12 * 64) ** 0.5


def test_normals_are_normal() -> None:
    draw = dice().normal((3001,)).double()  # odd: the last pair is cut
    assert draw.shape == (64, 3001) and torch.isfinite(draw).all()
    assert kstest(draw.flatten().numpy(), "norm").pvalue > 1e-3
    n = draw.numel()
    for power, moment in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)):
        spread = {1: 1.0, 2: 2.0, 3: 15.0, 4: 96.0}[power] ** 0.5
        assert abs(float((draw**power).mean()) - moment) < 5 * spread / n**0.5
    # The two halves of every Box-Muller pair share a length, and must not show it.
    half = draw[:, :3000].view(64, 2, 1500)
    assert abs(correlation(half[:, 0], half[:, 1])) < 5 / 96000**0.5
    assert abs(correlation(half[:, 0] ** 2, half[:, 1] ** 2)) < 5 / 96000**0.5


def test_signs_are_fair() -> None:
    draw = dice().signs((3000,))
    assert set(draw.flatten().tolist()) == {-1.0, 1.0}
    assert abs(float(draw.double().mean())) < 5 / draw.numel() ** 0.5


@pytest.mark.parametrize("high", [1, 2, 3, 7, 10, 255, 1000])
def test_integers_are_even(high: int) -> None:
    draw = dice().integers(high, (2000,))
    assert draw.dtype == torch.int64
    counts = torch.bincount(draw.flatten(), minlength=high)
    assert len(counts) == high
    assert high == 1 or chisquare(counts.numpy()).pvalue > 1e-3


def test_integers_may_have_a_bound_per_row() -> None:
    high = torch.arange(1, 65)
    draw = dice().integers(high, (500,))
    assert (draw.amax(1) < high).all() and (draw >= 0).all()
    assert (draw.amax(1) >= high - 8).all()
    for row in (2, 30, 63):
        assert chisquare(torch.bincount(draw[row], minlength=row + 1).numpy()).pvalue > 1e-4
    assert torch.equal(dice().integers(high), dice().integers(high, (1,))[:, 0])
    counted = dice().integers(high, (5,), torch.arange(128).view(64, 2))
    assert counted.shape == (64, 2, 5) and (counted < high[:, None, None]).all()
    huge = dice().integers(2**31 - 1, (100,))
    assert (huge >= 0).all() and (huge < 2**31 - 1).all() and huge.max() > 2**30


@pytest.mark.parametrize("kind", ["uniform", "normal", "signs"])
def test_rows_purposes_counters_and_lanes_are_independent(kind: str) -> None:
    def draw(d: Dice, counter: int | Tensor = 0) -> Tensor:
        value: Tensor = getattr(d, kind)((2000,), counter)
        return value

    base = draw(dice())
    limit = 5 / base.numel() ** 0.5
    others = {
        "purpose": draw(Dice.throw(0, ROWS).of("other")),
        "deeper purpose": draw(dice().of("deeper")),
        "number as purpose": draw(dice().of(1)),
        "seed": draw(dice(seed=1)),
        "counter": draw(dice(), 1),
        "far counter": draw(dice(), 10**6),
        "neighbouring ids": draw(dice(ROWS + 1000)),
        "shifted rows": base.roll(1, 0),
        "shifted lanes": base.roll(1, 1),
        "lanes two on": base.roll(2, 1),
        "half": base.roll(1000, 1),
    }
    for name, other in others.items():
        assert abs(correlation(base, other)) < limit, name
    # Consecutive counters and consecutive lanes are different streams, also shifted.
    for shift in range(1, 6):
        assert abs(correlation(base[:, shift:], others["counter"][:, :-shift])) < limit * 1.1


def test_texts_and_numbers_are_different_purposes() -> None:
    keys = {
        tuple(Dice.throw(0, ROWS).of(*purpose).key.tolist())
        for purpose in (("1",), (1,), ("a", "b"), ("ab",), ("b", "a"), ("a",), (0,), (-1,))
    }
    assert len(keys) == 8


def test_adjacent_ids_and_seeds_never_share_a_key() -> None:
    ids = torch.cat([torch.arange(20000), torch.tensor([2**62, 2**63 - 1])])
    keys = torch.cat([Dice.throw(seed, ids).key for seed in range(5)])
    assert len(torch.unique(keys)) == len(keys)


@pytest.mark.parametrize("kind", ["uniform", "normal", "signs"])
def test_a_row_draws_the_same_alone_in_a_batch_and_permuted(kind: str) -> None:
    def draw(rows: Tensor, counter: int | Tensor = 3) -> Tensor:
        value: Tensor = getattr(dice(rows), kind)((3, 5, 7), counter)
        return value

    whole = draw(ROWS)
    for some in ([0], [63], [5, 3], list(range(63, -1, -1))):
        rows = torch.tensor(some)
        assert torch.equal(draw(rows), whole[rows])
        assert torch.equal(dice().at(rows).key, dice(rows).key)
    assert torch.equal(draw(ROWS, torch.full((64,), 3)), whole)


@pytest.mark.parametrize("kind", ["uniform", "normal", "signs"])
def test_counters_may_be_per_row_and_per_candidate(kind: str) -> None:
    def draw(counter: int | Tensor) -> Tensor:
        value: Tensor = getattr(dice(), kind)((4, 3), counter)
        return value

    counters = torch.stack([torch.arange(64), torch.arange(64) * 7 + 1, torch.full((64,), 2)], 1)
    got = draw(counters)
    assert got.shape == (64, 3, 4, 3)
    for k in range(3):
        assert torch.equal(got[:, k], draw(counters[:, k]))
    assert torch.equal(got[:, 2], draw(2))
    for row in range(0, 64, 9):
        assert torch.equal(draw(row)[row], draw(counters[:, 0])[row])


def test_counted_dice_are_dice_of_their_own() -> None:
    first, second = (dice().counted(torch.full((64,), n)) for n in (0, 1))
    assert not (first.key == second.key).any()
    mixed = dice().counted(torch.arange(64) % 2)
    assert torch.equal(mixed.key, torch.where(ROWS % 2 == 0, first.key, second.key))


def test_nothing_global_is_drawn_from_or_changed() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = [dice().normal((3,)), dice().uniform((3,)), dice().integers(9, (3,))]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    again = [dice().normal((3,)), dice().uniform((3,)), dice().integers(9, (3,))]
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b)


def test_drawing_does_not_change_the_dice() -> None:
    thrown = dice()
    key = thrown.key.clone()
    ids = ROWS.clone()
    for _ in range(2):
        thrown.of("x")
        thrown.uniform((3,), torch.arange(64))
        thrown.normal((3,))
        thrown.counted(torch.arange(64))
        Dice.throw(0, ids)
    assert torch.equal(thrown.key, key) and torch.equal(ids, ROWS)


def test_the_stream_is_what_it_always_was() -> None:
    """Every stored result was drawn from this stream: changing it changes all of them."""
    one = Dice.throw(7, torch.tensor([0, 1, 12345])).of("start", 2)
    assert one.key.tolist() == GOLDEN_KEYS
    assert one.integers(1000, (3,)).tolist() == GOLDEN_INTEGERS
    assert (one.uniform((3,), 4) * 2**24).long().tolist() == GOLDEN_UNIFORMS
    assert one.signs((8,))[0].tolist() == GOLDEN_SIGNS
    assert one.normal((3,))[0].tolist() == pytest.approx(GOLDEN_NORMALS, rel=1e-5)
    assert one.counted(torch.tensor([0, 1, 2])).key.tolist() == GOLDEN_COUNTED


def test_random_targets_are_never_the_label_and_stable() -> None:
    ids = torch.arange(5000)
    for classes in (2, 3, 10, 100):
        labels = (ids * 7) % classes
        targets = random_targets(ids, labels, classes)
        assert (targets != labels).all()
        assert (targets >= 0).all() and (targets < classes).all()
        offset = (targets - labels) % classes
        counts = torch.bincount(offset, minlength=classes)[1:]
        assert classes == 2 or chisquare(counts.numpy()).pvalue > 1e-3
        order = torch.randperm(5000, generator=torch.Generator().manual_seed(0))
        assert torch.equal(random_targets(ids[order], labels[order], classes), targets[order])
    assert random_targets(torch.arange(8), torch.zeros(8).long(), 10).tolist() == GOLDEN_TARGETS


def test_bits_are_those_of_a_plain_implementation() -> None:
    """In Python's whole numbers, with logical shifts."""
    mask, golden = (1 << 64) - 1, 0x9E3779B97F4A7C15

    def mix(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    def word(*parts: str | int) -> int:
        text = "\x1f".join(f"{type(p).__name__}:{p}" for p in parts).encode()
        return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")

    ids, counter = [0, 1, 12345, 2**63 - 1], 9
    thrown = Dice.throw(3, torch.tensor(ids)).of("a", 1)
    for row, number in enumerate(ids):
        key = mix((mix((number * golden + word("seed", 3)) & mask) + word("a", 1)) & mask)
        assert int(thrown.key[row]) & mask == key
        start = mix((key + (counter + 1) * golden) & mask)
        words = [mix((start + i * golden) & mask) for i in (1, 2)]
        lanes = [w >> s & 0xFFFFFFFF for w in words for s in (0, 32)]
        assert thrown.integers(1 << 20, (4,), counter)[row].tolist() == [n >> 12 for n in lanes]
        low = [n & 0xFFFFFF for n in lanes]
        assert (thrown.uniform((4,), counter)[row] * 2**24).long().tolist() == low
        signs = [1.0 if n & 2 else -1.0 for n in lanes]
        assert thrown.signs((4,), counter)[row].tolist() == signs


def test_nobody_draws_nothing() -> None:
    nobody = Dice.throw(0, torch.zeros(0).long())
    assert nobody.normal((1, 3, 3)).shape == (0, 1, 3, 3)
    assert nobody.normal((5,), torch.zeros(0, 2).long()).shape == (0, 2, 5)

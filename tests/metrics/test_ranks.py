"""Ranks: by hand, coverage in simulations, ties of equal models."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from besiege.core.errors import InputError
from besiege.metrics.paired import Difference
from besiege.metrics.ranks import clearly_better, corrected_p, leaderboard, rank_ranges
from besiege.metrics.resampling import Resampling, critical

Numbers = NDArray[np.float64]
RATES = {
    "equal": [0.5] * 6,
    "rare": [0.02] * 6,
    "spread": [0.3, 0.4, 0.45, 0.5, 0.55, 0.8],
    "halves": [0.3] * 3 + [0.5] * 3,
    "zeros": [0.0, 0.0, 0.0, 0.3, 0.31, 0.9],
}


def outcomes(rates: list[float], count: int, generator: np.random.Generator) -> Numbers:
    """Outcomes of models that agree on most images."""
    own = generator.random((len(rates), count)) < 0.4
    drawn = np.where(own, generator.random(own.shape), generator.random(count))
    return (drawn < np.array(rates)[:, None]).astype(np.float64)


def covered(rates: list[float], count: int, simulations: int, capped: bool = False) -> float:
    """How often the ranges of all models hold all their true ranks; equal ones have several."""
    generator, resampling = np.random.default_rng(count), Resampling.of(count, 1000)
    truth = np.array(rates)
    first = 1 + (truth > truth[:, None]).sum(1)
    last = len(rates) - (truth < truth[:, None]).sum(1)
    hits = 0
    for _ in range(simulations):
        values = outcomes(rates, count, generator)
        if capped:  # distances instead: the same chances of an image to be broken at all
            values = np.where(values > 0, 1, generator.beta(1, 3, values.shape))
        found = rank_ranges(clearly_better(values, resampling=resampling))
        hits += bool(((found[0] <= first) & (last <= found[1])).all())
    return hits / simulations


@pytest.mark.parametrize("rates", RATES.values(), ids=RATES)
def test_the_ranges_hold_the_true_ranks(rates: list[float]) -> None:
    assert covered(rates, 100, 150) >= 0.91


@pytest.mark.slow
@pytest.mark.parametrize("count", [50, 200, 1000])
@pytest.mark.parametrize("rates", RATES.values(), ids=RATES)
def test_the_ranges_hold_the_true_ranks_in_1000_simulations(rates: list[float], count: int) -> None:
    found, capped = covered(rates, count, 1000), covered(rates, count, 300, capped=True)
    print(f"{rates} {count}: {found:.3f}, of distances {capped:.3f}")
    assert found >= 0.93 and capped >= 0.91


def test_equal_models_tie() -> None:
    values = outcomes([0.5] * 4, 300, np.random.default_rng(1))
    for one in leaderboard("abcd", values):
        assert (one.first, one.last) == (1, 4)
        assert {*one.tied, one.name} == set("abcd")
    same = np.repeat(values[:1], 3, 0)
    assert [one.rank for one in leaderboard("abc", same)] == [1, 1, 1]
    assert all((one.first, one.last) == (1, 3) for one in leaderboard("abc", same))


def test_models_far_apart_have_one_rank_each() -> None:
    values = outcomes([0.1, 0.9, 0.5], 500, np.random.default_rng(2))
    found = leaderboard(["low", "high", "middle"], values)
    assert [one.name for one in found] == ["high", "middle", "low"]
    assert [(one.rank, one.first, one.last) for one in found] == [(1, 1, 1), (2, 2, 2), (3, 3, 3)]
    assert found[0].value == values[1].mean() and not found[0].tied


def test_later_rounds_find_more_than_the_first() -> None:
    """With clear pairs set aside, the deviations of the rest are smaller."""
    count, generator = 400, np.random.default_rng(3)
    resampling, first, all_rounds = Resampling.of(count, 1000), 0, 0
    one, other = np.triu_indices(6, 1)
    for _ in range(40):
        values = outcomes(RATES["spread"], count, generator)
        change = values[one] - values[other]
        within = critical(resampling.deviations(change).max(1, keepdims=True))[0]
        first += int((np.abs(change.sum(1)) > within * np.sqrt(np.abs(change).sum(1))).sum())
        all_rounds += int(clearly_better(values, resampling=resampling).sum())
    assert all_rounds > first


def test_two_models_are_told_apart_as_by_mcnemars_test() -> None:
    generator, resampling = np.random.default_rng(4), Resampling.of(200)
    agree = 0
    for rate in np.linspace(0.5, 0.7, 40):
        pair = outcomes([0.5, float(rate)], 200, generator)
        clear = clearly_better(pair, resampling=resampling)
        assert not clear[0, 0] and not (clear[0, 1] and clear[1, 0])
        agree += bool(clear.any()) == (Difference.of(*pair).p < 0.05)
    assert agree >= 36


def test_p_values_are_those_of_the_largest_deviation_of_the_pairs_that_are_left() -> None:
    values = outcomes(RATES["spread"], 150, np.random.default_rng(7))
    one, other = np.triu_indices(6, 1)
    change, resampling = values[one] - values[other], Resampling.of(150, 500)
    found = corrected_p(change, resampling=resampling)
    size = np.abs(change.sum(1)) / np.sqrt(np.abs(change).sum(1))
    moved, least = resampling.deviations(change), 0.0
    for pair in np.argsort(-size, kind="stable"):
        rest = moved[:, size <= size[pair]].max(1)
        own = Difference.of(change[pair] > 0, change[pair] < 0).p
        least = max(least, own, (1 + (rest >= size[pair]).sum()) / 501)
        assert found[pair] == pytest.approx(least)
    assert found.min() < 0.01 and found.max() > 0.5


def test_a_pair_is_never_surer_than_alone() -> None:
    """Five to none is no finding, however few the resamples in which that happens."""
    five = [[1.0] * 5 + [0.0] * 195]
    assert corrected_p(five)[0] == 0.0625
    assert corrected_p(np.multiply(five, 0.5))[0] < 0.05  # sizes have no exact test
    assert not clearly_better([five[0], [0.0] * 200]).any()
    assert len(corrected_p(np.zeros((0, 5)))) == 0
    assert corrected_p(np.zeros((2, 5))).tolist() == [1.0, 1.0]


def test_images_that_were_not_judged_are_left_out() -> None:
    values = outcomes([0.2, 0.8], 200, np.random.default_rng(5))
    known = np.random.default_rng(6).random(values.shape) < 0.7
    found = leaderboard(["a", "b"], np.where(known, values, 1 - values), known)
    assert [one.name for one in found] == ["b", "a"]
    assert found[0].value == pytest.approx(values[1][known[1]].mean())
    assert leaderboard(["a", "b"], np.where(known, values, np.nan)) == found
    nothing = leaderboard(["a", "b"], values, np.zeros(200, bool))
    assert all((one.first, one.last) == (1, 2) for one in nothing)


def test_one_model_is_first() -> None:
    (one,) = leaderboard(["a"], [[1, 0, 1]])
    assert (one.rank, one.first, one.last, one.tied) == (1, 1, 1, ())


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"\[models, images\]"):
        leaderboard(["a", "b"], [[1, 0, 1]])

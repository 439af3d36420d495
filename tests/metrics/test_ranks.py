"""Ranks: by hand, coverage in simulations, ties of equal models."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from besiege.metrics.paired import ALPHA, Difference
from besiege.metrics.ranks import corrected_p, rank_ranges
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


def clearly_better(values: Numbers, resampling: Resampling | None = None) -> NDArray[np.bool_]:
    """Which models are better than which, by the corrected p-values of all pairs."""
    one, other = np.triu_indices(len(values), 1)
    change = values[one] - values[other]
    clear, sign = corrected_p(change, resampling=resampling) < ALPHA, change.sum(1)
    better = np.zeros((len(values), len(values)), bool)
    better[one, other], better[other, one] = clear & (sign > 0), clear & (sign < 0)
    return better


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


@pytest.mark.parametrize("models", [1, 2, 5, 9])
def test_a_range_of_ranks_holds_the_rank_of_every_order_that_fits(models: int) -> None:
    """Whatever is clear, as long as an order fits it: also where it is not transitive."""
    generator = np.random.default_rng(models)
    for _ in range(50):
        order = generator.permutation(models)  # the model at each place
        rank = np.argsort(order) + 1
        better = (rank[:, None] < rank) & (generator.random((models, models)) < 0.5)
        first, last = rank_ranges(better)
        assert (first >= 1).all() and (last <= models).all()
        assert ((first <= rank) & (rank <= last)).all()


def test_equal_models_share_all_ranks() -> None:
    values = outcomes([0.5] * 4, 300, np.random.default_rng(1))
    for some in (values, np.repeat(values[:1], 3, 0)):
        first, last = rank_ranges(clearly_better(some))
        assert (first == 1).all() and (last == len(some)).all()


def test_models_far_apart_have_one_rank_each() -> None:
    values = outcomes([0.1, 0.9, 0.5], 500, np.random.default_rng(2))
    first, last = rank_ranges(clearly_better(values))
    assert first.tolist() == last.tolist() == [3, 1, 2]


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
    assert not clearly_better(np.array([five[0], [0.0] * 200])).any()
    assert len(corrected_p(np.zeros((0, 5)))) == 0
    assert corrected_p(np.zeros((2, 5))).tolist() == [1.0, 1.0]


def test_images_that_were_not_judged_are_left_out() -> None:
    values = outcomes([0.2, 0.8], 200, np.random.default_rng(5))
    known = np.random.default_rng(6).random(200) < 0.7
    change = (values[1] - values[0])[None]
    found = corrected_p(np.where(known, change, -1), known)
    assert found < 0.05 and corrected_p(change, np.zeros(200, bool)) == 1
    assert corrected_p(np.where(known, change, 0), known) == found

"""Curves and bands: values by a few lines, coverage in simulations, pairing, masks, extremes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import lognorm

from besiege.core.errors import InputError
from besiege.metrics.bands import (
    accuracy_bands,
    areas,
    medians,
    share_bands,
    success_bands,
)
from besiege.metrics.intervals import clopper_pearson
from besiege.metrics.optimality import area
from besiege.metrics.resampling import Resampling

Numbers = NDArray[np.float64]
BUDGETS = np.linspace(0.0, 0.3, 40)
LIKELY = lognorm(0.7, scale=np.exp(-3))


def long_tailed(generator: np.random.Generator, count: int) -> Numbers:
    """Rates from 1 down to 0.0003 on the budgets: the extremes at both ends."""
    return np.asarray(generator.lognormal(-3, 0.7, count))


def ordinary(generator: np.random.Generator, count: int) -> Numbers:
    """A tenth misclassified when clean, a twentieth never broken."""
    found, chance = long_tailed(generator, count), generator.random(count)
    found[chance < 0.1], found[chance > 0.95] = 0.0, np.inf
    return found


def steep(generator: np.random.Generator, count: int) -> Numbers:
    """All images break between two neighbouring budgets, of which few are on the grid."""
    return 0.05 + 0.02 * generator.random(count)


def in_steps(generator: np.random.Generator, count: int) -> Numbers:
    """Ties: images break at one of five budgets."""
    return np.asarray(generator.choice([0.0, 0.05, 0.1, 0.2, np.inf], count))


TRUTHS: dict[Callable[..., Numbers], Callable[[Numbers], Numbers]] = {
    long_tailed: LIKELY.sf,
    ordinary: lambda x: 0.05 + 0.85 * LIKELY.sf(x),
    steep: lambda x: np.clip(1 - (x - 0.05) / 0.02, 0, 1),
    # A distance that exceeds a budget by rounding only is within it.
    in_steps: lambda x: 0.8 - 0.2 * np.sum([1.000001 * x >= s for s in (0.05, 0.1, 0.2)], 0),
}


def coverage(draw: Callable[..., Numbers], count: int, simulations: int) -> tuple[float, float]:
    """How often the pointwise band covers, at its worst budget, and the simultaneous one."""
    generator, resampling = np.random.default_rng(count), Resampling.of(count, 1000)
    truth = TRUTHS[draw](BUDGETS)
    ends = np.stack([draw(generator, count) for _ in range(simulations)])
    found = accuracy_bands(ends, BUDGETS, resampling=resampling)
    tiny = 1e-12  # a true rate of 0 or 1 is computed with rounding
    pointwise = (found.low <= truth + tiny) & (truth <= found.high + tiny)
    whole = (found.lowest <= truth + tiny) & (truth <= found.highest + tiny)
    return float(pointwise.mean(0).min()), float(whole.all(1).mean())


@pytest.mark.parametrize("count", [30, 100])
@pytest.mark.parametrize("draw", TRUTHS)
def test_bands_cover_as_stated(draw: Callable[..., Numbers], count: int) -> None:
    pointwise, whole = coverage(draw, count, 300)
    assert pointwise >= 0.92
    assert whole >= 0.925


@pytest.mark.slow
@pytest.mark.parametrize("count", [30, 100, 397, 1000])
@pytest.mark.parametrize("draw", TRUTHS)
def test_bands_cover_as_stated_in_1000_simulations(
    draw: Callable[..., Numbers], count: int
) -> None:
    pointwise, whole = coverage(draw, count, 1000)
    print(f"{draw.__name__} {count}: pointwise {pointwise:.3f} at worst, simultaneous {whole:.3f}")
    assert pointwise >= 0.93  # the worst of 40 budgets, each at least 95 % in truth
    assert 0.94 <= whole <= 0.995


def test_curves_areas_and_medians_are_those_of_a_few_lines() -> None:
    generator = np.random.default_rng(1)
    given = np.stack([[ordinary(generator, 200) for _ in range(3)] for _ in range(2)])
    budgets = [0.0, 0.04, 0.1]
    found, areas_found, medians_found = (
        accuracy_bands(given, budgets),
        areas(given, 0.1),
        medians(given),
    )
    for model in range(2):
        for attack in range(3):
            one = given[model, attack]
            for place, budget in enumerate(budgets):
                left = sum(distance > budget for distance in one)
                assert found.value[model, attack, place] == left / 200
                ends = found.low[model, attack, place], found.high[model, attack, place]
                assert ends == pytest.approx(clopper_pearson(int(left), 200))
            assert areas_found.value[model, attack] == pytest.approx(area(one, 0.1))
            assert medians_found.value[model, attack] == sorted(one)[99]
    assert areas_found.end == 0.1
    assert found.count.tolist() == [[200] * 3] * 2


def test_success_and_accuracy_obey_their_identity() -> None:
    """accuracy = clean accuracy x (1 - success rate), since clean errors have distance 0."""
    ends = ordinary(np.random.default_rng(2), 300)
    right = ends > 0
    accuracy = accuracy_bands(ends, BUDGETS).value
    success = success_bands(ends, BUDGETS, right)
    assert accuracy == pytest.approx(right.mean() * (1 - success.value))
    assert success.count == right.sum()
    assert success_bands(ends, BUDGETS).value == pytest.approx(1 - accuracy)


def test_the_simultaneous_band_holds_the_pointwise_one_and_compares_with_the_free_bound() -> None:
    """The bound of Dvoretzky, Kiefer and Wolfowitz: 0.043 everywhere with 1,000 images."""
    ends = ordinary(np.random.default_rng(3), 1000)
    found = accuracy_bands(ends, BUDGETS)
    assert (found.lowest <= found.low).all() and (found.high <= found.highest).all()
    assert (found.low <= found.value).all() and (found.value <= found.high).all()
    assert 2.5 < found.critical < 3.3
    free = np.sqrt(np.log(2 / 0.05) / (2 * 1000))
    half = (found.highest - found.lowest) / 2
    assert 0.9 * free < half.max() < 1.2 * free, "in the middle about as wide"
    assert half[-1] < 0.7 * free, "at the ends narrower"


def test_one_point_is_its_exact_interval() -> None:
    found = accuracy_bands(ordinary(np.random.default_rng(4), 500), [0.05])
    assert found.critical == pytest.approx(1.96, abs=0.12)
    assert found.lowest == pytest.approx(found.low, abs=0.004)


def test_bands_of_all_curves_together_are_wider_than_those_of_each() -> None:
    generator = np.random.default_rng(5)
    given = np.stack([ordinary(generator, 200) for _ in range(10)])
    each, together = (accuracy_bands(given, BUDGETS, together=every) for every in (False, True))
    assert (together.critical >= each.critical.max()).all()
    assert len(set(together.critical.tolist())) == 1
    copies = np.repeat(given[:1], 10, 0)
    alone, repeated = (accuracy_bands(some, BUDGETS, together=True) for some in (given[:1], copies))
    assert repeated.critical[0] == alone.critical[0], "equal curves rise and fall together"


def test_rates_of_0_and_1_have_bands() -> None:
    for ends, value in ((np.zeros(100), 0.0), (np.full(100, np.inf), 1.0)):
        found = accuracy_bands(ends, [0.1, 0.2])
        assert (found.value == value).all()
        assert found.high - found.low == pytest.approx(0.0362, abs=1e-4)
        assert (found.highest - found.lowest == found.high - found.low).all()


def test_unknown_images_are_left_out() -> None:
    generator = np.random.default_rng(6)
    ends = np.stack([ordinary(generator, 120) for _ in range(2)])
    known = generator.random((2, 120)) < [[0.5], [0.9]]
    found = accuracy_bands(ends, BUDGETS, known)
    for model in range(2):
        chosen = ends[model][known[model]]
        alone = accuracy_bands(chosen, BUDGETS)
        assert (found.value[model] == alone.value).all()
        assert (found.low[model] == alone.low).all()
        assert found.critical[model] == pytest.approx(alone.critical, abs=0.2)
        assert areas(ends, 0.2, known).value[model] == pytest.approx(area(chosen, 0.2))
        assert medians(ends, known).value[model] == medians(chosen).value
    assert found.count.tolist() == known.sum(1).tolist()
    blank = np.where(known, ends, np.nan)
    assert (accuracy_bands(blank, BUDGETS).lowest == found.lowest).all()
    assert (areas(blank, 0.2).low == areas(ends, 0.2, known).low).all()
    assert (medians(blank).low == medians(ends, known).low).all()
    none = accuracy_bands(ends, BUDGETS, np.zeros(120, bool))
    assert (none.low == 0).all() and (none.high == 1).all() and (none.count == 0).all()
    assert np.isnan(medians(ends, False).value).all()


@pytest.mark.parametrize("draw", [ordinary, long_tailed])
def test_intervals_of_areas_and_medians_cover_95_percent(draw: Callable[..., Numbers]) -> None:
    generator, count = np.random.default_rng(7), 100
    ends = np.stack([draw(generator, count) for _ in range(1000)])
    many = draw(generator, 1_000_000)
    for found, truth in (
        (areas(ends, 0.2, resampling=Resampling.of(count, 1000)), np.minimum(many, 0.2).mean()),
        (medians(ends), np.median(many)),
    ):
        covered = float(((found.low <= truth) & (truth <= found.high)).mean())
        assert 0.93 <= covered <= 0.975


def test_the_area_of_equal_distances_is_not_certain() -> None:
    found = areas([np.zeros(100), np.full(100, np.inf), np.full(100, 0.1)], 0.2)
    assert found.value == pytest.approx([0, 0.2, 0.1])
    assert found.low == pytest.approx([0, 0.2 * 0.9638, 0.2 * 0.3983], abs=1e-4)
    assert found.high == pytest.approx([0.2 * 0.0362, 0.2, 0.2 * 0.6017], abs=1e-4)


def test_the_median_of_few_images_is_not_known() -> None:
    found = medians([[0.1, 0.2, 0.3, 0.4, 0.5], [0.1, 0.2, np.inf, np.inf, np.inf]])
    assert found.value.tolist() == [0.3, np.inf]
    assert found.low.tolist() == [0, 0] and found.high.tolist() == [np.inf, np.inf]
    found = medians([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]])
    assert (found.value[0], found.low[0], found.high[0]) == (0.3, 0.1, 0.6)


def test_resamples_draw_as_many_images_and_repeat() -> None:
    one = Resampling.of(50, 400)
    assert (one.weights.sum(1) == 50).all()
    assert (one.weights == Resampling.of(50, 400).weights).all()
    assert (one.weights != Resampling.of(50, 400, seed=1).weights).any()
    assert one.weights.mean(0) == pytest.approx(np.ones(50), abs=0.25)
    values = np.random.default_rng(8).random((3, 50))
    known = values > 0.3
    plain = [[np.average(row, weights=w) for row in values] for w in one.weights]
    masked = [
        [np.average(row, weights=w * k) for row, k in zip(values, known, strict=True)]
        for w in one.weights
    ]
    assert one.means(values) == pytest.approx(np.array(plain), rel=1e-5)
    assert one.means(values, known) == pytest.approx(np.array(masked), rel=1e-5)


def test_deviations_are_in_standard_errors() -> None:
    values = np.random.default_rng(9).random((2, 400))
    values[1] = 0.7  # no variance
    found = Resampling.of(400).deviations(values)
    assert np.quantile(found[:, 0], 0.95) == pytest.approx(1.96, abs=0.12)
    assert (found[:, 1] == 0).all()


@pytest.mark.parametrize("given", [[], [-0.1, 0.2], [[]]])
def test_values_that_are_no_distances_are_refused(given: list[float]) -> None:
    with pytest.raises(InputError, match="at least 0"):
        accuracy_bands(given, [0.1])


def test_shapes_and_ends_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"\[\.\.\., points, images\]"):
        share_bands(np.ones((3, 10), bool), [0.1])
    with pytest.raises(InputError, match="do not fit"):
        accuracy_bands(np.ones(10), [0.1], np.ones(9, bool))
    with pytest.raises(InputError, match="do not fit"):
        accuracy_bands(np.ones(10), [0.1], resampling=Resampling.of(9))
    with pytest.raises(InputError, match="above 0"):
        areas(np.ones(10), np.inf)
    with pytest.raises(InputError, match="at least one"):
        Resampling.of(0)

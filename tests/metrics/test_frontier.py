"""The frontier of accuracy and distortion, and the law along it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import linregress, spearmanr

from besiege.core.errors import InputError
from besiege.metrics.frontier import frontier_of, law_of, spearman

RATES = np.array([0.08, 0.15, 0.22, 0.3, 0.42])
SLOPE, START = 0.029, 0.082


def simulated(
    seed: int, images: int = 400, rates: NDArray[np.float64] = RATES
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Errors and distortions of models on the law; images are hard or easy for all of them."""
    generator = np.random.default_rng(seed)
    ease = generator.normal(size=images)
    own = 0.7 * ease + np.sqrt(1 - 0.7**2) * generator.normal(size=(len(rates), images))
    cut = np.quantile(np.random.default_rng(9).normal(size=200_000), rates)
    noise = 0.01 * (0.8 * ease + 0.6 * generator.normal(size=(len(rates), images)))
    return own < cut[:, None], SLOPE * np.log(rates)[:, None] + START + noise


def test_the_line_is_that_of_least_squares() -> None:
    wrong, sizes = simulated(0)
    law = law_of(wrong, sizes)
    theirs = linregress(np.log(wrong.mean(1)), sizes.mean(1))
    assert law.of_all is not None
    assert law.of_all.slope[0] == pytest.approx(theirs.slope)
    assert law.of_all.intercept[0] == pytest.approx(theirs.intercept)
    assert law.of_all.r2 == pytest.approx(theirs.rvalue**2)
    assert law.of_all(0.1) == pytest.approx(theirs.slope * np.log(0.1) + theirs.intercept)
    assert law.of_all.slope[1] < SLOPE < law.of_all.slope[2]
    assert law.rank is not None and law.rank.value == pytest.approx(1.0)


@pytest.mark.slow
def test_the_interval_of_the_slope_covers_a_known_law() -> None:
    """In 95 % +- 2 of 1,000 simulations."""
    covered = 0
    for seed in range(1000):
        line = law_of(*simulated(seed), seed=seed).of_all
        assert line is not None
        covered += line.slope[1] <= SLOPE <= line.slope[2]
    assert 0.93 <= covered / 1000 <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("median", [False, True])
def test_few_images_flatten_the_line_and_the_interval_knows(median: bool) -> None:
    """200 images, errors down to 5 %: in 90 % at least, which percentiles do not reach."""
    rates, covered = np.array([0.05, 0.1, 0.15, 0.2, 0.3, 0.4]), 0
    for seed in range(400):
        generator = np.random.default_rng(seed)
        wrong = generator.random((6, 200)) < rates[:, None]
        ease, own = generator.normal(size=200), generator.normal(size=(6, 200))
        sizes = 0.1 + SLOPE * np.log(rates)[:, None] + 0.03 * (0.7 * ease + 0.7 * own)
        line = law_of(wrong, sizes, ~wrong, seed=seed, median=median).of_all
        assert line is not None
        covered += line.slope[1] <= SLOPE <= line.slope[2]
    assert 0.915 <= covered / 400 <= 0.975


def test_a_dominated_model_is_left_out() -> None:
    wrong, sizes = simulated(1, 2000)
    worse = np.insert(sizes, 2, sizes[1] - 0.02, axis=0), np.insert(wrong, 2, wrong[3], axis=0)
    law = law_of(worse[1], worse[0])
    assert law.frontier.member.tolist() == [True, True, False, True, True, True]
    assert law.frontier.share[2] == 0 and law.frontier.share[[0, 5]].min() > 0.95
    assert law.on_frontier is not None and law.of_all is not None
    assert law.on_frontier.models == 5 and law.of_all.models == 6
    alone = law_of(wrong, sizes).of_all
    assert alone is not None and law.on_frontier.slope[0] == pytest.approx(alone.slope[0])


def test_membership_is_open_where_images_do_not_tell() -> None:
    generator = np.random.default_rng(0)
    wrong = generator.random((3, 300)) < np.array([[0.1], [0.3], [0.31]])
    sizes = generator.normal([[0.1], [0.2], [0.2]], 0.1, (3, 300))
    share = law_of(wrong, sizes).frontier.share
    assert share[0] > 0.95 and 0.05 < share[1:].min() < 0.95


def test_equal_models_do_not_dominate_each_other() -> None:
    assert frontier_of([0.5, 0.5, 0.4], [0.2, 0.2, 0.2]).tolist() == [True, True, False]
    many = frontier_of(np.array([[0.9, 0.8], [0.8, 0.9]]), np.array([[0.1, 0.0], [0.1, 0.0]]))
    assert many.tolist() == [[True, False], [True, True]]


def test_few_models_have_no_line_and_it_is_said() -> None:
    wrong, sizes = simulated(2)
    two = law_of(wrong[:2], sizes[:2])
    assert two.of_all is None and two.on_frontier is None and two.rank is None
    assert "3 models at least" in two.why
    # Three models of which one dominates the others.
    one = law_of(wrong[:3], sizes[:3][::-1] * np.array([[9.0], [1.0], [1.0]]))
    assert one.of_all is not None and one.on_frontier is None
    assert "1 are on the frontier" in one.why or "are dominated" in one.why
    same = law_of(np.repeat(wrong[:1], 3, 0), sizes[:3])
    assert same.of_all is None and "same error" in same.why
    assert law_of(wrong, sizes).why == ""


def test_only_known_distortions_count() -> None:
    wrong, sizes = simulated(3)
    holes = sizes.copy()
    holes[:, ::3] = np.inf
    kept = np.isfinite(holes)
    law = law_of(wrong, holes)
    assert law.distortion == pytest.approx(
        [row[k].mean() for row, k in zip(sizes, kept, strict=True)]
    )
    assert (law.distortion == law_of(wrong, sizes, kept).distortion).all()
    empty = sizes.copy()
    empty[1] = np.nan
    with pytest.raises(InputError, match="no distortion on any image"):
        law_of(wrong, empty)


def test_tiny_distortions_keep_their_digits() -> None:
    wrong, sizes = simulated(4)
    plain, tiny = law_of(wrong, sizes).of_all, law_of(wrong, 1e-6 * sizes).of_all
    assert plain is not None and tiny is not None
    np.testing.assert_allclose(tiny.slope, 1e-6 * np.array(plain.slope), rtol=1e-4)


def test_published_errors_may_stand_in() -> None:
    wrong, sizes = simulated(5)
    given = law_of(wrong, sizes, error=RATES)
    assert (given.error == RATES).all() and given.of_all is not None
    narrow = given.of_all.slope[2] - given.of_all.slope[1]
    both = law_of(wrong, sizes).of_all
    assert both is not None and narrow < both.slope[2] - both.slope[1]
    with pytest.raises(InputError, match="between 0 and 1"):
        law_of(wrong, sizes, error=100 * RATES)


def test_rank_correlations() -> None:
    generator = np.random.default_rng(6)
    for count in (4, 7, 12):
        x, y = generator.integers(0, 6, count), generator.normal(size=count)
        found, theirs = spearman(x, y), spearmanr(x, y)
        assert found.value == pytest.approx(theirs.statistic) and found.exact == (count <= 8)
    assert spearman([1, 2, 3], [3, 2, 1]).p == pytest.approx(2 / 6)
    assert spearman(np.arange(12), np.arange(12)).p == pytest.approx(1 / 20_001)
    assert spearman([1, 1, 1], [1, 2, 3]).p == 1
    with pytest.raises(InputError, match="3 pairs"):
        spearman([1, 2], [1, 2])


def test_medians_count_failures_as_infinite() -> None:
    wrong, sizes = simulated(7, 401)
    holes = sizes.copy()
    holes[:, ::4] = np.inf
    law = law_of(wrong, holes, median=True)
    assert law.distortion.tolist() == [np.sort(row)[200] for row in holes]
    assert law.of_all is not None and law.of_all.slope[1] < law.of_all.slope[0]
    known = ~wrong
    some = law_of(wrong, holes, known, median=True)
    assert some.distortion[1] == np.sort(holes[1][known[1]])[(known[1].sum() - 1) // 2]
    holes[2, :300] = np.inf
    none = law_of(wrong, holes, median=True)
    assert none.of_all is None and none.distortion[2] == np.inf and "withstood" in none.why


def test_resamples_in_which_all_models_err_alike_have_no_slope() -> None:
    """The mean of seven equal numbers may differ from them in the last bit, by which to divide."""
    generator = np.random.default_rng(3)
    wrong = np.zeros((7, 20), bool)
    wrong[:, :3] = wrong[1:, 3] = wrong[4:, 4] = True
    law = law_of(wrong, generator.normal(0.1, 0.02, (7, 20)))
    assert law.of_all is not None and np.abs(law.of_all.slope).max() < 10

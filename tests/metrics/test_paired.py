"""Paired differences: known values, coverage, power, and an independent computation."""

from __future__ import annotations

import math
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import binomtest, false_discovery_control, norm

from besiege.core.errors import InputError
from besiege.metrics.paired import (
    Difference,
    benjamini_hochberg,
    holm,
    mcnemar,
    paired_interval,
    paired_intervals,
    samples_needed,
)

SIMULATIONS = 2000


@pytest.mark.parametrize(
    ("pair", "p"),
    [((5, 0), 0.0625), ((6, 0), 0.0313), ((30, 15), 0.0357), ((60, 40), 0.0569)],
)
def test_mcnemar_has_the_known_values(pair: tuple[int, int], p: float) -> None:
    assert mcnemar(*pair) == pytest.approx(p, abs=6e-5)
    assert mcnemar(*reversed(pair)) == mcnemar(*pair)


@pytest.mark.parametrize("pair", [(0, 1), (3, 3), (7, 8), (1, 40), (1200, 1100), (5000, 4000)])
def test_mcnemar_is_the_binomial_test_of_a_fair_coin(pair: tuple[int, int]) -> None:
    exact = float(binomtest(pair[0], sum(pair)).pvalue)
    assert mcnemar(*pair) == pytest.approx(exact, rel=1e-9)


def test_mcnemar_of_equal_outcomes_is_one() -> None:
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(4, 4) == 1.0


def test_mcnemar_rejects_a_true_difference_of_zero_at_most_as_often_as_it_says() -> None:
    draws = np.random.default_rng(1).multinomial(100, [0.1, 0.1, 0.8], SIMULATIONS)
    p = cache(mcnemar)
    rejected = np.mean([p(int(b), int(c)) < 0.05 for b, c, _ in draws])
    assert 0.005 < rejected <= 0.05


# The interval.


def test_the_interval_has_a_published_value() -> None:
    # Airway hyper-responsiveness of 21 children: Fagerland, Lydersen and Laake 2013, table 5.
    low, high = paired_interval(1, 7, 21)
    assert (round(low, 3), round(high, 3)) == (-0.517, -0.026)


def statistic(b: int, c: int, n: int, d: float) -> float:
    """The score statistic of the difference `d`: its likelihood is maximised numerically.

    The probabilities are q + d of the first kind, q of the second, and the rest of neither.
    """

    def loss(q: float) -> float:
        cells = ((b, q + d), (c, q), (n - b - c, 1 - d - 2 * q))
        return -sum(count * math.log(max(share, 1e-300)) for count, share in cells if count)

    found = minimize_scalar(
        loss, bounds=(max(0.0, -d), (1 - d) / 2), method="bounded", options={"xatol": 1e-13}
    )
    return (b - c - n * d) / math.sqrt(n * (2 * float(found.x) + d * (1 - d)))


@pytest.mark.parametrize("level", [0.9, 0.95])
@pytest.mark.parametrize(
    ("b", "c", "n"),
    [(7, 1, 100), (1, 7, 21), (3, 3, 30), (0, 9, 40), (9, 0, 40), (20, 35, 55), (600, 400, 10_000)],
)
def test_the_ends_are_where_the_restricted_likelihood_puts_them(
    b: int, c: int, n: int, level: float
) -> None:
    z = norm.ppf((1 + level) / 2)
    low, high = paired_interval(b, c, n, level)
    assert statistic(b, c, n, low) == pytest.approx(z, rel=1e-4)
    assert statistic(b, c, n, high) == pytest.approx(-z, rel=1e-4)


@pytest.mark.parametrize(
    ("n", "first", "second"),
    [
        (50, 0.2, 0.1),
        (100, 0.07, 0.03),
        (100, 0.15, 0.15),
        (100, 0.3, 0.05),
        (200, 0.02, 0.02),
        (397, 0.1, 0.05),
        (1000, 0.06, 0.04),
        (1000, 0.4, 0.1),
    ],
)
def test_the_interval_covers_95_percent(n: int, first: float, second: float) -> None:
    assert 0.935 <= coverage(n, first, second) <= 0.965


@pytest.mark.parametrize(("n", "first", "second"), [(50, 0.02, 0.02), (100, 0.02, 0.0)])
def test_with_one_or_two_differing_samples_it_covers_more(
    n: int, first: float, second: float
) -> None:
    assert coverage(n, first, second) > 0.965


def coverage(n: int, first: float, second: float) -> float:
    generator = np.random.default_rng([n, int(1000 * first), int(1000 * second)])
    draws = generator.multinomial(n, [first, second, 1 - first - second], SIMULATIONS)
    interval = cache(paired_interval)
    ends = np.array([interval(int(b), int(c), n) for b, c, _ in draws])
    covered = (ends[:, 0] <= first - second) & (first - second <= ends[:, 1])
    return float(covered.mean())


def test_the_interval_at_the_extremes() -> None:
    low, high = paired_interval(0, 0, 100)
    assert low == pytest.approx(-high)
    assert high == pytest.approx(0.037, abs=1e-4), "as the score interval of 0 of 100"
    low, high = paired_interval(100, 0, 100)
    assert high == 1.0
    assert 0.92 < low < 0.93
    assert paired_interval(0, 100, 100) == pytest.approx((-high, -low))
    assert paired_interval(1, 0, 1)[1] == 1.0
    assert paired_interval(0, 0, 1) == pytest.approx((-0.7935, 0.7935), abs=1e-4)


def test_the_interval_holds_the_value_and_is_antisymmetric_and_shrinks() -> None:
    generator = np.random.default_rng(2)
    for n, share in zip(generator.integers(2, 500, 60), generator.random(60), strict=True):
        b = int(generator.integers(0, int(share * n) + 1))
        c = int(generator.integers(0, n - b + 1))
        low, high = paired_interval(b, c, int(n))
        assert -1 <= low <= (b - c) / n <= high <= 1
        assert low < high
        assert paired_interval(c, b, int(n)) == pytest.approx((-high, -low), abs=1e-12)
        more = paired_interval(9 * b, 9 * c, 9 * int(n))
        assert more[1] - more[0] < high - low


def test_many_intervals_at_once_are_those_of_each() -> None:
    counts = [(7, 1, 100), (1, 7, 21), (0, 0, 30), (0, 9, 40), (40, 0, 40), (600, 400, 10_000)]
    first, second, total = np.array(counts).T
    low, high = paired_intervals(first, second, total, norm.ppf(0.975))
    for place, each in enumerate(counts):
        assert (low[place], high[place]) == pytest.approx(paired_interval(*each), abs=1e-12)


@pytest.mark.parametrize("counts", [(-1, 0, 10), (0, 0, 0), (6, 5, 10)])
def test_counts_that_cannot_be_are_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(InputError, match="give counts"):
        paired_interval(*counts)


# Differences.


def test_a_difference_counts_samples() -> None:
    first, second = [1, 1, 1, 0, 0, 1], [1, 0, 0, 1, 0, 1]
    found = Difference.of(first, second)
    assert (found.only_first, found.only_second, found.count) == (2, 1, 6)
    assert found.value == pytest.approx(1 / 6)
    assert (found.low, found.high) == paired_interval(2, 1, 6)
    assert found.p == mcnemar(2, 1) == 1.0
    assert found == Difference.counted(2, 1, 6)


@pytest.mark.parametrize(("one", "other"), [([1, 0], [1]), ([], []), ([[1]], [[1]])])
def test_outcomes_of_other_samples_are_refused(one: list[int], other: list[int]) -> None:
    with pytest.raises(InputError, match="one value per sample"):
        Difference.of(one, other)


# Holm's correction.


def test_holm_by_hand() -> None:
    assert holm([]) == []
    assert holm([0.02]) == [0.02]
    assert holm([0.04, 0.01, 0.03, 0.005]) == pytest.approx([0.06, 0.03, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_holm_keeps_the_order_and_lies_between_none_and_bonferroni() -> None:
    generator = np.random.default_rng(3)
    for count in (2, 5, 40):
        ps = generator.random(count) ** 3
        corrected = np.array(holm(list(ps)))
        assert (corrected >= ps).all() and (corrected <= np.minimum(1, count * ps)).all()
        assert (np.diff(corrected[np.argsort(ps)]) >= 0).all()
        assert corrected[ps.argmin()] == min(1.0, count * ps.min())
        shuffled = generator.permutation(count)
        assert holm(list(ps[shuffled])) == pytest.approx(corrected[shuffled])


def test_holm_rarely_finds_anything_among_equal_models() -> None:
    """All pairs of five equal models: a corrected p below 5 % in at most 5 % of simulations."""
    generator = np.random.default_rng(4)
    found = 0
    p = cache(mcnemar)
    for _ in range(400):
        right = generator.random((5, 200)) < 0.5
        counts = [(int((a & ~b).sum()), int((b & ~a).sum())) for a, b in combinations(right, 2)]
        found += min(holm([p(*pair) for pair in counts])) < 0.05
    assert found <= 0.05 * 400


# Benjamini and Hochberg's correction.


def test_benjamini_and_hochberg_by_hand() -> None:
    assert benjamini_hochberg([]) == []
    assert benjamini_hochberg([0.02]) == [0.02]
    assert benjamini_hochberg([0.04, 0.01, 0.03, 0.005]) == pytest.approx([0.04, 0.02, 0.04, 0.02])
    assert benjamini_hochberg([0.9, 0.8]) == [0.9, 0.9]


def test_benjamini_and_hochberg_have_their_published_example() -> None:
    # Benjamini and Hochberg 1995, section 3.2: 15 comparisons, of which 4 are found at 5 %.
    ps = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344]
    ps += [0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0000]
    corrected = benjamini_hochberg(ps)
    assert [p < 0.05 for p in corrected] == [True] * 4 + [False] * 11
    assert corrected[:4] == pytest.approx([0.0015, 0.003, 0.0095, 0.035625])
    assert [p < 0.05 for p in holm(ps)] == [True] * 3 + [False] * 12


def test_benjamini_and_hochberg_are_scipys() -> None:
    generator = np.random.default_rng(7)
    for count in (1, 3, 40, 300):
        ps = generator.random(count) ** 3
        ps[generator.integers(0, count, count // 3)] = ps[0]  # ties
        theirs = false_discovery_control(ps)
        assert benjamini_hochberg(list(ps)) == pytest.approx(theirs, rel=1e-12)


@pytest.mark.peer
def test_holm_is_that_of_statsmodels() -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    generator = np.random.default_rng(5)
    for count in (1, 2, 3, 15, 45, 300):
        for power in (1, 4):
            ps = generator.random(count) ** power
            ps[generator.integers(0, count, count // 3)] = ps[0]  # ties
            theirs = multitest.multipletests(ps, method="holm")[1]
            assert holm(list(ps)) == pytest.approx(theirs, rel=1e-12)


@pytest.mark.peer
def test_mcnemar_is_that_of_statsmodels() -> None:
    tables = pytest.importorskip("statsmodels.stats.contingency_tables")
    for b, c in ((5, 0), (6, 0), (30, 15), (60, 40), (0, 3), (700, 650)):
        theirs = tables.mcnemar([[10, b], [c, 10]], exact=True).pvalue
        assert mcnemar(b, c) == pytest.approx(theirs, rel=1e-9)


# How many samples it takes.


@pytest.mark.parametrize(
    ("b", "c", "n", "comparisons", "most"),
    [
        (7, 1, 100, 1, 0.95),
        (15, 9, 100, 1, 0.93),
        (30, 10, 400, 1, 0.93),
        (7, 1, 100, 10, 0.95),
        (4, 0, 100, 1, 0.99),  # the formula is cautious where all differ in one direction
    ],
)
def test_that_many_samples_show_the_difference_nine_times_of_ten(
    b: int, c: int, n: int, comparisons: int, most: float
) -> None:
    needed = samples_needed(Difference.counted(b, c, n), comparisons)
    assert needed is not None
    shares = [b / n, c / n, 1 - (b + c) / n]
    draws = np.random.default_rng(6).multinomial(needed, shares, SIMULATIONS)
    p = cache(mcnemar)
    shown = np.mean([p(int(one), int(two)) < 0.05 / comparisons for one, two, _ in draws])
    assert 0.87 <= shown <= most


def test_more_comparisons_and_smaller_differences_need_more_samples() -> None:
    one = Difference.counted(7, 1, 100)
    needed = [samples_needed(one, comparisons) or 0 for comparisons in (1, 3, 10, 45)]
    assert needed == sorted(set(needed))
    less = samples_needed(Difference.counted(6, 2, 100))
    assert less is not None and less > needed[0]
    assert samples_needed(Difference.counted(1, 7, 100)) == needed[0]


@pytest.mark.parametrize("counts", [(0, 0, 100), (5, 5, 100)])
def test_no_number_shows_a_difference_of_zero(counts: tuple[int, int, int]) -> None:
    assert samples_needed(Difference.counted(*counts)) is None


def test_a_difference_on_every_sample_needs_few() -> None:
    assert samples_needed(Difference.counted(100, 0, 100)) == 6

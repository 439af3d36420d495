from __future__ import annotations

import pytest
from scipy.stats import binom, binomtest

from besiege.core.errors import InputError
from besiege.metrics import Rate, clopper_pearson
from besiege.metrics.intervals import count_for


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [
        (0, 100, 0.0, 3.62),
        (0, 1000, 0.0, 0.37),
        (10, 1000, 0.48, 1.83),
        (276, 1000, 24.85, 30.48),
        (500, 1000, 46.85, 53.15),
        (531, 1000, 49.95, 56.23),
        (4404, 10000, 43.06, 45.02),
        (5308, 10000, 52.10, 54.06),
    ],
)
def test_published_values(successes: int, count: int, low: float, high: float) -> None:
    found = clopper_pearson(successes, count)
    assert [round(100 * bound, 2) for bound in found] == [low, high]


@pytest.mark.parametrize("level", [0.9, 0.99])
@pytest.mark.parametrize(("successes", "count"), [(0, 7), (3, 7), (7, 7), (1, 1), (0, 1)])
def test_equals_scipys_exact_test(successes: int, count: int, level: float) -> None:
    theirs = binomtest(successes, count).proportion_ci(level, "exact")
    assert clopper_pearson(successes, count, level) == pytest.approx((theirs.low, theirs.high))


def test_each_tail_holds_half_of_what_is_left() -> None:
    low, high = clopper_pearson(30, 100)
    assert binom.sf(29, 100, low) == pytest.approx(0.025)
    assert binom.cdf(30, 100, high) == pytest.approx(0.025)


@pytest.mark.parametrize(("successes", "count"), [(1, 0), (0, 0), (-1, 5), (6, 5)])
def test_impossible_counts_are_refused(successes: int, count: int) -> None:
    with pytest.raises(InputError, match=f"{successes} of {count}"):
        clopper_pearson(successes, count)


@pytest.mark.parametrize("level", [0, 1, 95])
def test_impossible_levels_are_refused(level: float) -> None:
    with pytest.raises(InputError, match="level"):
        clopper_pearson(1, 2, level)


def test_a_rate_reads_as_percent_with_its_interval() -> None:
    rate = Rate.of(276, 1000)
    assert str(rate) == "27.6 % [24.8, 30.5]"
    assert (rate.value, rate.count) == (0.276, 1000)
    assert str(Rate.of(0, 100)) == "0.0 % [0.0, 3.6]"


@pytest.mark.parametrize("share", [0.0, 0.03, 0.5, 0.9])
@pytest.mark.parametrize("half", [0.05, 0.01])
def test_the_number_of_samples_for_a_precision(share: float, half: float) -> None:
    def width(count: int) -> float:
        low, high = clopper_pearson(round(share * count), count)
        return (high - low) / 2

    count = count_for(share, half)
    assert width(count) <= half < width(int(0.85 * count)), "enough, and hardly too many"
    assert len(str(count).rstrip("0")) <= 2


def test_impossible_precisions_are_refused() -> None:
    with pytest.raises(InputError, match="half width"):
        count_for(0.5, 0.0)

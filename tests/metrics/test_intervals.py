from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from besiege.core.errors import InputError
from besiege.metrics import Rate, clopper_pearson
from besiege.metrics.intervals import AtLeast, MeasuredRate, count_for


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


@pytest.mark.parametrize("kind", [float, Fraction, np.float64, np.float32])
def test_a_rate_compares_with_numbers_by_its_value(kind: Any) -> None:
    rate, half = Rate.of(500, 1000), kind(0.5)
    assert kind(0.25) < rate < kind(0.75) and rate > kind(0.25) and kind(0.75) > rate
    assert rate <= half <= rate and rate >= half and rate == half and half == rate
    assert not (rate < half or rate > half or rate != half) and rate != kind(0.25)
    assert hash(rate) == hash(half), "equal things have equal hashes"
    assert (float(rate), f"{rate:.3f}", f"{rate}") == (0.5, "0.500", "50.0 % [46.9, 53.1]")
    assert repr(rate) == "50.0 % [46.9, 53.1] of 1,000"


def test_rates_are_equal_where_all_of_them_is() -> None:
    few, many = Rate.of(5, 10), Rate.of(50, 100)
    assert few != many and few <= many <= few and few == Rate.of(5, 10)
    assert Rate.of(4, 10) < few < Rate.of(6, 10) and Rate.of(6, 10) > many >= Rate.of(4, 10)
    assert {few, many, Rate.of(5, 10)} == {few, many}
    assert few != "50 %" and few is not None
    with pytest.raises(TypeError, match="'<' not supported"):
        assert few < "50 %"  # type: ignore[operator]  # refused


def test_at_least_is_about_the_lower_limit() -> None:
    rate = Rate.of(450, 1000)  # [41.9, 48.1]
    assert rate.at_least(0.41) and not rate.at_least(0.43)
    assert AtLeast(rate, 0.45, point=True) and not AtLeast(rate, 0.4501, point=True)
    assert str(rate.at_least(0.43)) == ("45.0 % [41.9, 48.1]: the lower limit 41.9 % is below 43 %")
    measured = MeasuredRate(rate.value, rate.low, rate.high, rate.count, rate.hits, "at a price")
    assert measured == rate and hash(measured) == hash(rate)
    assert repr(measured.at_least(0.43)) == f"{rate.at_least(0.43)}; at a price"


def test_a_reason_has_as_many_digits_as_show_it() -> None:
    rate = Rate.of(4496, 10_000)
    assert AtLeast(rate, 0.45, point=True).reason == "the value 44.96 % is below 45 %"
    assert AtLeast(rate, 0.44, point=True).reason == "the value 45.0 % is at least 44 %"
    third = AtLeast(Rate.of(1, 3), 0.33333, point=True).reason
    assert third == "the value 33.333 % is at least 33.333 %"


@pytest.mark.parametrize(
    ("share", "told"), [(45, "write 0.45 for 45 %"), (-0.1, "0 to 1"), (200, "0 to 1")]
)
def test_a_share_is_no_percentage(share: float, told: str) -> None:
    with pytest.raises(InputError, match=told):
        Rate.of(1, 2).at_least(share)


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

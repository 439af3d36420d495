from __future__ import annotations

import math

import pytest
from tests.report.sample import rate, threat

from besiege.bench.results import typed
from besiege.core.errors import DataError
from besiege.report.formats import (
    budget_unit,
    class_name,
    distance,
    each,
    interval,
    listed,
    moment,
    number,
    places,
    seconds,
    share,
)


@pytest.mark.parametrize(("count", "shown"), [(100, 1), (1000, 1), (1001, 2), (10_000, 2)])
def test_one_sample_of_the_count_can_be_seen(count: int, shown: int) -> None:
    assert places(count) == shown
    assert float(share(rate(1, count)).split()[0]) > 0
    assert float(share(rate(count - 1, count)).split()[0]) < 100


def test_a_rate_and_its_interval() -> None:
    assert share(rate(9173, 10_000)) == "91.73 %"
    assert interval(rate(500, 1000)) == "[46.9, 53.1]"
    assert share(None) == "n/a" and interval(None) == ""


def test_distances_over_the_denominator_the_budget_was_written_with() -> None:
    assert budget_unit(threat("linf:8/255", 8 / 255, "8/255")) == 255
    assert budget_unit(threat("l2:128/255", 128 / 255, "128/255")) is None
    assert budget_unit(threat("linf:0.15", 0.15)) is None
    assert budget_unit(threat("linf", None)) is None
    assert distance(8 / 255, 255) == "8/255"
    assert distance(None, 255) == "n/a"
    assert distance(math.inf, 255) == "infinite"


def test_numbers_times_and_lists() -> None:
    assert [number(v) for v in (0.0, 1234.5, 0.5, math.nan)] == ["0", "1,234", "0.5", "n/a"]
    assert [seconds(v) for v in (0.04, 59.99, 3599.9)] == ["0.04 s", "1 min 00 s", "1 h 00 min"]
    assert each(17500, 0) == "n/a"
    assert moment("yesterday") == "yesterday"
    assert moment("2026-11-15T18:40:00+02:00") == "2026-11-15 18:40 +0200"
    assert listed(["one"]) == "one" and listed([]) == ""


def test_a_class_without_a_name_has_a_number() -> None:
    assert class_name(["cat"], 0) == "cat"
    assert class_name(["cat"], 1) == class_name(None, 1) == "class 1"


def test_figures_of_another_schema_are_refused() -> None:
    with pytest.raises(DataError, match="schema 2"):
        typed({"schema": 2, "evaluations": [{}]})

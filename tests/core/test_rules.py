from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy.special import betainc

from besiege.core import rules
from besiege.metrics import clopper_pearson


@pytest.mark.parametrize("classes", [2, 10, 100])
@pytest.mark.parametrize("count", [20, 21, 100, 397])
def test_chance_is_within_the_exact_interval(count: int, classes: int) -> None:
    for right in range(count + 1):
        low, _ = clopper_pearson(right, count)
        assert bool([*rules.chance(right, count, classes)]) == (low <= 1 / classes), right


def test_few_samples_say_nothing_and_many_are_counted() -> None:
    assert not [*rules.chance(0, rules.FEW - 1, 10)]
    assert [*rules.chance(10_500, 105_000, 10)] and not [*rules.chance(100_000, 105_000, 10)]


@pytest.mark.parametrize(("right", "count"), [(5, 20), (16, 100), (1100, 10_000), (397, 397)])
def test_the_tail_of_the_binomial_distribution(right: int, count: int) -> None:
    assert rules.at_least(right, count, 0.1) == pytest.approx(
        betainc(right, count - right + 1, 0.1), rel=1e-9
    )


def test_the_example_of_a_surrogate_runs() -> None:
    made: dict[str, Any] = {"__name__": "defended"}
    exec(compile(rules.SURROGATE, "defended.py", "exec"), made)
    victim = made["make"]()
    x = torch.full((1, 1, 8, 8), 0.4, requires_grad=True)
    victim(x).sum().backward()
    assert x.grad is not None and bool((x.grad != 0).any()), "the surrogate passes gradients"

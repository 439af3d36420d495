"""Verdicts at all boundaries, and the images that would tell."""

from __future__ import annotations

import numpy as np
import pytest

from besiege.core.errors import InputError
from besiege.metrics.paired import paired_interval
from besiege.studies.answers import Measured, decide, images_needed, level_of_each

TINY = 1e-9


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.02, 0.08, "yes"),
        (TINY, 0.08, "yes"),
        (0.0, 0.08, "cannot tell"),  # no effect is still within
        (-0.02, 0.08, "cannot tell"),
        (-0.02, 0.01, "cannot tell"),  # the smallest effect is still within
        (-0.02, 0.01 - TINY, "no"),
        (-0.02, 0.0, "no"),
        (-0.08, -0.02, "no"),  # the opposite
        (TINY, 0.01 - TINY, "no"),  # there, and smaller than the claim means
        (TINY, 0.01, "yes"),
    ],
)
def test_every_boundary(low: float, high: float, verdict: str) -> None:
    assert decide(low, high, 0.01) == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.01 + TINY, 0.03, "yes"),  # never far below 0
        (-0.01, 0.03, "cannot tell"),
        (-0.05, 0.0, "cannot tell"),
        (-0.05, -TINY, "no"),  # clearly below 0 somewhere
        (-0.005, -0.001, "no"),
    ],
)
def test_every_boundary_of_a_claim_that_nothing_is_worse(
    low: float, high: float, verdict: str
) -> None:
    assert decide(low, high, 0.0, denied=-0.01) == verdict


@pytest.mark.parametrize(
    "given", [(0.2, 0.1, 0.01), (np.nan, 0.1, 0.01), (0.1, np.nan, 0.01), (0.1, 0.2, 0.0)]
)
def test_intervals_that_decide_nothing_are_refused(given: tuple[float, float, float]) -> None:
    with pytest.raises(InputError, match="ascending"):
        decide(*given)


@pytest.mark.parametrize(("shares", "smallest"), [((0.13, 0.09), 0.01), ((0.1, 0.1), 0.02)])
@pytest.mark.parametrize("claims", [1, 10])
def test_that_many_images_tell_nine_times_of_ten(
    shares: tuple[float, float], smallest: float, claims: int
) -> None:
    """An effect above the smallest one is found, and one of zero is excluded."""
    b, c = (round(200 * share) for share in shares)
    level = level_of_each(claims)
    few = paired_interval(b, c, 200, level)
    assert decide(*few, smallest) == "cannot tell"
    needed = images_needed(Measured((b - c) / 200, *few, 200, level), smallest)
    draws = np.random.default_rng(1).multinomial(needed, [*shares, 1 - sum(shares)], 300)
    found = [paired_interval(int(one), int(two), needed, level) for one, two, _ in draws]
    told = np.mean([decide(*one, smallest) != "cannot tell" for one in found])
    assert 0.85 <= told <= 0.99
    assert needed > 200

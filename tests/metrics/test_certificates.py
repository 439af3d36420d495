"""Certificates of smoothing: published values, coverage, and certified accuracy by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, norm

from besiege.bounds.votes import lower_bound, radius
from besiege.core.errors import InputError
from besiege.metrics.certificates import (
    ABSTAINS,
    certificates,
    certified_accuracy,
    upper_envelope,
)
from besiege.metrics.intervals import clopper_pearson


def by_search(hits: int, n: int, alpha: float) -> float:
    """The p at which `hits` or more of n have the probability alpha."""
    found: float = brentq(lambda p: binom.sf(hits - 1, n, p) - alpha, 1e-12, 1 - 1e-12, xtol=1e-14)
    return found


@pytest.mark.parametrize(
    ("hits", "n", "low", "over_sigma"),
    [
        (990, 1000, 0.976036, 1.978010),
        (99_000, 100_000, 0.988989, 2.290000),
        # All votes agree: alpha^(1/n), never 1, so that no radius is infinite.
        (100, 100, 0.933254, 1.500475),
        (1000, 1000, 0.993116, 2.463263),
        (10_000, 10_000, 0.999309, 3.198578),
        (100_000, 100_000, 0.999931, 3.811457),
    ],
)
def test_bounds_and_radii_are_the_published_ones(
    hits: int, n: int, low: float, over_sigma: float
) -> None:
    assert float(lower_bound(hits, n)) == pytest.approx(low, abs=1e-6)
    assert float(lower_bound(hits, n)) == pytest.approx(by_search(hits, n, 0.001), abs=1e-9)
    assert float(radius(hits, n, [1.0])) == pytest.approx(over_sigma, abs=1e-6)
    assert float(radius(hits, n, [0.25])) == pytest.approx(0.25 * over_sigma, abs=1e-6)
    assert float(radius(hits, n, [0.25])) == pytest.approx(
        0.25 * norm.ppf(by_search(hits, n, 0.001)), abs=1e-6
    )


def test_published_digits_of_the_largest_radii() -> None:
    most = [float(radius(n, n, [1.0])) for n in (100, 1000, 10_000, 100_000)]
    assert [f"{one:.2f}" for one in most] == ["1.50", "2.46", "3.20", "3.81"]
    assert f"{float(radius(990, 1000, [0.25])):.4f}" == "0.4945"
    assert f"{float(radius(99_000, 100_000, [1.0])):.4f}" == "2.2900"


@pytest.mark.parametrize(("least", "n"), [(66, 100), (550, 1000), (5156, 10_000)])
def test_fewer_votes_abstain(least: int, n: int) -> None:
    found = certificates([4, 4], [least - 1, least], n, [0.5], 3)
    assert found.prediction.tolist() == [ABSTAINS, 4]
    assert found.radius[0] == 0 and found.radius[1] > 0 and found.abstains.tolist() == [True, False]


def test_the_bound_is_one_sided() -> None:
    """The lower end of a two-sided interval of level 1 - alpha would be another, smaller number."""
    two_sided = clopper_pearson(990, 1000, 1 - 0.001)[0]
    assert float(lower_bound(990, 1000)) > two_sided + 1e-4
    assert float(lower_bound(990, 1000)) == clopper_pearson(990, 1000, 1 - 0.002)[0]
    assert by_search(990, 1000, 0.0005) == pytest.approx(two_sided, abs=1e-9)


@pytest.mark.parametrize("p", [0.55, 0.8, 0.97])
@pytest.mark.parametrize("alpha", [0.05, 0.3])
def test_the_bound_is_above_the_probability_as_rarely_as_it_says(p: float, alpha: float) -> None:
    n = 400
    every = np.arange(n + 1)
    wrong = float(binom.pmf(every, n, p)[lower_bound(every, n, alpha) > p].sum())
    assert alpha / 3 < wrong <= alpha


def test_radii_of_several_copies_add_up_their_information() -> None:
    single, pair = (float(radius(900, 1000, s)) for s in ([0.3], [0.3, 0.3]))
    assert pair == pytest.approx(single / np.sqrt(2), rel=1e-12)
    uneven = float(radius(900, 1000, [0.3, 0.4]))
    bound = norm.ppf(by_search(900, 1000, 0.001))
    assert uneven == pytest.approx(bound / np.sqrt(1 / 0.09 + 1 / 0.16), abs=1e-9)
    # RealSafe's mean of ten draws sees 20 copies.
    assert float(radius(900, 1000, [0.3] * 20)) == pytest.approx(single / np.sqrt(20), rel=1e-12)


def test_linf_follows_by_the_root_of_the_size() -> None:
    found = certificates([0], [990], 1000, [0.25], 3 * 32 * 32)
    assert found.linf[0] == pytest.approx(found.radius[0] / np.sqrt(3072), rel=1e-12)
    # A radius of 0.5 on CIFAR-10 is 2.3 of 255 grey levels, and 1 on MNIST 0.036.
    assert 0.5 / np.sqrt(3072) * 255 == pytest.approx(2.3, abs=0.01)
    assert 1 / np.sqrt(784) == pytest.approx(0.036, abs=1e-3)


def test_abstentions_and_wrong_answers_are_wrong_at_every_radius() -> None:
    """Of five images one abstains, and one has a large radius around the wrong class."""
    hits = [990, 600, 500, 1000, 990]
    found = certificates([1, 2, 3, 4, 5], hits, 1000, [1.0], 4, labels=[1, 2, 3, 0, 5])
    assert found.prediction.tolist() == [1, 2, ABSTAINS, 4, 5]
    assert found.right.tolist() == [True, True, False, False, True]
    curve = found.accuracy([0.0, 0.2, 1.0, 1.9, 2.0, 2.4])
    assert curve.value.tolist() == [0.6, 0.4, 0.4, 0.4, 0.0, 0.0] and curve.count == 5
    assert [curve.low[0], curve.high[0]] == list(clopper_pearson(3, 5))
    assert found.false == pytest.approx(4 * 0.001)


def test_a_radius_is_certified_up_to_itself() -> None:
    curve = certified_accuracy([0.5, 0.25], [True, True], [0.0, 0.25, 0.2500001, 0.5, 0.51])
    assert curve.value.tolist() == [1.0, 1.0, 0.5, 0.5, 0.0]
    exact = certified_accuracy([0.5, 0.25], [True, True])
    assert [exact.at(r) for r in (0, 0.25, 0.26, 0.5, 0.51)] == [1.0, 1.0, 0.5, 0.5, 0.0]


def test_an_envelope_is_the_best_of_several_models_and_says_so() -> None:
    rng = np.random.default_rng(0)
    curves = {
        name: certified_accuracy(rng.uniform(0, reach, 40), rng.random(40) < share)
        for name, reach, share in (("sigma 0.25", 1.0, 0.9), ("sigma 1", 4.0, 0.5))
    }
    found = upper_envelope(curves)
    for point in np.linspace(0, 4.5, 91):
        place = int(np.searchsorted(found.x, point, side="right")) - 1
        assert found.value[place] == max(curve.at(float(point)) for curve in curves.values())
    assert found.best[0] == "sigma 0.25" and "sigma 1" in found.best
    assert found.label.startswith("upper envelope of sigma 0.25, sigma 1")


def _envelope_of(*counts: int) -> Any:
    return lambda: upper_envelope(
        {str(n): certified_accuracy(np.ones(n), np.ones(n, dtype=bool)) for n in counts}
    )


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: lower_bound(5, 4), "from 0 to n"),
        (lambda: lower_bound(-1, 4), "from 0 to n"),
        (lambda: lower_bound(1, 4, 0.0), "between 0 and 1"),
        (lambda: lower_bound(1, 4, 1.0), "between 0 and 1"),
        (lambda: radius(1, 4, []), "finite numbers above 0"),
        (lambda: radius(1, 4, [0.0]), "finite numbers above 0"),
        (lambda: certificates([1], [1], 4, [1.0], 4).right, "have no labels"),
        (lambda: certificates([1], [1], 4, [1.0], 4, labels=[1, 2]), "labels"),
        (lambda: certified_accuracy([], []), "one of each"),
        (lambda: certified_accuracy([1.0], [True, False]), "one of each"),
        (_envelope_of(3), "two or more"),
        (_envelope_of(3, 4), "the same ones"),
    ],
)
def test_what_is_refused(call: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        call()

"""Reverse Weibull fits by maximum likelihood."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kstest, weibull_min

from besiege.core.errors import InputError
from besiege.metrics.extremes import fit_reverse_weibull

END, SHAPE, SCALE = 3.0, 4.0, 0.7


def draws(rows: int, batches: int, shape: float = SHAPE) -> np.ndarray:
    return END - SCALE * np.random.default_rng(1).weibull(shape, (rows, batches))


def test_the_fit_is_that_of_scipy_and_finds_the_end_point() -> None:
    """The same maximum on all of 200 simulated samples, and the known end point on average."""
    maxima = draws(200, 300)
    found = fit_reverse_weibull(maxima)
    theirs = np.array(
        [
            weibull_min.fit(-row, 1.3 * shape, loc=-row.max() - 0.3, scale=0.8)
            for row, shape in zip(maxima, found.shape, strict=True)
        ]
    )
    np.testing.assert_allclose(found.location, -theirs[:, 1], atol=1e-3)
    np.testing.assert_allclose(found.shape, theirs[:, 0], rtol=1e-2)
    logs = [weibull_min.logpdf(-row, *fit).sum() for row, fit in zip(maxima, theirs, strict=True)]
    assert (found.log_likelihood(maxima) >= np.array(logs) - 1e-6).all()
    assert abs(np.median(found.location) - END) < 0.03
    assert not found.constant.any() and not found.endless.any()


def test_goodness_of_fit_is_that_of_scipy() -> None:
    maxima = draws(5, 80)
    found = fit_reverse_weibull(maxima)
    for row, p, *law in zip(
        maxima, found.p, found.shape, -found.location, found.scale, strict=True
    ):
        assert p == pytest.approx(kstest(-row, weibull_min(*law).cdf).pvalue, abs=1e-9)
    # Two heaps are no Weibull law.
    heaps = np.concatenate([np.linspace(0, 0.01, 60), np.linspace(0.99, 1, 60)])
    assert fit_reverse_weibull(heaps).p[0] < 1e-6 < found.p.min()


def test_rows_units_and_order_do_not_matter() -> None:
    maxima = draws(6, 50)
    whole, alone = fit_reverse_weibull(maxima), fit_reverse_weibull(maxima[3])
    assert alone.location[0] == whole.location[3] and alone.p[0] == whole.p[3]
    large = fit_reverse_weibull(1e6 * maxima + 7)
    np.testing.assert_allclose(large.location, 1e6 * whole.location + 7, rtol=1e-6)
    shuffled = fit_reverse_weibull(maxima[:, ::-1])
    np.testing.assert_allclose(shuffled.location, whole.location, rtol=1e-6)


def test_equal_maxima_are_their_own_end_point() -> None:
    found = fit_reverse_weibull(np.full((2, 20), [[2.5], [0.0]]))
    assert found.location.tolist() == [2.5, 0.0] and found.constant.all()
    assert np.isnan(found.p).all()


def test_the_location_is_never_below_a_maximum_and_shapes_below_one_are_kept_at_one() -> None:
    maxima = draws(20, 60, shape=0.6)
    found = fit_reverse_weibull(maxima)
    assert (found.location >= maxima.max(1)).all()
    assert found.shape == pytest.approx(np.ones(20), abs=1e-3)
    assert (found.location - maxima.max(1) < 1e-3).all()


def test_maxima_without_an_end_are_marked() -> None:
    gumbel = np.random.default_rng(3).gumbel(size=(1, 4000))
    gumbel = np.concatenate([gumbel, 10 - draws(1, 4000)])  # and a law with a tail upwards
    found = fit_reverse_weibull(gumbel)
    assert found.endless[0] or found.shape[0] > 15
    assert found.location[0] > gumbel[0].max()


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(InputError, match="10 batches at least"):
        fit_reverse_weibull(np.zeros((1, 9)))
    with pytest.raises(InputError, match="finite"):
        fit_reverse_weibull(np.full((1, 20), np.nan))

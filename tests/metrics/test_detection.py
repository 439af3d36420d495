"""ROC curves, areas and their intervals: against scikit-learn and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score, roc_curve

from besiege.core.errors import InputError
from besiege.metrics.detection import auc, auc_bootstrap, auc_interval, roc
from besiege.metrics.resampling import Resampling

Scores = tuple[np.ndarray, np.ndarray]


def drawn(seed: int, ties: bool) -> Scores:
    generator = np.random.default_rng(seed)
    positive, negative = generator.normal(0.7, 1, 83), generator.normal(0, 1, 120)
    return (positive.round(), negative.round()) if ties else (positive, negative)


def labelled(positive: np.ndarray, negative: np.ndarray) -> Scores:
    truth = np.r_[np.ones(len(positive)), np.zeros(len(negative))]
    return truth, np.r_[positive, negative]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_curve_and_area_are_those_of_scikit_learn(seed: int, ties: bool) -> None:
    scores = drawn(seed, ties)
    truth, all_scores = labelled(*scores)
    assert auc(*scores) == pytest.approx(roc_auc_score(truth, all_scores), abs=1e-12)
    for found, theirs in zip(
        roc(*scores, every=True),
        roc_curve(truth, all_scores, drop_intermediate=False),
        strict=True,
    ):
        assert np.array_equal(found, theirs)
    corners = roc(*scores)
    assert len(corners.fpr) <= len(roc(*scores, every=True).fpr)
    assert ties or len(corners.fpr) < len(all_scores)
    assert np.trapezoid(corners.tpr, corners.fpr) == pytest.approx(auc(*scores), abs=1e-12)


def test_only_points_inside_straight_lines_are_left_out() -> None:
    bent = roc([2], [2, 1])  # first a tie, then a negative
    assert (bent.fpr.tolist(), bent.tpr.tolist()) == ([0, 0.5, 1], [0, 1, 1])
    straight = roc([2, 1], [2, 1])
    assert (straight.fpr.tolist(), straight.tpr.tolist()) == ([0, 1], [0, 1])


def test_infinite_scores_are_scores() -> None:
    assert auc([np.inf, 1], [-np.inf, -np.inf]) == 1
    assert auc([-np.inf] * 3, [-np.inf] * 4) == 0.5, "a detector that accepts everything"
    assert roc([-np.inf], [-np.inf]).tpr.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("positive", "negative", "area"),
    [
        ([1], [0], 1.0),
        ([0], [1], 0.0),
        ([1], [1], 0.5),
        ([3, 2], [2, 1], 0.875),
        ([1, 1], [0, 2], 0.5),
    ],
)
def test_areas_by_hand(positive: list[float], negative: list[float], area: float) -> None:
    assert auc(positive, negative) == area


def test_reversed_scores_have_the_complement() -> None:
    positive, negative = drawn(3, ties=True)
    assert auc(positive, negative) == pytest.approx(1 - auc(-positive, -negative))
    one, other = auc_interval(positive, negative), auc_interval(-positive, -negative)
    assert one.low == pytest.approx(1 - other.high)


@pytest.mark.parametrize(
    ("positive", "negative", "match"),
    [([], [1], "adversarial"), ([1], [], "clean"), ([np.nan], [1], "NaN")],
)
def test_one_class_alone_and_nan_are_refused(
    positive: list[float], negative: list[float], match: str
) -> None:
    for function in (roc, auc, auc_interval):
        with pytest.raises(InputError, match=match):
            function(positive, negative)


def test_pairs_have_as_many_of_each() -> None:
    with pytest.raises(InputError, match="no pairs"):
        auc_interval([1, 2], [1], paired=True)


def by_definition(positive: np.ndarray, negative: np.ndarray, paired: bool) -> float:
    """DeLong's variance from all pairs."""
    above = positive[:, None] > negative
    wins = above + 0.5 * (positive[:, None] == negative)
    ours, theirs = wins.mean(1), wins.mean(0)
    if paired:
        return float(np.var(ours + theirs, ddof=1) / len(ours))
    return float(np.var(ours, ddof=1) / len(ours) + np.var(theirs, ddof=1) / len(theirs))


@pytest.mark.parametrize("paired", [False, True])
def test_the_interval_is_delongs_on_the_logit_scale(paired: bool) -> None:
    positive, negative = drawn(1, ties=True)
    if paired:
        negative = negative[: len(positive)]
    found = auc_interval(positive, negative, paired=paired)
    value = auc(positive, negative)
    error = np.sqrt(by_definition(positive, negative, paired)) / (value * (1 - value))
    logit = np.log(value / (1 - value))
    ends = [1 / (1 + np.exp(-(logit + side * 1.959963984540054 * error))) for side in (-1, 1)]
    assert (found.value, found.count) == (value, len(positive))
    assert [found.low, found.high] == pytest.approx(ends, abs=1e-12)


@pytest.mark.parametrize("paired", [False, True])
def test_the_interval_covers_the_area(paired: bool) -> None:
    """Of 600 samples of 60 images, within the noise of 600 trials of 95 %."""
    generator = np.random.default_rng(0)
    truth, hits, trials = 0.7601, 0, 600  # of a shift of one standard deviation
    for _ in range(trials):
        shared = generator.normal(0, 0.7, 60) if paired else 0.0
        spread = np.sqrt(1 - 0.49) if paired else 1.0
        positive = 1 + shared + spread * generator.normal(0, 1, 60)
        negative = shared + spread * generator.normal(0, 1, 60)
        found = auc_interval(positive, negative, paired=paired)
        hits += found.low <= truth <= found.high
    assert 0.925 <= hits / trials <= 0.985


def test_pairing_matters() -> None:
    generator = np.random.default_rng(1)
    clean = generator.normal(0, 1, 50)
    attacked = clean + 0.3 + 0.05 * generator.normal(0, 1, 50)
    alone, together = (auc_interval(attacked, clean, paired=paired) for paired in (False, True))
    assert together.high - together.low < 0.5 * (alone.high - alone.low)


def test_a_perfect_separation_is_not_certain() -> None:
    found = auc_interval(np.ones(10), np.zeros(10))
    assert (found.value, found.high) == (1, 1) and found.low == pytest.approx(0.025 ** (1 / 10))
    paired = auc_interval(np.ones(10), np.zeros(10), paired=True)
    assert paired.low == pytest.approx(0.025 ** (1 / 5)), "five disjoint pairs"
    none = auc_interval(np.zeros(10), np.ones(10))
    assert (none.value, none.low) == (0, 0) and none.high == pytest.approx(1 - 0.025 ** (1 / 10))
    assert auc_interval([1], [0]).low == pytest.approx(0.025)


def test_a_constant_score_has_the_widest_interval() -> None:
    found = auc_interval(np.ones(100), np.ones(100))
    assert found.value == 0.5 and not found.reversed
    assert found.high - found.low == pytest.approx(2 * 1.96 * 0.05, abs=0.01)


def test_an_area_far_below_one_half_is_called_reversed() -> None:
    positive, negative = drawn(2, ties=False)
    assert auc_interval(-positive, -negative).reversed
    assert not auc_interval(positive, negative).reversed


def test_the_same_scores_give_the_same_interval_in_any_order() -> None:
    positive, negative = drawn(4, ties=True)
    assert auc_interval(positive, negative) == auc_interval(positive, negative)
    turned = auc_interval(positive[::-1], negative[::-1])
    assert turned.low == pytest.approx(auc_interval(positive, negative).low, abs=1e-12)


@pytest.mark.parametrize("paired", [False, True])
def test_the_bootstrap_is_that_of_resampled_scores(paired: bool) -> None:
    generator = np.random.default_rng(3)
    clean = generator.normal(size=60).round(1)
    above = (clean + generator.normal(0.5, 1, 60)).round(1)
    found = auc_bootstrap(above, clean, paired=paired, resamples=200)
    ours = Resampling.of(60, 200, 0).weights.astype(int)
    theirs = ours if paired else Resampling.of(60, 200, 1).weights.astype(int)
    areas = [
        auc(np.repeat(above, mine), np.repeat(clean, other))
        for mine, other in zip(ours, theirs, strict=True)
    ]
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(areas, (0.025, 0.975))))
    assert found.value == auc(above, clean) and found.low < found.value < found.high


def test_the_bootstrap_agrees_with_delong_and_keeps_exact_ends() -> None:
    generator = np.random.default_rng(4)
    above, below = generator.normal(0.7, 1, 400), generator.normal(0, 1, 300)
    drawn, closed = auc_bootstrap(above, below), auc_interval(above, below)
    assert drawn.low == pytest.approx(closed.low, abs=0.01)
    assert drawn.high == pytest.approx(closed.high, abs=0.01)
    assert auc_bootstrap([2, 3], [0, 1]) == auc_interval([2, 3], [0, 1])
    flipped = auc_bootstrap(-above, -below)
    assert flipped.value == pytest.approx(1 - drawn.value) and flipped.reversed

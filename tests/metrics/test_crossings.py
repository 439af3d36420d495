"""Crossings: planted ones are found, chance is not, and bands of differences cover."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from besiege.core.errors import InputError
from besiege.metrics.crossings import Change, Crossing, along_budget, crossing, crossings
from besiege.metrics.paired import paired_interval
from besiege.metrics.resampling import Resampling

Numbers = NDArray[np.float64]
BUDGETS = np.linspace(0.0, 0.3, 40)
# Mean and own spread of the logarithms of the distances of two models.
EQUAL = (-3.0, 0.4), (-3.0, 0.4)
BETTER = (-2.7, 0.4), (-3.0, 0.4)
MUCH_BETTER = (-1.5, 0.4), (-3.0, 0.4)
PLANTED = (-3.0, 0.2), (-3.0, 0.9)
FAINT = (-3.0, 0.4), (-3.0, 0.45)


def draw(kind: tuple[tuple[float, float], ...], count: int, pairs: int, seed: int = 0) -> Numbers:
    """Distances ``[2, pairs, count]``: images are hard or easy for both; some are misclassified."""
    generator = np.random.default_rng([seed, count])
    hard = generator.normal(size=(pairs, count))
    found = np.stack(
        [np.exp(mean + 0.5 * hard + own * generator.normal(size=hard.shape)) for mean, own in kind]
    )
    found[:, generator.random(hard.shape) < 0.05] = 0.0
    return found


def alone(found: Numbers, resampling: Resampling) -> list[str]:
    """The verdicts of pairs, each judged on its own."""
    first, second = found
    pairs = zip(first, second, strict=True)
    return [
        crossings(one[None], other[None], BUDGETS, resampling=resampling)[0].verdict
        for one, other in pairs
    ]


def one_pair(kind: tuple[tuple[float, float], ...], count: int, seed: int = 0) -> Crossing:
    first, second = draw(kind, count, 1, seed)[:, 0]
    return crossing(first, second, BUDGETS)


def place(budget: float) -> int:
    return int(np.flatnonzero(np.isclose(BUDGETS, budget))[0])


def test_a_planted_crossing_is_found_where_it_is() -> None:
    """The curves of equal medians and other spreads cross at the median, 0.05."""
    found = one_pair(PLANTED, 1000)
    assert found.verdict == "crossing"
    (change,) = found.changes
    assert change.leader, "the narrow distribution is better at small budgets"
    assert change.before < np.exp(-3) < change.after
    at = place(change.at)
    assert found.value[at] < 0 < found.value[at - 1] and change.before < change.at <= change.after
    assert change.at == pytest.approx(np.exp(-3), abs=0.02)
    assert found.low[place(change.before)] > 0 > found.high[place(change.after)]
    assert found.needed is None
    first, second = draw(PLANTED, 1000, 1)[:, 0]
    at = BUDGETS[8]
    assert found.value[8] == pytest.approx((first > at).mean() - (second > at).mean())
    other = crossing(second, first, BUDGETS)
    assert other.changes == (Change(False, change.before, change.after, change.at),)


def test_a_crossing_within_noise_cannot_be_told() -> None:
    found = one_pair(FAINT, 300)
    assert found.verdict == "cannot tell" and not found.changes
    assert found.needed is not None and found.needed > 300


def test_the_number_of_images_needed_shows_the_crossing() -> None:
    """The distances of a few images, repeated as often as is needed, show it."""
    first, second = draw(PLANTED, 40, 1)[:, 0]
    found = crossing(first, second, BUDGETS)
    assert found.verdict == "cannot tell" and found.needed is not None
    times = -(-found.needed // 40)
    more = crossing(np.tile(first, times), np.tile(second, times), BUDGETS)
    assert more.verdict == "crossing"
    fewer = crossing(np.tile(first, times // 3), np.tile(second, times // 3), BUDGETS)
    assert fewer.verdict == "cannot tell"


def test_a_model_that_is_better_everywhere_does_not_cross() -> None:
    found = one_pair(MUCH_BETTER, 1000)
    assert found.verdict == "no crossing" and found.needed is None and not found.changes
    few = one_pair(MUCH_BETTER, 50)
    assert few.verdict == "cannot tell", "50 images leave room for a reversal by 1 point"
    assert few.needed is not None and 50 < few.needed < 2000


def test_equal_outcomes_do_not_cross_with_enough_images() -> None:
    one = draw(EQUAL, 1000, 1)[0, 0]
    assert crossing(one, one, BUDGETS).verdict == "no crossing"
    few = crossing(one[:50], one[:50], BUDGETS)
    assert few.verdict == "cannot tell" and few.needed is not None


@pytest.mark.parametrize(
    "kind",
    [
        EQUAL,
        pytest.param(BETTER, marks=pytest.mark.slow),
        pytest.param(FAINT, marks=pytest.mark.slow),
    ],
)
def test_chance_is_rarely_a_crossing(kind: tuple[tuple[float, float], ...]) -> None:
    verdicts = alone(draw(kind, 200, 150), Resampling.of(200, 500))
    assert verdicts.count("crossing") <= 0.05 * 150


def test_among_many_equal_pairs_no_crossing_is_found() -> None:
    first, second = draw(EQUAL, 200, 100)
    assert "crossing" not in {each.verdict for each in crossings(first, second, BUDGETS)}
    each = crossing(first[0], second[0], BUDGETS)
    joint = crossings(first, second, BUDGETS)[0]
    assert (joint.low <= each.low).all() and (each.high <= joint.high).all()


def covered(kind: tuple[tuple[float, float], ...], count: int, simulations: int) -> float:
    """How often the whole true difference lies in the band."""
    one, other = draw(kind, 1_000_000, 1, seed=99)[:, 0]
    truth = np.array([(one > x).mean() - (other > x).mean() for x in BUDGETS])
    truth = np.zeros(len(BUDGETS)) if kind[0] == kind[1] else truth
    resampling, hits = Resampling.of(count, 1000), 0
    first, second = draw(kind, count, simulations)
    for place in range(simulations):
        found = crossings(first[place][None], second[place][None], BUDGETS, resampling=resampling)[
            0
        ]
        rounding = 1e-3 / np.sqrt(count / 1000)  # the truth is itself a simulation
        hits += bool(((found.low <= truth + rounding) & (truth - rounding <= found.high)).all())
    return hits / simulations


@pytest.mark.parametrize("kind", [EQUAL, PLANTED])
def test_the_band_of_a_difference_covers_as_stated(kind: tuple[tuple[float, float], ...]) -> None:
    assert covered(kind, 100, 150) >= 0.91


@pytest.mark.slow
@pytest.mark.parametrize("count", [30, 100, 397, 1000])
@pytest.mark.parametrize("kind", [EQUAL, BETTER, PLANTED], ids=["equal", "better", "planted"])
def test_the_band_of_a_difference_covers_as_stated_in_1000_simulations(
    kind: tuple[tuple[float, float], ...], count: int
) -> None:
    found = covered(kind, count, 1000)
    verdicts = alone(draw(kind, count, 1000), Resampling.of(count, 1000))
    print(f"{kind} {count}: covers {found:.3f}, crossings {verdicts.count('crossing') / 1000:.3f}")
    assert found >= 0.93
    assert kind is PLANTED or verdicts.count("crossing") <= 25


def test_images_that_were_not_judged_are_left_out() -> None:
    first, second = draw(PLANTED, 400, 2)
    known = np.random.default_rng(5).random((2, 400)) < 0.6
    found = crossings(first, second, BUDGETS, known)
    for place, mine in enumerate(known):
        one, other = first[place][mine], second[place][mine]
        only = (one > 0.05) & (other <= 0.05), (other > 0.05) & (one <= 0.05)
        here = crossings(first, second, [0.05], known)[place]
        assert here.value[0] == pytest.approx((only[0].sum() - only[1].sum()) / mine.sum())
        assert found[place].count == mine.sum()
    blank = crossings(np.where(known, first, np.nan), second, BUDGETS)
    assert (blank[0].low == found[0].low).all() and blank[1].count == found[1].count
    nothing = crossings(first, second, BUDGETS, np.zeros(400, bool))[0]
    assert nothing.verdict == "cannot tell" and nothing.needed is None and nothing.count == 0


def test_at_one_point_the_band_is_tangos_interval() -> None:
    first, second = draw(PLANTED, 500, 1)[:, 0]
    found = crossing(first, second, [0.1])
    b, c = (
        int(((first > 0.1) & (second <= 0.1)).sum()),
        int(((second > 0.1) & (first <= 0.1)).sum()),
    )
    assert (found.low[0], found.high[0]) == pytest.approx(paired_interval(b, c, 500), abs=0.005)


def test_values_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="pairs, images"):
        crossings(np.ones((2, 5)), np.ones((2, 6)), [0.1])
    with pytest.raises(InputError, match="ascending"):
        crossing(np.ones(5), np.ones(5), [0.2, 0.1])


def test_budgets_are_round_and_reach_most_of_what_is_broken() -> None:
    sizes = draw(BETTER, 500, 1)[:, 0]
    (found,) = along_budget(sizes, [(0, 1)])
    assert found is not None and found.x[0] == 0 and 20 <= len(found.x) <= 45
    assert np.allclose(found.x, np.round(found.x, 3))
    assert 0.9 < (sizes[0] <= found.x[-1]).mean() < 1
    for budget in (0.02, 0.05, 0.1):
        at = int(np.flatnonzero(np.isclose(found.x, budget))[0])
        gap = (sizes[0] > budget).mean() - (sizes[1] > budget).mean()
        assert found.value[at] == pytest.approx(gap)
    (eighths,) = along_budget(sizes, [(0, 1)], unit=255)
    assert eighths is not None and np.allclose(eighths.x * 255, np.round(eighths.x * 255, 1))


def test_pairs_without_common_images_have_no_crossing() -> None:
    sizes = np.array([[0.1, 0.2, np.nan], [0.1, 0.3, np.nan], [np.nan, np.nan, 0.1]])
    both, none = along_budget(sizes, [(1, 0), (0, 2)])
    assert both is not None and both.count == 2 and none is None
    assert along_budget(np.full((2, 3), np.inf), [(0, 1)]) == (None,), "nothing was broken"
    assert along_budget(np.zeros((2, 3)), [(0, 1)]) == (None,)


def test_what_the_images_suggest_is_told_apart_from_what_they_show() -> None:
    found = one_pair(PLANTED, 60, seed=3)
    assert found.verdict == "cannot tell" and not found.changes
    assert found.suggested is not None and found.suggested.leader
    assert found.value[place(found.suggested.before)] >= 0.01
    assert found.value[place(found.suggested.after)] <= -0.01
    assert one_pair(MUCH_BETTER, 1000).suggested is None


def test_one_change_is_suggested_however_often_noise_turns_the_order() -> None:
    """Of 1, -1, 5, -1, -6 and 1 points, that between 5 and -6 is meant."""
    gaps = np.array([1, -1, 5, -1, -6, 1])
    points, left = np.arange(1.0, 7.0), np.arange(60, 0, -10)
    first, second = (
        # Image i of 100 is broken where no more than i are left.
        [next((x for x, n in zip(points, held, strict=True) if i >= n), np.inf) for i in range(100)]
        for held in (left + gaps, left)
    )
    found = crossing(first, second, points)
    assert (100 * found.value).round().tolist() == gaps.tolist()
    assert found.suggested == Change(True, 3.0, 4.0, 4.0)

"""Mean and deviation over evaluations, against what can be counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from besiege.metrics import Evidence, Rows, Trial
from besiege.metrics.defense_values import Draws, Spread
from besiege.metrics.intervals import clopper_pearson
from besiege.metrics.stochastic import chance_figures, success_probabilities

DRAWS = 4


def bits(*rows: str) -> Any:
    """Draws written from the first to the last, with the bit above them."""
    return np.array([int("1" + row[::-1], 2) for row in rows])


def trial(text: str, samples: list[int], *rows: str, within: list[bool] | None = None) -> Trial:
    n = len(samples)
    columns = {
        "sample": np.array(samples),
        "draws": bits(*rows),
        "valid": np.ones(n, bool),
        "within": np.ones(n, bool) if within is None else np.array(within),
        "success": np.array([row.count("1") >= DRAWS / 2 for row in rows]),
    }
    return Trial(text, Rows(columns))


def evidence(*trials: Trial, chained: bool = False, right: tuple[str, ...] = ("1111",) * 3) -> Any:
    clean = Rows(
        {
            "sample": np.array([5, 2, 8]),
            "label": np.zeros(3, int),
            "correct": np.array([row.count("1") > DRAWS / 2 for row in right]),
            "draws": bits(*right),
        }
    )
    return Evidence(clean, trials, chained, "linf", 0.1, (0.0, 1.0), 4, 10)


def figures(case: Evidence) -> Draws:
    found = chance_figures(case, DRAWS)
    assert found is not None
    return found


def test_the_first_half_chooses_and_the_other_half_counts() -> None:
    # The first attack wins twice in the choosing half and once in the other, the second inversely.
    one = trial("one", [2, 5, 8], "0000", "1110", "0000")
    two = trial("two", [2, 5, 8], "0000", "1011", "0000")
    found = figures(evidence(one, two))
    assert found.evaluations == 2
    assert found.robust.mean == pytest.approx((2 / 3 + 1) / 2), "the lucky draws do not count"
    means = [attack.mean for attack in found.attacks]
    assert means == pytest.approx([(2 / 3 + 1) / 2, 2 / 3])
    assert found.robust.deviation == pytest.approx(np.std([2 / 3, 1], ddof=1))
    assert found.clean == Spread(1.0, 0.0)


def test_the_worst_is_taken_image_by_image() -> None:
    one = trial("one", [5, 2, 8], "1111", "0000", "0000")
    two = trial("two", [5, 2, 8], "0000", "1111", "0000")
    assert figures(evidence(one, two)).robust.mean == pytest.approx(1 / 3)


@pytest.mark.parametrize("chained", [False, True])
def test_the_attacked_image_is_evaluated_though_no_choosing_draw_is_a_success(
    chained: bool,
) -> None:
    one = trial("one", [5, 2, 8], "0011", "0000", "0000")
    two = trial("two", [5, 2, 8], "0000", "0000", "0000")
    found = figures(evidence(one, two, chained=chained))
    assert found.robust.mean == pytest.approx(2 / 3), (
        "the first of equal attacks, not the clean one"
    )


def test_in_a_chain_what_fell_stays_fallen() -> None:
    one = trial("one", [5, 2, 8], "1111", "0000", "0000")
    two = trial("two", [2, 8], "1111", "0000")
    found = figures(evidence(one, two, chained=True))
    assert [attack.mean for attack in found.attacks] == pytest.approx([2 / 3, 1 / 3])
    assert found.robust.mean == pytest.approx(1 / 3)
    nothing = Trial("two", Rows({name: two.rows[name][:0] for name in two.rows}))
    all_fell = trial("one", [5, 2, 8], "1111", "1111", "1111")
    assert figures(evidence(all_fell, nothing, chained=True)).robust.mean == 0


def test_what_is_wrong_when_clean_is_no_robustness() -> None:
    idle = trial("one", [5, 2, 8], "0000", "0000", "0000")
    found = figures(evidence(idle, right=("0000", "1111", "1111")))
    assert found.clean.mean == found.robust.mean == pytest.approx(2 / 3)


def test_what_breaks_the_rules_does_not_count() -> None:
    wrong = trial("one", [5, 2, 8], "1111", "1111", "1111", within=[False, True, True])
    assert figures(evidence(wrong)).robust.mean == pytest.approx(1 / 3)


def test_without_draws_nothing_is_said() -> None:
    one = trial("one", [5, 2, 8], "1111", "1111", "1111")
    bare = Trial("one", Rows({n: c for n, c in one.rows.items() if n != "draws"}))
    assert chance_figures(evidence(bare), DRAWS) is None
    lost = Trial("one", one.rows.having(draws=np.array([0, 31, 31])))
    assert chance_figures(evidence(lost), DRAWS) is None, "a row of a record that does not say"
    assert chance_figures(evidence(), DRAWS) is None


TEN = ("1111111111",) * 3


def test_several_tries_are_counted_over_all_choices_of_draws() -> None:
    # In the second half no, two and all draws are successes; in the first one of the first sample.
    one = trial("one", [5, 2, 8], "1000000000", "0000011000", "0000011111")
    found = chance_figures(evidence(one, right=TEN), 10)
    assert found is not None
    assert [few.count for few in found.within] == [1, 5, 10]
    single, five, ten = (few.accuracy for few in found.within)
    assert single == pytest.approx((1 + 3 / 5 + 0) / 3) == found.robust.mean
    assert five == pytest.approx(1 / 3), "only the first sample withstands all five"
    assert ten == 0, "of all draws one is a success"
    assert found.attacks[0].within == found.within


def test_more_tries_never_leave_more() -> None:
    generator = np.random.default_rng(0)
    rows = ["".join(map(str, row)) for row in generator.integers(0, 2, (3, 10))]
    others = ["".join(map(str, row)) for row in generator.integers(0, 2, (3, 10))]
    for chained in (False, True):
        case = evidence(
            trial("one", [5, 2, 8], *rows),
            trial("two", [5, 2, 8], *others),
            chained=chained,
            right=TEN,
        )
        found = chance_figures(case, 10)
        assert found is not None
        shares = [few.accuracy for few in found.within]
        assert shares == sorted(shares, reverse=True)


def test_tries_agree_with_a_simulation() -> None:
    """Sets of five of the second half of 20 draws, drawn many times."""
    row = "0" * 10 + "0010010000"
    case = evidence(trial("one", [5, 2, 8], row, row, row), right=("1" * 20,) * 3)
    found = chance_figures(case, 20)
    assert found is not None
    generator, wins = np.random.default_rng(1), np.array([int(bit) for bit in row[10:]])
    tried = np.array([generator.permutation(wins)[:5].any() for _ in range(20_000)])
    assert found.within[1].accuracy == pytest.approx(1 - tried.mean(), abs=0.01)


def test_fewer_draws_allow_fewer_tries() -> None:
    one = trial("one", [5, 2, 8], "0000", "1111", "0000")
    assert [few.count for few in figures(evidence(one)).within] == [1]


def test_every_sample_has_its_probability_and_interval() -> None:
    one = trial("one", [5, 2, 8], "0000000000", "1111110000", "0000011111")
    case = evidence(one, right=("1111111111", "1111111111", "0000000000"))
    found = success_probabilities(case, 10)
    # The last sample is misclassified when clean, in every draw.
    assert found["probability"].tolist() == pytest.approx([0, 1 / 5, 1])
    ends = [clopper_pearson(count, 5) for count in (0, 1, 5)]
    assert found["probability_low"].tolist() == pytest.approx([low for low, _ in ends])
    assert found["probability_high"].tolist() == pytest.approx([high for _, high in ends])
    grouped = chance_figures(case, 10)
    assert grouped is not None
    counts = {round(5 * few.probability): few.images for few in grouped.probabilities}
    assert counts == {0: 1, 1: 1, 2: 0, 3: 0, 4: 0, 5: 1}
    assert grouped.probabilities[1].high == pytest.approx(ends[1][1])


def test_samples_that_were_not_judged_have_no_probability() -> None:
    one = trial("one", [5, 2], "1111", "0000")
    found = success_probabilities(evidence(one), DRAWS)
    assert np.isnan(found["probability"]).tolist() == [False, False, True]
    assert success_probabilities(evidence(), DRAWS) == {}

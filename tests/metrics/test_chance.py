"""Mean and deviation over evaluations, against what can be counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from besiege.metrics import Evidence, Rows, Trial
from besiege.metrics.stochastic import chance_figures
from besiege.metrics.values import Draws, Spread

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

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from besiege.metrics import Evidence, Rows, Trial, against_budget, against_steps, clopper_pearson
from besiege.metrics.curves import survival
from besiege.metrics.figures import (
    attack_figures,
    budget_figures,
    columns_of,
    gallery,
    rate,
    robust_rate,
    steps_figures,
)
from besiege.metrics.registry import Case


def rows(**columns: object) -> Rows:
    return Rows({name: np.asarray(column) for name, column in columns.items()})


CLEAN = rows(
    sample=[10, 11, 12, 13, 14],
    label=[0, 1, 0, 1, 1],
    prediction=[0, 1, 0, 1, 0],
    confidence=[0.9] * 5,
    correct=[True, True, True, True, False],
    record=["a"] * 5,
    row=[0, 1, 2, 3, 4],
)
ONE = Trial(
    "one",
    rows(
        sample=[10, 11, 12, 13, 14],
        correct=[True, True, True, True, False],
        success=[True, False, True, True, True],
        linf=[0.1, 0.0, 0.3, 0.1, 0.0],
        first_step=[0, -1, 2, 1, 0],
        forwards=[1] * 5,
        backwards=[1] * 5,
        queries=[1] * 5,
        prediction=[1, 1, 1, 0, 0],
        confidence=[0.5] * 5,
        record=["b"] * 5,
        row=[0, 1, 2, 3, 4],
    ),
    steps=3,
)
TWO = Trial(
    "two",
    rows(
        sample=[11],
        correct=[True],
        success=[True],
        linf=[0.2],
        first_step=[4],
        prediction=[0],
        confidence=[0.5],
        record=["c"],
        row=[0],
    ),
    steps=5,
)


def evidence(*trials: Trial, chained: bool = False, **more: object) -> Evidence:
    return Evidence(CLEAN, trials, chained, "linf", 0.3, (0.0, 1.0), 4, 2, **more)  # type: ignore[arg-type]


def test_accuracy_against_steps_counts_first_successes() -> None:
    curve = against_steps(evidence(ONE), ONE)
    assert curve is not None
    assert curve.x.tolist() == [0, 1, 2, 3]
    assert curve.value.tolist() == [0.6, 0.4, 0.2, 0.2]
    assert curve.count == 5
    assert (curve.at(0), curve.at(1.5), curve.at(99)) == (0.6, 0.4, 0.2)
    for value, low, high in zip(curve.value, curve.low, curve.high, strict=True):
        assert (low, high) == pytest.approx(clopper_pearson(round(value * 5), 5))


def test_a_success_that_only_the_judge_saw_is_one_of_the_whole_run() -> None:
    unseen = ONE.rows.having(first_step=np.array([0, -1, -1, 1, 0]))
    late = Trial("late", unseen, steps=3)
    curve = against_steps(evidence(late), late)
    assert curve is not None and curve.value.tolist() == [0.6, 0.4, 0.4, 0.2]


def test_a_late_success_hides_no_curve() -> None:
    """Whether only last iterates are examined is known of the attack, not of its successes."""
    late = replace(ONE, rows=ONE.rows.having(first_step=np.array([3, -1, 3, 3, 0])))
    assert [one.attack for one in steps_figures(evidence(late))] == ["one"]
    assert steps_figures(evidence(replace(late, last=True))) == ()


def test_in_a_chain_what_fell_before_counts_as_fallen() -> None:
    chain = evidence(ONE, TWO, chained=True)
    curve = against_steps(chain, TWO)
    assert curve is not None
    assert curve.value.tolist() == [0.2] * 4 + [0.0] * 2
    assert chain.accuracy(ONE) == 0.2
    assert chain.accuracy(TWO) == 0.0
    assert evidence(ONE, TWO).accuracy(TWO) == 0.0  # of the one sample it was tried on


def test_accuracy_against_the_budget_is_a_step_function() -> None:
    case = evidence(curve=ONE)
    curve = against_budget(case)
    assert curve is not None
    assert curve.x.tolist() == [0.0, 0.1, 0.3]
    assert curve.value.tolist() == [0.8, 0.4, 0.2]
    assert curve.at(0.0999) == 0.8 and curve.at(0.1) == 0.4
    found = budget_figures(case)
    assert found is not None
    assert found.unbroken == 1 and found.median == 0.1


def test_the_smallest_change_is_that_of_any_attack() -> None:
    # TWO broke sample 11 at its fixed budget, which the search did not.
    curve = against_budget(evidence(ONE, TWO, curve=ONE))
    assert curve is not None
    assert curve.x.tolist() == [0.0, 0.1, 0.2, 0.3]
    assert curve.value.tolist() == [0.8, 0.4, 0.2, 0.0]


def test_a_median_that_was_never_reached_is_unknown() -> None:
    never = Trial("never", ONE.rows.having(success=np.zeros(5, bool)))
    case = evidence(curve=never)
    found = budget_figures(case)
    assert found is not None and found.median is None and found.value == (0.8,)
    assert found.unbroken == 4


def test_what_was_not_attacked_is_not_robust() -> None:
    part = Trial("part", ONE.rows.where(np.array([0, 1])), steps=3)
    case = evidence(part)
    assert case.covered(part).tolist() == [True, True, False, False, False]
    assert case.accuracy(part) == 0.5
    robust = robust_rate(case)
    assert robust is not None and (robust.hits, robust.count) == (1, 2)
    told = next(one for one in attack_figures(Case(case)) if one.text == part.text)
    assert told.accuracy is not None
    assert (told.accuracy.hits, told.accuracy.count) == (1, 2)
    curve = against_steps(case, part)
    assert curve is not None and curve.count == 2 and curve.value[-1] == 0.5
    nothing = Trial("nothing", ONE.rows.where(np.zeros(5, bool)))
    assert robust_rate(evidence(ONE, nothing)) is None
    assert robust_rate(evidence()) is None
    assert against_steps(evidence(nothing), nothing) is None
    both = robust_rate(evidence(ONE, part))
    assert both is not None and both.count == 2


def test_in_a_chain_what_fell_is_covered_and_what_was_not_tried_is_not() -> None:
    left_out = Trial("left", TWO.rows.where(np.zeros(1, bool)))
    case = evidence(ONE, left_out, chained=True)
    assert not case.covered(left_out).any(), "of the only shard, the fallen alone would mislead"
    assert robust_rate(case) is None
    parts = CLEAN.having(record=np.array(["a", "a", "b", "b", "b"]))
    case = replace(case, clean=parts)
    assert case.covered(left_out).tolist() == [False, False, True, True, True]
    robust = robust_rate(case)
    assert robust is not None and (robust.hits, robust.count) == (0, 3)


def test_a_success_counts_whatever_the_judge_thinks_of_the_clean_image() -> None:
    doubtful = Trial("doubtful", ONE.rows.having(correct=np.zeros(5, bool)), steps=3)
    robust = robust_rate(evidence(doubtful))
    assert robust is not None and robust.hits == 1


def test_in_a_chain_an_image_that_the_judge_doubts_is_not_robust_and_not_left_out() -> None:
    """Later attacks leave it out. Without it, robust accuracy could exceed clean accuracy."""
    doubts = np.ones(5, bool)
    doubts[ONE.rows["success"].argmin()] = False
    first = Trial("first", ONE.rows.having(correct=doubts), steps=3)
    later = Trial("later", ONE.rows.where(np.zeros(5, bool)))
    case = evidence(first, later, chained=True)
    plain = evidence(ONE, chained=True)
    assert case.standing().sum() == plain.standing().sum() - 1
    assert case.covered(first).all()


def test_a_long_curve_is_thinned_to_points_it_passes_through() -> None:
    ends = np.arange(1.0, 10_001.0)
    curve = survival(np.arange(0.0, 10_001.0), ends, 10_000)
    thin = columns_of(curve)
    assert len(thin["x"]) <= 2000 and thin["x"][0] == 0 and thin["value"][-1] == 0
    assert all(curve.at(x) == v for x, v in zip(thin["x"], thin["value"], strict=True))


def test_the_gallery_goes_through_the_classes_and_names_its_images() -> None:
    shown = gallery(evidence(ONE, TWO))
    assert {item.sample for item in shown} == {10, 11, 12, 13}
    assert len({item.label for item in shown[:2]}) == 2
    eleven = next(item for item in shown if item.sample == 11)
    assert (eleven.attack, eleven.record, eleven.row) == ("two", "records/c", 0)
    assert (eleven.clean, eleven.clean_row) == ("records/a", 1)


def test_the_gallery_takes_classes_in_turn_and_the_strongest_attack() -> None:
    """The same as a plain loop over samples, on many."""
    generator = np.random.default_rng(0)
    ids, labels = generator.permutation(500)[:200], generator.integers(0, 3, 200)
    right = generator.random(200) < 0.9
    clean = Rows({**{n: CLEAN[n][np.zeros(200, int)] for n in CLEAN}, "sample": ids})
    clean = clean.having(label=labels, correct=right, row=np.arange(200))
    trials = []
    for text, share in (("weak", 0.2), ("strong", 0.5), ("middle", 0.3)):
        order = generator.permutation(200)
        base = Rows({n: ONE.rows[n][np.zeros(200, int)] for n in ONE.rows})
        won = (generator.random(200) < share) | ~right[order]
        trials.append(Trial(text, base.having(sample=ids[order], success=won, row=np.arange(200))))
    shown = gallery(replace(evidence(*trials), clean=clean))

    by_strength = [trials[1], trials[2], trials[0]]
    expected: dict[int, tuple[str, int]] = {}
    for trial in by_strength:
        for row in range(200):
            sample = int(trial.rows["sample"][row])
            if trial.rows["success"][row] and right[ids.tolist().index(sample)]:
                expected.setdefault(sample, (trial.text, row))
    queues: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for sample in sorted(expected, key=lambda s: hashlib.sha256(str(s).encode()).digest()):
        queues[int(labels[ids.tolist().index(sample)])].append(sample)
    assert len(shown) > 6
    for turn in range(len(shown) // 3):
        three = shown[3 * turn : 3 * turn + 3]
        assert {item.sample for item in three} == {queue[turn] for queue in queues.values()}
    for item in shown:
        assert (item.attack, item.row) == expected[item.sample]
        assert item.clean_row == ids.tolist().index(item.sample)


def test_a_rate_of_nothing_is_unknown() -> None:
    assert rate(0, 0) is None


def test_rows_are_a_table() -> None:
    assert CLEAN.where(CLEAN["correct"]).count == 4
    assert next(CLEAN.records())["sample"] == 10
    assert Rows.joined([CLEAN, CLEAN.having(extra=1)]).count == 10
    assert "extra" not in Rows.joined([CLEAN, CLEAN.having(extra=1)])
    with pytest.raises(KeyError, match="did you mean 'sample'"):
        CLEAN["sampel"]

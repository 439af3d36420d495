"""Evaluations aligned by sample: the difference, who is alone, and what is left out."""

from __future__ import annotations

import numpy as np
import pytest

from besiege.metrics.comparing import Aligned, Outline, difference
from besiege.metrics.paired import Difference
from besiege.metrics.rows import Rows


def outline(
    samples: list[int],
    robust: list[int],
    labels: list[int] | None = None,
    known: list[int] | None = None,
    distances: list[float] | None = None,
) -> Outline:
    """An outline with a budget, or with distances without one."""
    ids = np.array(samples)
    judged = np.ones(len(ids), bool) if known is None else np.array(known, bool)
    outcomes = Rows(
        {
            "sample": ids,
            "label": ids % 10 if labels is None else np.array(labels),
            "correct": np.ones(len(ids), bool),
            "robust": np.array(robust, bool) & judged,
            "known": judged,
        }
    )
    ends = np.array([] if distances is None else distances)
    smallest = Rows({"sample": ids[judged][: len(ends)], "distance": ends})
    none = Rows({"sample": np.zeros(0, np.int64)})
    eps = 0.1 if distances is None else None
    left, count = int(outcomes["robust"].sum()), int(judged.sum())
    return Outline("linf", "linf", eps, {}, False, smallest, none, outcomes, left, count, False)


def test_samples_are_matched_by_id_whatever_their_order() -> None:
    one = outline([3, 1, 2, 4], [1, 1, 0, 0])
    other = outline([1, 2, 3, 4], [0, 0, 1, 1])
    both = Aligned.of([one, other])
    assert both.samples.tolist() == [1, 2, 3, 4]
    assert both.values.tolist() == [[1, 0, 1, 0], [0, 0, 1, 1]]
    assert both.difference(0, 1) == Difference.counted(1, 1, 4)
    assert (both.better(0, 1).tolist(), both.better(1, 0).tolist()) == ([1], [4])


def test_a_sample_that_was_not_judged_counts_for_nobody() -> None:
    one = outline([1, 2, 3], [1, 1, 1], known=[1, 0, 1])
    other = outline([1, 2, 3], [0, 0, 1])
    both = Aligned.of([one, other])
    assert both.known.tolist() == [[True, False, True], [True, True, True]]
    assert both.difference(0, 1) == Difference.counted(1, 0, 2)
    assert both.better(0, 1).tolist() == [1]


def test_samples_of_one_evaluation_only_are_kept_or_dropped() -> None:
    one, other = outline([1, 2, 3], [1, 1, 1]), outline([2, 3, 4], [0, 1, 1])
    assert Aligned.of([one, other]).samples.tolist() == [1, 2, 3, 4]
    common = Aligned.of([one, other], common=True)
    assert common.samples.tolist() == [2, 3]
    assert common.difference(0, 1) == Aligned.of([one, other]).difference(0, 1)


def test_samples_with_other_labels_are_other_samples() -> None:
    one = outline([1, 2, 3], [1, 1, 1], labels=[1, 5, 3])
    other = outline([1, 2, 3], [0, 0, 0], labels=[1, 6, 3])
    for common in (False, True):
        assert Aligned.of([one, other], common).samples.tolist() == [1, 3]
    assert difference(one, other) == Difference.counted(2, 0, 2)


def test_without_a_budget_the_larger_perturbation_counts() -> None:
    one = outline([1, 2, 3, 4], [0, 0, 0, 1], distances=[0.1, 0.2, 0.0, np.inf])
    other = outline([1, 2, 3, 4], [0, 0, 0, 1], distances=[0.05, 0.3, 0.0, np.inf])
    assert difference(one, other) == Difference.counted(1, 1, 4)
    assert Aligned.of([one, other]).better(0, 1).tolist() == [1]
    assert difference(one, outline([1], [1])) is None, "with and without a budget"


def test_nothing_in_common_has_no_difference() -> None:
    assert difference(outline([1, 2], [1, 1]), outline([3, 4], [1, 0])) is None


def test_who_is_alone_among_many() -> None:
    group = Aligned.of(
        [
            outline([1, 2, 3, 4, 5], [1, 1, 0, 1, 1]),
            outline([1, 2, 3, 4, 5], [0, 1, 1, 0, 1]),
            outline([1, 2, 3, 4, 5], [0, 1, 1, 1, 0], known=[1, 1, 1, 1, 0]),
        ]
    )
    assert [group.alone(place).tolist() for place in range(3)] == [[1], [], []]
    assert [group.alone(place, best=False).tolist() for place in range(3)] == [[3], [4], []]


@pytest.mark.parametrize("seed", [0, 1])
def test_many_evaluations_at_once_are_the_pairs_one_by_one(seed: int) -> None:
    generator = np.random.default_rng(seed)
    outlines = []
    for _ in range(4):
        ids = generator.permutation(40)[:30]
        draws = generator.random((2, 30)) < 0.7
        outlines.append(outline(ids.tolist(), draws[0].tolist(), known=draws[1].tolist()))
    group = Aligned.of(outlines)
    for one in range(4):
        for other in range(one):
            assert group.difference(one, other) == difference(outlines[one], outlines[other])

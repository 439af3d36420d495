"""Models ranked under a setting: by the worst attack for each image, with ranges of ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.report.crowd import crowd

from besiege.bench.standings import Setting, medians_beside, settings_of
from besiege.metrics.paired import Difference, holm, samples_needed


def test_a_setting_is_what_has_the_same_norm_budget_goal_and_samples() -> None:
    board = crowd(3, 4, 60)
    found = settings_of(board)
    assert [one.cells for one in found] == [(0, 3), (1,), (2,)]
    assert [one.title for one in found] == ["linf 8/255", "l2 0.5", "linf 8/255"]
    other = replace(board.cells[3], samples=board.cells[3].samples + 1)
    again = settings_of(replace(board, cells=(*board.cells[:3], other)))
    assert [one.cells for one in again] == [(0,), (1,), (2,), (3,)]


def test_an_image_is_robust_if_no_attack_of_any_cell_broke_it() -> None:
    board = crowd(4, 4, 60)
    setting = settings_of(board)[0]
    robust = board.cells[0].robust & board.cells[3].robust
    for one in setting.standings:
        m = [model.name for model in board.models].index(one.model)
        assert one.robust is not None and one.robust.hits == robust[m].sum()
        assert one.robust.count == 60 and one.median is None
        left = {(c, a): board.cells[c].left[m, a].sum() for c in (0, 3) for a in range(5)}
        least = min(left.values())
        assert one.worst == tuple(place for place, count in left.items() if count == least)
    values = [one.robust.hits for one in setting.standings if one.robust is not None]
    assert values == sorted(values, reverse=True)


def test_pairs_are_paired_and_corrected_for_all_of_a_setting() -> None:
    board = crowd(4, 4, 60)
    found = settings_of(board)
    assert [len(one.pairs) for one in found] == [6] * 3
    for setting in found:
        every = zip(setting.pairs, holm([pair.change.p for pair in setting.pairs]), strict=True)
        for pair, most in every:  # never below the pair's own, and close to Holm's
            assert pair.change.p <= pair.p <= most + 0.02
            assert pair.needed == samples_needed(pair.change, 6)
    assert any(pair.p > pair.change.p for one in found for pair in one.pairs)
    robust = board.cells[0].robust & board.cells[3].robust
    names = [model.name for model in board.models]
    for pair in found[0].pairs:
        first, second = (robust[names.index(name)] for name in (pair.first, pair.second))
        assert pair.change == Difference.of(first, second) and pair.change.value >= 0


def rank_by_hand(setting: Setting, name: str) -> tuple[int, int]:
    better = sum(pair.second == name for pair in setting.pairs if pair.clear)
    worse = sum(pair.first == name for pair in setting.pairs if pair.clear)
    return 1 + better, len(setting.standings) - worse


def test_ranks_are_ranges_of_what_the_images_can_tell() -> None:
    board = crowd(6, 4, 400)
    for setting in settings_of(board):
        ranges = [(one.low, one.high) for one in setting.standings]
        assert ranges == [rank_by_hand(setting, one.model) for one in setting.standings]
        for place, (low, high) in enumerate(ranges, 1):
            assert low <= place <= high
    same = replace(board.cells[0], robust=np.repeat(board.cells[0].robust[:1], 6, 0))
    (setting,) = settings_of(replace(board, cells=(same,)))
    assert {(one.low, one.high) for one in setting.standings} == {(1, 6)}


def test_a_search_without_a_budget_is_ranked_by_its_median() -> None:
    board = crowd(4, 2, 80)
    cell = replace(board.cells[1], eps=None, eps_text=None)
    (setting,) = settings_of(replace(board, cells=(cell,)))
    assert setting.title == "l2, smallest"
    smallest = np.where(cell.correct, cell.distance.min(1), 0.0)
    medians = {name: np.sort(smallest[m])[39] for m, name in enumerate(cell.models)}
    assert [one.median for one in setting.standings] == sorted(medians.values(), reverse=True)
    fixed = replace(board.cells[0], norm="l2", eps=0.4, eps_text="0.4")
    beside = replace(board, cells=(fixed, cell))
    assert medians_beside(beside, settings_of(beside)[0]) == pytest.approx(medians)


def test_pairs_of_searches_say_whether_the_order_changes_with_the_budget() -> None:
    board = crowd(2, 2, 400)
    cell = board.cells[1]
    sizes = np.stack([np.full(400, 0.4), np.tile([0.1, 0.9], 200)])
    planted = replace(cell, searched=sizes, distance=np.repeat(sizes[:, None], 5, 1))
    (setting,) = settings_of(replace(board, cells=(planted,)))
    (pair,) = setting.pairs
    assert pair.crossing is not None and pair.crossing.verdict == "crossing"
    (change,) = pair.crossing.changes
    assert change.leader == (pair.first == cell.models[0]) and change.at == 0.4
    assert change.before < 0.4 == change.after
    (fixed,) = settings_of(replace(board, cells=board.cells[:1]))
    assert fixed.pairs[0].crossing is None


def test_medians_are_those_of_the_samples_that_an_attack_was_run_on() -> None:
    cell = crowd(2, 2, 9).cells[1]
    covered, distance = cell.covered.copy(), cell.distance.copy()
    covered[0, 0], covered[1, 1, 5:] = False, False
    distance[1, 1, :5] = [3.0, np.nan, 1.0, 2.0, 5.0]
    distance[1, 2] = np.nan
    found = replace(cell, covered=covered, distance=distance).medians
    assert np.isnan(found[0, 0]) and found[1, 1] == 3.0 and found[1, 2] == np.inf
    assert found[0, 1] == np.sort(cell.distance[0, 1])[4]


def test_what_must_not_be_quoted_is_last_and_what_is_missing_is_named() -> None:
    from besiege.core.errors import Finding

    board = crowd(3, 1, 60)
    (before,) = settings_of(board)
    best = before.standings[0].model
    place = [model.name for model in board.models].index(best)
    stop = Finding("W14", "It answers differently.", "Make it deterministic.", "stop")
    evaluations = list(board.figures.evaluations)
    evaluations[place] = replace(evaluations[place], warnings=(stop,), complete=False)
    doubtful = replace(board, figures=replace(board.figures, evaluations=tuple(evaluations)))
    (after,) = settings_of(doubtful)
    last = after.standings[-1]
    assert last.model == best and last.stops == ("W14",) and not last.complete
    cell = board.cells[0]
    keep = [m for m in range(3) if m != place]
    few = replace(
        cell,
        name="few",
        models=tuple(cell.models[m] for m in keep),
        sources=("", ""),
        evaluations=tuple(cell.evaluations[m] for m in keep),
        **{
            name: getattr(cell, name)[keep]
            for name in (
                *("correct", "known", "robust", "covered", "left", "success", "distance"),
                *("first_step", "first_query", "queries_used", "forwards", "backwards"),
            )
        },
    )
    (joined,) = settings_of(replace(board, cells=(cell, few)))
    assert {one.model: one.missed for one in joined.standings} == {
        name: (("few",) if name == best else ()) for name in cell.models
    }

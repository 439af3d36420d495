"""RealSafe: answers of boards made for them, tables recomputed from exported rows, its files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.studies.panels import sweeps
from tests.studies.realsafe_boards import NAMES, Sizes, board, cell, sizes

from besiege.bench.benchmark_files import read_benchmark
from besiege.bench.board import Board, BoardCell
from besiege.bench.sweeps import Sweep
from besiege.core.errors import UnknownNameError
from besiege.metrics.crossings import crossing
from besiege.metrics.paired import Difference, paired_interval
from besiege.studies.answers import Answer
from besiege.studies.realsafe.figures import CIFAR10, IMAGENET
from besiege.studies.realsafe.printed import TABLE_3
from besiege.studies.realsafe.reading import (
    SCORES,
    TRANSFER,
    UNTARGETED,
    WHITE,
    distances,
    family,
)
from besiege.studies.realsafe.tables import must_agree
from besiege.studies.study import STUDIES

STUDY = STUDIES.get("realsafe")
N = 600


def answer(name: str, board: Board) -> Answer:
    """The answer to one claim."""
    return next(one for one in STUDY.answers(board) if one.id == name)


def white(count: int, medians: dict[str, float], norm: str = "linf", **spreads: float) -> BoardCell:
    found = {
        f"minimal({attack}@realsafe)": {
            m: sizes(count, x * k, spread=spreads.get(m.replace("-", "_"), 0.5))
            for m, x in medians.items()
        }
        for attack, k in (("fgsm", 1.3), ("bim", 1.0), ("mim", 1.05), ("deepfool", 1.1))
    }
    return cell(f"white {norm} untargeted", found, norm=norm)


# F1


@pytest.mark.parametrize(
    ("count", "spread", "verdict"), [(N, 1.2, "yes"), (4000, 0.5, "no"), (25, 0.8, "cannot tell")]
)
def test_f1_rankings_cross(count: int, spread: float, verdict: str) -> None:
    """Curves of the same median and another spread cross; a factor on all distances does not."""
    factor = 1.0 if spread != 0.5 else 1.5
    mine = white(count, {"pgd-at": 0.1, "trades": 0.1 * factor}, trades=spread)
    found = answer("F1", board([mine]))
    assert found.verdict == verdict
    if verdict == "yes":
        assert (
            "pgd-at and trades under" in found.caveat and "The order changes near" in found.caveat
        )
    told = {"yes": "crossing", "no": "no crossing"}.get(verdict, verdict)
    assert f"The publication's case, trades and pgd-at: {told} under fgsm" in found.caveat


def test_f1_reaches_the_budget_of_the_published_case() -> None:
    """TRADES leads at 0.05 and trails at 0.15, nearly five times the budget of 8/255."""
    eps = 8 / 255
    ends = {"trades": np.full(N, 0.15), "pgd-at": np.where(np.arange(N) % 2, 0.04, 0.2)}
    mine = cell("white linf untargeted", {"minimal(bim@realsafe)": ends}, eps=eps)
    others = {f"minimal({a}@realsafe)": ends for a in ("fgsm", "mim")} | {"deepfool": ends}
    found = answer("F1", board([mine, cell("white linf untargeted 2", others, eps=eps)]))
    assert found.verdict == "yes" and "near 0.15" in found.caveat


def test_f1_is_a_band_of_the_difference_curve() -> None:
    """With one attack only, the effect is that of one crossing."""
    mine = white(N, {"pgd-at": 0.1, "trades": 0.1}, trades=1.2)
    found = answer("F1", board([mine])).effect
    one, other = (mine.distance[mine.models.index(m)] for m in ("pgd-at", "trades"))
    x = np.linspace(0, 0.5, 31)[1:]
    alone = [crossing(a, b, x, level=STUDY.level) for a, b in zip(one, other, strict=True)]
    assert found is not None
    assert found.value == max(min(c.value.max(), -c.value.min()) for c in alone)
    # Four pairs together are judged by a wider band than one.
    assert found.low <= max(min(c.low.max(), -c.high.min()) for c in alone)


# F2


@pytest.mark.parametrize(
    ("count", "trained", "verdict"), [(N, 3.0, "yes"), (N, 0.5, "no"), (40, 1.05, "cannot tell")]
)
def test_f2_training_has_the_largest_worst_case(count: int, trained: float, verdict: str) -> None:
    cells = [
        white(count, {"natural": m, "pgd-at": trained * m}, norm)
        for norm, m in (("linf", 0.1), ("l2", 0.5))
    ]
    found = answer("F2", board(cells))
    assert found.verdict == verdict
    # The finding is about both norms.
    assert answer("F2", board(cells[:1])).verdict == "not run"


def test_f2_is_a_no_where_one_norm_is_lost() -> None:
    cells = [
        white(N, {"natural": 0.1, "pgd-at": 0.4}),
        white(N, {"natural": 1, "pgd-at": 0.3}, "l2"),
    ]
    assert answer("F2", board(cells)).verdict == "no"


def test_f2_is_about_the_closest_rival() -> None:
    cells = [
        white(N, {"natural": 0.2 * m, "pgd-at": m, "jpeg": 2 * m}, norm)
        for norm, m in (("linf", 0.1), ("l2", 0.5))
    ]
    assert answer("F2", board(cells)).verdict == "no"


# F3


def f3(count: int, under_nes: float, averaged: bool = True, robust: float = 0.15) -> Board:
    """Randomised: weak white box; under NES as given. Adversarially trained: the same in both."""
    base = {"pgd-at": robust, "pads": 0.02}
    fixed = {"pgd-at": sizes(count, robust), "pads": sizes(count, under_nes, 1)}
    nes = {"nes@realsafe-strength": fixed, "spsa@realsafe-strength": fixed}
    ones = {a: {m: np.ones(count) for m in f} for a, f in nes.items()}
    cells = [
        white(count, base),
        cell("score linf untargeted, strength", nes, access="score", first=ones, search=False),
    ]
    if averaged:
        wide = {"averaged(nes(sigma=0.05), 10)": {"pads": sizes(count, 0.01)}}
        name = "score linf untargeted, averaged"
        cells.append(cell(name, wide, access="score", search=False))
    return board(cells)


@pytest.mark.parametrize(
    ("count", "nes", "verdict"), [(N, 0.5, "yes"), (N, 0.05, "no"), (30, 0.17, "cannot tell")]
)
def test_f3_randomised_models_keep_more_under_queries(count: int, nes: float, verdict: str) -> None:
    found = answer("F3", f3(count, nes))
    assert found.verdict == verdict
    assert "leaves" in found.caveat and "no robustness" in found.caveat


def test_f3_says_nothing_without_the_averaged_attacks() -> None:
    assert answer("F3", f3(N, 0.5, averaged=False)).verdict == "not run"


def test_f3_needs_the_averaged_attacks_on_the_very_model() -> None:
    """Wider probes of one draw are not averaged, and another model's figure says nothing."""
    mine = f3(N, 0.5)
    narrow = replace(mine.cells[-1], attacks=("nes(sigma=0.05)",))
    assert answer("F3", replace(mine, cells=(*mine.cells[:-1], narrow))).verdict == "not run"
    models = tuple(
        replace(m, tags={"defense": "randomised"}) if m.name == "jpeg" else m for m in mine.models
    )
    other = replace(mine.cells[-1], models=("jpeg",))
    found = answer("F3", replace(mine, models=models, cells=(*mine.cells[:-1], other)))
    assert found.verdict == "not run" and "were not run on 'pads'" in found.caveat


def test_f3_compares_white_box_accuracy_on_the_same_images() -> None:
    """Of the images that the randomised model was attacked on, it keeps more than the other."""
    mine = f3(N, 0.5)
    cell_ = mine.cells[0]
    distance, covered = cell_.distance.copy(), cell_.covered.copy()
    pads, other = cell_.models.index("pads"), cell_.models.index("pgd-at")
    few = np.arange(N) < 100
    covered[pads, :, ~few] = False
    distance[pads, :, ~few] = np.nan
    distance[other, :, few] = 0.02  # weak on these, and strong on the others
    some = replace(cell_, distance=distance, covered=covered)
    assert answer("F3", replace(mine, cells=(some, *mine.cells[1:]))).verdict == "not run"


@pytest.mark.parametrize("weak", ["nes@realsafe-strength", "spsa@realsafe-strength"])
def test_f3_is_about_both_attacks(weak: str) -> None:
    mine = f3(N, 0.5)
    scores = mine.cells[1]
    left = scores.left.copy()
    left[scores.models.index("pads"), scores.attacks.index(weak)] = False
    broken = replace(scores, left=left, success=scores.correct[:, None] & ~left)
    found = answer("F3", replace(mine, cells=(mine.cells[0], broken, *mine.cells[2:])))
    assert found.verdict == "no"


def test_f3_compares_with_models_that_are_better_white_box_only() -> None:
    assert answer("F3", f3(N, 0.5, robust=0.001)).verdict == "not run"


# F4


@pytest.mark.parametrize(
    ("count", "factor", "verdict"), [(N, 1.5, "yes"), (N, 0.7, "no"), (30, 1.1, "cannot tell")]
)
def test_f4_transformations_help_a_little(count: int, factor: float, verdict: str) -> None:
    found = answer("F4", board([white(count, {"natural": 0.08, "jpeg": 0.08 * factor})]))
    assert found.verdict == verdict
    assert "Under the worst of all: jpeg" in found.caveat


def test_f4_needs_the_bare_net() -> None:
    assert answer("F4", board([white(N, {"jpeg": 0.1, "pgd-at": 0.1})])).verdict == "not run"


# F5


def f5(count: int, gain: float, data: str, dim: float | None = None) -> Board:
    """MIM and DIM need budgets smaller by a factor than BIM does, on transferred images."""
    cells = [white(count, {"natural": 0.05})]
    for eps in (0.05, 0.1, 0.2):
        found = {
            f"{attack}@realsafe": {"natural": sizes(count, 0.1 * factor)}
            for attack, factor in (("bim", 1.0), ("mim", gain), ("dim", dim or gain))
        }
        name = f"transfer linf untargeted, {eps}"
        cells.append(cell(name, found, source="zoo:p", eps=eps, search=False))
    return board(cells, data)


@pytest.mark.parametrize(
    ("data", "count", "gain", "verdict"),
    [
        ("cifar10", N, 1.2, "yes"),
        ("cifar10", N, 0.8, "no"),
        ("cifar10", 60, 1.0, "cannot tell"),
        ("imagenet-sample", N, 0.8, "yes"),
        ("imagenet-sample", N, 1.2, "no"),
        ("imagenet-sample", 30, 0.95, "cannot tell"),
    ],
)
def test_f5_boosters_of_transfer(data: str, count: int, gain: float, verdict: str) -> None:
    """Another claim on CIFAR-10, that they do not help, than on ImageNet."""
    assert answer("F5", f5(count, gain, data)).verdict == verdict


@pytest.mark.parametrize(("mim", "dim"), [(1.2, 0.8), (0.8, 1.2)])
@pytest.mark.parametrize("data", ["cifar10", "imagenet-sample"])
def test_f5_is_about_both_boosters(mim: float, dim: float, data: str) -> None:
    assert answer("F5", f5(N, mim, data, dim)).verdict == "no"


# F6


def f6(count: int, nattack: float, never: int = 0, late: int = 0) -> Board:
    """NATTACK by its distance; images that nothing breaks at any size, or after 50 steps only."""
    first = white(count, {"natural": 0.05, "pgd-at": 0.1})
    first.distance[:, :, :never] = np.inf
    last = np.arange(count) < late
    fixed = {
        f"{a}@realsafe-strength(steps={k})": {
            m: np.where(last & (k < 100), np.inf, 0.05) for m in ("natural", "pgd-at")
        }
        for a in ("bim", "mim")
        for k in (20, 50, 100)
    }
    strong = cell("white linf untargeted, strength", fixed, search=False)
    found = {
        f"minimal({a}@realsafe-code)": {
            m: sizes(count, x * k) for m, x in (("natural", 0.05), ("pgd-at", 0.1))
        }
        for a, k in (("nes", 1.2), ("spsa", 1.1), ("nattack", nattack))
    }
    return board([first, strong, cell("score linf untargeted", found, access="score")])


@pytest.mark.parametrize(
    ("count", "nattack", "never", "late", "verdict"),
    [
        (2000, 0.9, 0, 0, "yes"),
        (2000, 2.0, 0, 0, "no"),
        (2000, 0.9, 200, 0, "no"),
        (2000, 0.9, 0, 200, "no"),
        (50, 0.9, 0, 0, "cannot tell"),
    ],
)
def test_f6_nothing_is_left_fifty_steps_are_enough_nattack_leads(
    count: int, nattack: float, never: int, late: int, verdict: str
) -> None:
    found = answer("F6", f6(count, nattack, never, late))
    assert found.verdict == verdict
    assert "Local optimality on natural: nes" in found.caveat
    # With the smallest perturbation of every image, it is that of the best attack.
    assert ("nattack 1.00" in found.caveat) == (nattack < 1)
    assert ("only NATTACK breaks 0 of" in found.caveat) == (nattack > 1)


@pytest.mark.parametrize("place", [1, 2])
def test_f6_is_about_bim_and_mim(place: int) -> None:
    mine = f6(2000, 0.9)
    mine.cells[0].distance[:, place, :200] = np.inf
    assert answer("F6", mine).verdict == "no"


# What is recomputed.


def test_of_budgets_the_nearest_image_counts_and_a_search_stands_for_all() -> None:
    """A larger step may miss an image that a smaller one has broken."""
    ends = {"natural": np.array([0.05, 0.2])}
    grid = [
        cell(f"transfer linf untargeted, {eps}", {"bim@realsafe": {"natural": found}},
             source="zoo:p", eps=eps, search=False)
        for eps, found in ((0.1, ends["natural"]), (0.3, np.array([1.0, 0.25])))
    ]  # fmt: skip
    mine = board([cell("white linf untargeted", {"bim@realsafe": ends}), *grid])
    assert distances(mine, TRANSFER, "bim", "linf", UNTARGETED).ends.tolist() == [[0.05, 0.25]]
    near = {"natural": np.array([0.01, 0.01])}
    fixed = cell("white linf untargeted, fixed", {"bim@realsafe": near}, search=False)
    both = board([cell("white linf untargeted", {"minimal(bim@realsafe)": ends}), fixed])
    assert distances(both, WHITE, "bim", "linf", UNTARGETED).ends.tolist() == [[0.05, 0.2]]


def test_attacks_that_ignore_a_defense_are_no_white_box() -> None:
    ends = {"natural": np.array([0.05, 0.2])}
    blind = {"natural": np.array([0.01, 0.01])}
    found = {"oblivious(bim@realsafe)": blind, "minimal(bim@realsafe)": ends}
    fixed = {"oblivious(mim@realsafe-strength(steps=9))": blind}
    cells = [
        cell("white linf untargeted", found),
        cell("white linf untargeted, strength", fixed, search=False),
    ]
    mine = board(cells)
    assert distances(mine, WHITE, "bim", "linf", UNTARGETED).ends.tolist() == [[0.05, 0.2]]
    assert STUDY.table("worst", mine).numbers["accuracy"].tolist() == [0.5, 0.5]


def test_f6_of_score_attacks_that_are_half_done() -> None:
    mine = f6(2000, 0.9)
    scores = mine.cells[-1]
    covered = scores.covered.copy()
    covered[:, 0, 1500:] = False
    distance = np.where(covered, scores.distance, np.nan)
    some = replace(scores, covered=covered, distance=distance)
    found = answer("F6", replace(mine, cells=(*mine.cells[:-1], some)))
    assert found.verdict == "yes" and "of 1500" in found.caveat


def test_attacks_with_wider_probes_are_none_of_the_15() -> None:
    wide = {"averaged(nes(sigma=0.05), 10)": {"natural": np.array([0.01, 0.01])}}
    mine = board([cell("score linf untargeted, averaged", wide, access="score", search=False)])
    with pytest.raises(UnknownNameError, match="'nes'"):
        distances(mine, SCORES, "nes", "linf", UNTARGETED)


def test_a_transferred_distance_is_that_of_the_smallest_budget_that_fooled_the_model() -> None:
    mine = f5(50, 1.0, "cifar10")
    found = distances(mine, TRANSFER, "bim", "linf", UNTARGETED)
    true = sizes(50, 0.1)
    assert np.array_equal(found.ends[0], np.where(true <= 0.2, true, np.inf))
    assert mine.cells[found.cell].eps == 0.1, "figures mark the standard budget"


def test_an_image_wrong_when_clean_has_distance_0_and_one_never_broken_infinity() -> None:
    ends: Sizes = np.array([0.0, 0.05, 0.2, np.inf])
    one = {"bim@realsafe": {"natural": ends}}
    grid = [cell(f"transfer linf untargeted, {e}", one, source="zoo:p", eps=e, search=False)
            for e in (0.1, 0.3)]  # fmt: skip
    mine = board([cell("white linf untargeted", one), *grid])
    for knowledge in (WHITE, TRANSFER):
        found = distances(mine, knowledge, "bim", "linf", UNTARGETED)
        assert found.ends.tolist() == [[0.0, 0.05, 0.2, np.inf]]
        assert found.held(0.1).tolist() == [[False, False, True, True]]
    rows = STUDY.table("table3", mine).numbers
    assert rows["median"].tolist() == [0.05, 0.05] and rows["accuracy"].tolist() == [0.5, 0.5]
    shown = STUDY.table("success", mine).numbers
    assert shown["of_correct"][0] == 1 / 3 and shown["of_all"][0] == 1 / 4


@pytest.mark.parametrize("wrong", [(10, 8, 5, 2), (10, 11, 9, 2), (10, 8, 9, -1)])
def test_accuracy_is_the_clean_one_times_what_no_attack_broke(wrong: tuple[int, ...]) -> None:
    must_agree(10, 8, 5, 3)
    with pytest.raises(AssertionError):
        must_agree(*wrong)


def test_f4_is_the_paired_difference_of_the_attack_where_it_is_least() -> None:
    mine = white(N, {"natural": 0.08, "jpeg": 0.12})
    found = answer("F4", board([mine])).effect
    parts = []
    for attack in (0, 1):
        jpeg, bare = (
            mine.distance[mine.models.index(m), attack] > 0.1 for m in ("jpeg", "natural")
        )
        one = Difference.of(jpeg, bare)
        level = 1 - (1 - STUDY.level) / 2
        parts.append((one.value, *paired_interval(one.only_first, one.only_second, N, level)))
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx(np.min(parts, 0))


def test_printed_values_are_those_of_the_publication() -> None:
    assert TABLE_3["white", "fgsm", "res-56"] == (0.005, 21.6)
    assert TABLE_3["score", "nattack", "adp"] == (0.005, 2.4)
    assert len(TABLE_3) == 11 * 8


def test_figures_have_the_numbers_of_the_publication() -> None:
    told = {one.number: one.title for one in (*CIFAR10, *IMAGENET)}
    assert sorted(told) == list(range(1, 85))
    assert told[1] == "accuracy against budget, white, linf"
    assert told[8] == "accuracy against strength, decision, l2"
    assert told[17] == "accuracy against budget, white, linf, targeted"
    assert told[23] == "success rate against budget, white, linf"
    assert told[31] == "accuracy against budget, white, l2, targeted"
    assert told[42] == "accuracy against strength, decision, l2, targeted"
    assert told[50] == "success rate against strength, decision, l2"
    assert told[9] == "accuracy against budget, white, linf"
    assert told[76] == "accuracy against strength, decision, l2, targeted"


def test_a_figure_has_the_attacks_of_its_knowledge_as_panels() -> None:
    mine = board([white(40, {"natural": 0.05, "pgd-at": 0.1})])
    first = next(one for one in STUDY.figures(mine) if one.name == "1")
    assert [panel.attack for panel in sweeps(first)] == ["fgsm", "bim", "mim", "deepfool"]
    line = sweeps(first)[1].lines[1]
    held = mine.cells[0].distance[1, 1]
    assert line.model == "pgd-at"
    for x in (0.03, 0.1, 0.15):
        at = np.searchsorted(line.x, x, side="right") - 1
        assert line.value[at] == pytest.approx((held > x).mean())


def figure(number: str, mine: Board) -> dict[str, Sweep]:
    """The panels of a figure, by their attacks."""
    (found,) = (one for one in STUDY.figures(mine) if one.name == number)
    return {panel.attack: panel for panel in sweeps(found)}


def test_a_curve_over_queries_is_the_share_not_broken_after_so_many() -> None:
    count = 30
    taken = np.arange(count, dtype=np.float64) % 12 + 1
    broken = np.arange(count) % 3 != 0
    distance = {"nes@realsafe-strength": {"natural": np.where(broken, 0.05, np.inf)}}
    first: dict[str, Any] = {"nes@realsafe-strength": {"natural": taken}}
    name = "score linf untargeted, strength"
    scores = cell(name, distance, first=first, access="score", search=False)
    (line,) = figure("6", board([white(count, {"natural": 0.05}), scores]))["nes"].lines
    for x in (1, 5, 11):
        at = np.searchsorted(line.x, x, side="right") - 1
        assert line.value[at] == pytest.approx(1 - (broken & (taken <= x)).mean())


def test_success_rates_are_of_images_that_were_classified_correctly() -> None:
    """Ten of 40 are misclassified when clean; 15 of the 30 others are broken."""
    ends = np.repeat([0.0, 0.05, np.inf], [10, 15, 15])
    found = {"minimal(bim@realsafe)": {"natural": ends}}
    taken: dict[str, Any] = {"nes@realsafe-strength": {"natural": np.full(40, 7.0)}}
    mine = board(
        [
            cell("white linf untargeted", found),
            cell("white linf untargeted, strength", {"bim@realsafe-strength(steps=9)":
                 {"natural": ends}}, search=False),
            cell("score linf untargeted, strength", {"nes@realsafe-strength": {"natural": ends}},
                 first=taken, access="score", search=False),
        ]
    )  # fmt: skip
    for number, attack in (("23", "bim"), ("24", "bim"), ("28", "nes")):
        (line,) = figure(number, mine)[attack].lines
        assert line.value[-1] == pytest.approx(0.5), number
    for number, attack in (("1", "bim"), ("2", "bim"), ("6", "nes")):
        (line,) = figure(number, mine)[attack].lines
        assert line.value[-1] == pytest.approx(15 / 40), number


def test_a_curve_of_a_decision_attack_is_what_is_beyond_the_standard_budget() -> None:
    """Within so many passes: 0.4 is within 0.5, and 0.9 is not."""
    ends = np.array([0.4, 0.9, 0.4, 0.0])
    one = cell("decision l2 untargeted", {"boundary@realsafe": {"natural": ends}}, norm="l2",
               access="decision")  # fmt: skip
    best = np.array([[9.0, 0.4], [9, 0.9], [0.4, 0.4], [0, 0]], np.float32)
    one = replace(one, passes=np.array([10, 100]), best=best[None, None])
    (line,) = figure("8", board([one]))["boundary"].lines
    assert line.x.tolist() == [0, 10, 100] and line.value.tolist() == [0.75, 0.5, 0.25]
    (line,) = figure("50", board([one]))["boundary"].lines
    assert line.value.tolist() == pytest.approx([0, 1 / 3, 2 / 3])


def test_transfer_against_strength_has_a_point_for_each_number_of_steps() -> None:
    found = {
        f"bim@realsafe-strength(steps={k})": {"natural": np.where(np.arange(20) < k, 0.05, np.inf)}
        for k in (1, 3, 10)
    }
    name = "transfer linf untargeted, strength"
    moved = cell(name, found, source="zoo:p", search=False)
    (line,) = figure("4", board([white(20, {"natural": 0.05}), moved]))["bim"].lines
    assert line.x.tolist() == [0, 1, 3, 10]
    assert line.value.tolist() == pytest.approx([1.0, 0.95, 0.85, 0.5])


def test_targeted_success_under_both_denominators() -> None:
    """Two of ten are misclassified when clean, three reach their class within the budget."""
    ends = np.array([0, 0, 0.05, 0.1, 0.08, 0.2, 0.3, np.inf, np.inf, np.inf])
    one = {"minimal(bim@realsafe)": {"natural": ends}}
    aimed = cell("white linf targeted", one, goal="targeted:random")
    rows = STUDY.table("success", board([aimed])).numbers
    assert (rows["broken"][0], rows["of_correct"][0], rows["of_all"][0]) == (3, 3 / 8, 3 / 10)
    # Of these two one is classified as its target already, and one is brought to it.
    aimed.aimed[0, 0, :2] = 0.0, 0.07
    found = STUDY.table("success", board([aimed]))
    counts = [found.numbers[name][0] for name in ("broken", "reached", "others", "images")]
    assert counts == [3, 5, 9, 10]
    assert found.rows[0][1:] == ("50.0 % of all 10", "44.4 % of 9 not the target already")


def test_the_worst_case_is_image_by_image_within_one_norm_and_goal() -> None:
    a = np.array([0.05, 0.2, 0.2, 0.3])
    b = np.array([0.2, 0.05, 0.2, 0.3])
    found = {"minimal(bim@realsafe)": {"natural": a}, "minimal(mim@realsafe)": {"natural": b}}
    scores = {"minimal(nes@realsafe-code(steps=9))": {"natural": np.array([1, 1, 0.05, 1])}}
    mine = board(
        [
            cell("white linf untargeted", found),
            cell("score linf untargeted", scores, access="score"),
            cell("white l2 untargeted", {"cw@realsafe": {"natural": a * 0}}, norm="l2"),
        ]
    )
    grid = STUDY.table("worst", mine)
    assert ("linf untargeted, white", "50.0 % of 4") in [row[:2] for row in grid.rows]
    rows = grid.numbers
    left = dict(
        zip(zip(rows["norm"], rows["knowledge"], strict=True), rows["accuracy"], strict=True)
    )
    assert left["linf", "white"] == 0.5 and left["linf", "score"] == 0.75
    assert left["linf", "all"] == 0.25 and left["l2", "white"] == 0.0
    # A black-box success where no white-box attack has one: W08.
    assert any("break 1 of 4 images" in one for one in STUDY.readings(mine))


def test_readings_tell_queries_from_transfer() -> None:
    """W08 is about queries, W09 about transfer, and each about more than 0.2 % of the images."""
    far, near = np.full(1000, 0.3), np.where(np.arange(1000) < 3, 0.05, 0.3)
    white_box = cell("white linf untargeted", {"minimal(bim@realsafe)": {"natural": far}})
    nes = {"minimal(nes@realsafe-code(steps=9))": {"natural": near}}
    bim = {"bim@realsafe-transfer": {"natural": near}}
    told = {
        name: STUDY.readings(board([white_box, one]))[0]
        for name, one in {
            "W08": cell("score linf untargeted", nes, access="score"),
            "W09": cell("transfer linf untargeted", bim, source="zoo:p", search=False),
        }.items()
    }
    assert "attacks without gradients break 3 of 1,000" in told["W08"] and "W08" in told["W08"]
    assert "images made on another model break 3" in told["W09"] and "W09" in told["W09"]
    nes["minimal(nes@realsafe-code(steps=9))"]["natural"][0] = 0.3
    few = board([white_box, cell("score linf untargeted", nes, access="score")])
    assert "W08" not in STUDY.readings(few)[0]


def test_the_worst_case_has_runs_against_strength_at_the_budget_too() -> None:
    """More steps and more queries break images that the searches with few of them do not."""
    far, near = np.array([0.05, 0.2, 0.2, 0.3]), np.array([1, 0.09, 1, 1])
    search = {"minimal(bim@realsafe)": {"natural": far, "pads": far}}
    more = {"bim@realsafe-strength(steps=100)": {"natural": near}}
    queries = {"nes@realsafe-strength": {"natural": near[::-1], "pads": near}}
    cells = [
        cell("white linf untargeted", search),
        cell("white linf untargeted, strength", more, search=False),
        cell("score linf untargeted, strength", queries, access="score", search=False),
    ]
    rows = STUDY.table("worst", board(cells)).numbers
    keys = zip(rows["knowledge"], rows["model"], strict=True)
    left = dict(zip(keys, rows["accuracy"], strict=True))
    assert left["white", "natural"] == 0.5 and left["score", "natural"] == 0.75
    assert left["all", "natural"] == 0.25 and left["all", "pads"] == 0.5
    other = replace(cells[1], eps=0.3, name="white linf untargeted, strength at 0.3")
    rows = STUDY.table("worst", board([cells[0], other])).numbers
    assert rows["accuracy"].tolist() == [0.75] * 4, "another budget says nothing here"


def test_score_attacks_at_the_budget_only_have_an_accuracy_and_no_median() -> None:
    fixed = {"nes@realsafe-strength": {"natural": np.array([0.05, 0.2, np.inf, 0.01])}}
    ones = {a: {m: np.ones(4) for m in f} for a, f in fixed.items()}
    name = "score linf untargeted, strength"
    scores = cell(name, fixed, first=ones, access="score", search=False)
    mine = board([white(4, {"natural": 0.05}), scores])
    table = STUDY.table("table3", mine)
    (row,) = (row for row in table.rows if row[0] == "score nes")
    assert row[1] == "-/50.0" and "Without a median: run at the budget only." in table.note
    searched = cell("score linf untargeted", {"minimal(nes@realsafe-code(steps=9))":
                    {"natural": np.array([0.05, 0.2, 0.3, 0.01])}}, access="score")  # fmt: skip
    both = STUDY.table("table3", board([white(4, {"natural": 0.05}), scores, searched]))
    assert [row[1] for row in both.rows if row[0] == "score nes"] == [".050/50.0"]


def test_table_3_has_score_attacks_on_randomised_models_beside_searches_on_others() -> None:
    """Nothing searches on a randomised model: its accuracy is that at the budget."""
    ends = {"natural": np.array([0.05, 0.2, 0.3, 0.01]), "pads": np.array([0.05, 0.2, 0.3, 1.0])}
    at_budget = {"nes@realsafe-strength": ends}
    ones = {a: {m: np.ones(4) for m in f} for a, f in at_budget.items()}
    name = "score linf untargeted, strength"
    found = {"minimal(nes@realsafe-code(steps=9))": {"natural": ends["natural"]}}
    cells = [
        cell("score linf untargeted", found, access="score"),
        cell(name, at_budget, first=ones, access="score", search=False),
    ]
    table = STUDY.table("table3", board(cells))
    (row,) = (row for row in table.rows if row[0] == "score nes")
    assert dict(zip(table.columns, row, strict=True)) == {
        "attack": "score nes", "natural": ".050/50.0", "pads": "-/75.0",
        **dict.fromkeys(("pgd-at", "trades", "jpeg"), "not run"),
    }  # fmt: skip


def test_absent_models_stand_in_the_table() -> None:
    mine = replace(board([white(10, {"natural": 0.05})]), absent={"adp": "no weights"})
    table = STUDY.table("table3", mine)
    assert table.columns == ("attack", *NAMES, "adp")
    assert {row[-1] for row in table.rows} == {"absent"}
    assert {row[2] for row in table.rows} == {"not run"}


def test_a_board_of_nothing_answers_nothing() -> None:
    mine = board([cell("other", {"square": {"natural": np.ones(3)}})])
    assert {one.verdict for one in STUDY.answers(mine)} == {"not run"}
    with pytest.raises(UnknownNameError, match="did you mean 'table3'"):
        STUDY.table("table4", mine)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("minimal(averaged(bim@realsafe, 10), bisections=8)", "bim"),
        ("nattack@realsafe(steps=9)", "nattack"),
        ("spsa@realsafe-code-l2(steps=9)", "spsa"),
        ("square", ""),
    ],
)
def test_the_attack_of_a_text(text: str, name: str) -> None:
    assert family(text) == name


def test_every_file_has_the_15_attacks_as_presets() -> None:
    for path in STUDY.specs.values():
        spec = read_benchmark(path)
        texts = {
            (c.access or "", bool(c.substitute), a) for c in spec.cells for a in c.attacks or ()
        }
        white = {family(a) for access, sub, a in texts if not access and not sub}
        moved = {family(a) for _, sub, a in texts if sub}
        black = {family(a) for access, _, a in texts if access}
        assert white == {"fgsm", "bim", "mim", "deepfool", "cw"}
        assert moved == {"fgsm", "bim", "mim", "dim"}
        assert black == {"nes", "spsa", "nattack", "zoo", "boundary", "evolutionary"}
        assert len({*white, *(f"transfer {a}" for a in moved), *black}) == 15
        assert all("@realsafe" in a for c in spec.cells for a in c.attacks or ()
                   if "averaged" not in c.name)  # fmt: skip
        for c in spec.cells:
            if c.substitute and not c.name.endswith("strength"):
                assert len(c.budgets) == 16 and c.threat.split()[0] in ("linf", "l2")

"""The sub-studies of AutoAttack: divided logits and step sizes, on made-up boards and for real."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.studies.attack_boards import attacked, first

from besiege.attacks.attack import parse
from besiege.bench.benchmark_files import read_benchmark
from besiege.bench.board import Board
from besiege.bench.board_reading import board_of
from besiege.bench.expanding import declared
from besiege.bench.opening import read_evaluations
from besiege.bench.single import measure
from besiege.core.errors import UnknownNameError
from besiege.studies.answers import decide
from besiege.studies.autoattack import scaling, step_sizes
from besiege.studies.autoattack.scaling import DIVISORS, MARGIN, ascent
from besiege.studies.choosing import with_cells
from besiege.studies.study import STUDIES

STUDY = STUDIES.get("autoattack")
LARGE, PLAIN = "large logits", "natural"


def divided(large: Mapping[int, int], plain: Mapping[int, int], margin: int = 47) -> Board:
    """A board of figure 2: how many of 100 images each divisor leaves."""
    rows = {
        model: {**{ascent(n): first(left[n]) for n in left}, MARGIN: first(margin)}
        for model, left in ((LARGE, large), (PLAIN, plain))
    }
    return attacked(scaling.CELL, rows)


PUBLISHED = dict(zip(DIVISORS, (93, 92, 65, 46), strict=True))
ONLY_WEAKER = dict(zip(DIVISORS, (46, 53, 59, 59), strict=True))
SAME = dict(zip(DIVISORS, (50, 50, 50, 50), strict=True))


@pytest.mark.parametrize(
    ("board", "model", "verdict", "sign"),
    [
        (divided(PUBLISHED, ONLY_WEAKER), LARGE, "yes", "masked: dividing"),
        (divided(PUBLISHED, ONLY_WEAKER), PLAIN, "no", "not masked"),
        (divided(SAME, SAME), LARGE, "cannot tell", "cannot tell"),
    ],
)
def test_dividing_helps_only_where_the_scale_masks(
    board: Board, model: str, verdict: str, sign: str
) -> None:
    found = scaling.masked_by_scale(board, model=model)
    assert decide(found.low, found.high, 0.01) == verdict
    whole = scaling.scaling(board, model)
    assert whole.sign.startswith(sign) and whole.masked == found
    assert whole.margin is not None and whole.margin.hits == 47
    (cell,) = board.cells
    left = cell.left[cell.models.index(model)].sum(1)
    assert [whole.usual[n].hits for n in DIVISORS] == left[:4].tolist()
    assert whole.stable == {}


def test_the_claim_about_the_plain_net_is_the_other_way_round() -> None:
    found = scaling.weakened_by_dividing(divided(PUBLISHED, ONLY_WEAKER), model=PLAIN)
    assert found.value == pytest.approx(0.13) and found.low > 0
    assert scaling.weakened_by_dividing(divided(PUBLISHED, PUBLISHED), model=PLAIN).high < 0


def test_what_was_not_run_is_said() -> None:
    board = divided({1: 90, 10: 80}, {1: 90, 10: 80})
    with pytest.raises(UnknownNameError, match="was not run"):
        scaling.masked_by_scale(board, model=LARGE)
    assert scaling.scaling(board, LARGE).sign == "not run"
    with pytest.raises(UnknownNameError, match="other"):
        scaling.masked_by_scale(board, model="other")
    line = scaling.grid(board).rows[0]
    assert line[2:6] == ("90.0 %", "80.0 %", "-", "-")


def test_images_that_only_one_attack_was_judged_on_do_not_count() -> None:
    board = divided(PUBLISHED, ONLY_WEAKER)
    (cell,) = board.cells
    covered = cell.covered.copy()
    covered[0, 0, 93:] = False
    board = replace(board, cells=(replace(cell, covered=covered),))
    found = scaling.masked_by_scale(board, model=LARGE)
    assert found.count == 93 and found.value == pytest.approx(47 / 93)


@pytest.fixture(scope="module")
def figure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figure") / "run"
    spec = STUDY.specs["digits"]
    one = with_cells(read_benchmark(spec), scaling.CELL)
    measure(declared(one, spec.parent), out=folder)
    return folder


def test_figure_2_on_digits(figure: Path) -> None:
    """100 images at linf 0.1: 93, 92, 65 and 46 % for the divisors, and 47 % for the margin."""
    board = board_of(figure)
    large, plain = (scaling.scaling(board, name) for name in (LARGE, PLAIN))
    assert [large.usual[n].hits for n in DIVISORS] == [93, 92, 65, 46]
    assert large.margin is not None and large.margin.hits == 47
    assert [large.stable[n].hits for n in DIVISORS] == [93, 92, 65, 46]
    assert large.sign.startswith("masked")
    assert plain.usual[1].hits == 46 and plain.usual[1000].hits == 59
    assert plain.sign.startswith("not masked")
    (one,) = (e for e in read_evaluations(figure) if e.figures.model.name != "zoo:digits-natural")
    blind = [scaling.blind(one.rows, ascent(n)) for n in DIVISORS]
    assert blind == sorted(blind, reverse=True) and blind[0] > 0.9 and blind[-1] == 0


def steps(lefts: tuple[int, ...], names: tuple[str, ...] | None = None) -> Board:
    """A board of the seven attacks of cross-entropy on one model."""
    names = step_sizes.attacks("cross_entropy") if names is None else names
    rows = {n: first(left, 200) for n, left in zip(names, lefts, strict=True)}
    return attacked(step_sizes.CELL, {"plain": rows})


@pytest.mark.parametrize(
    ("lefts", "verdict", "sign", "best"),
    [
        ((90, 89, 97, 90, 89, 90, 88), "no", "not masked", 6),
        ((134, 133, 114, 134, 133, 122, 124), "yes", "masked", 2),
        ((100, 100, 99, 100, 100, 100, 100), "cannot tell", "cannot tell", 2),
    ],
)
def test_the_largest_step_is_best_where_gradients_are_masked(
    lefts: tuple[int, ...], verdict: str, sign: str, best: int
) -> None:
    board = steps(lefts)
    found = step_sizes.inversion(board, model="plain", loss="cross_entropy")
    assert decide(found.low, found.high, 0.01) == verdict
    assert found.value == pytest.approx((min(lefts[:2]) - lefts[2]) / 200)
    whole = step_sizes.compared(board, "plain", "cross_entropy")
    assert whole.sign.startswith(sign)
    assert whole.best == (step_sizes.attacks("cross_entropy")[best],)
    assert [rate.hits for rate in whole.left] == list(lefts)
    (line,) = step_sizes.grid(board).rows
    assert line[2] == f"{lefts[0] / 2:.2f}" and line[-1] == whole.sign


def test_losses_that_were_not_run_are_left_out() -> None:
    board = steps((90, 89, 97, 90, 89, 90, 88))
    with pytest.raises(UnknownNameError, match="was not run"):
        step_sizes.compared(board, "plain", "dlr")
    assert [line[1] for line in step_sizes.grid(board).rows] == ["cross_entropy"]


def listed_in(spec: Path, cell: str) -> list[str]:
    """The attacks of a cell of a specification."""
    attacks = read_benchmark(spec).cell(cell).attacks
    assert attacks is not None
    return list(attacks)


@pytest.mark.parametrize("data", ["digits", "mnist", "cifar10"])
def test_the_specifications_list_the_attacks_as_boards_name_them(data: str) -> None:
    spec = STUDY.specs[data]
    listed = listed_in(spec, step_sizes.CELL)
    wanted = [name for loss in step_sizes.LOSSES for name in step_sizes.attacks(loss)]
    assert listed == wanted and all(str(parse(name)) == name for name in wanted)
    if data != "cifar10":
        listed = listed_in(spec, scaling.CELL)
        both = [ascent(n, form) for form in (False, True) for n in DIVISORS]
        assert listed == [*both, MARGIN]
        assert all(str(parse(name)) == name for name in listed)


def test_tables_without_a_row_are_left_out() -> None:
    """Such as those of a run that has not come to these cells."""
    board = attacked(step_sizes.CELL, {"plain": {"pgd": first(10, 200)}})
    with pytest.raises(UnknownNameError, match="all seven attacks of a loss"):
        step_sizes.grid(board)
    assert "steps" not in STUDY.shown(board)

"""Studies: answers from boards, corrections, claims that were not run, the registry."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.studies.boards import board as board_with
from tests.studies.boards import made, searched, with_sizes
from tests.studies.panels import sweeps

from besiege.bench.board import Board
from besiege.core.errors import UnknownNameError
from besiege.metrics.paired import Difference, paired_interval
from besiege.models.catalogue import zoo_card, zoo_names
from besiege.studies.effects import advantage, least_advantage
from besiege.studies.study import STUDIES, Claim, Study
from besiege.training import recipe

DIGITS = STUDIES.get("digits")


def verdicts(board: Board) -> list[str]:
    return [one.verdict for one in DIGITS.answers(board)]


def test_a_clear_run_answers_every_claim() -> None:
    first, second, order = DIGITS.answers(made(2000, 2.0))
    assert (first.verdict, second.verdict, order.verdict) == ("yes", "yes", "yes")
    cell = made(2000, 2.0).cell("white linf")
    plain = Difference.of(cell.smallest[1] > 0.1, cell.smallest[0] > 0.1)
    assert first.effect is not None and first.effect.value == plain.value
    wider = paired_interval(plain.only_first, plain.only_second, 2000, 1 - 0.05 / 3)
    assert (first.effect.low, first.effect.high) == pytest.approx(wider)
    assert first.effect.count == 2000 and first.needed is None


def test_the_opposite_is_no_and_little_is_cannot_tell() -> None:
    assert verdicts(made(1000, 0.5)) == ["no", "no", "no"]
    few = DIGITS.answers(made(30, 1.02))
    assert [one.verdict for one in few] == ["cannot tell"] * 3
    assert all(one.needed is not None and one.needed > 30 for one in few)


def test_a_planted_change_of_the_order_is_a_no_that_says_where() -> None:
    board = made(1000, 1.0)
    cell = board.cell("white linf")
    narrow = 0.08 * np.random.default_rng(1).lognormal(0, 0.1, 1000)
    changed = with_sizes(cell, np.stack([cell.smallest[0], narrow]))
    answer = DIGITS.answers(board_with(changed, board.cells[1]))[2]
    assert answer.verdict == "no" and "The order changes near 0.0" in answer.caveat


def test_the_level_counts_the_declared_claims_whether_they_were_run_or_not() -> None:
    found = DIGITS.answers(made(200, 1.2))
    levels = [one.effect.level for one in found if one.effect is not None]
    assert levels == pytest.approx([1 - 0.05 / 3] * 3)
    fewer = DIGITS.answers(made(200, 1.2, ("white linf",)))
    assert (fewer[0], fewer[1].verdict) == (found[0], "not run")
    single = replace(DIGITS, claims=DIGITS.claims[2:])
    band, wider = single.answers(made(200, 1.2))[0].effect, found[2].effect
    assert band is not None and wider is not None
    assert band.level == 0.95 and wider.low < band.low and band.high < wider.high


def test_claims_without_their_cell_model_or_images_were_not_run() -> None:
    found = DIGITS.answers(made(100, 2.0, ("white l2",)))
    assert [one.verdict for one in found] == ["not run", "yes", "not run"]
    assert "No cell" in found[0].caveat and found[0].effect is None
    board = made(100, 2.0)
    others = board_with(*(replace(cell, models=("a", "b")) for cell in board.cells))
    assert verdicts(others) == ["not run"] * 3
    nothing = board_with(*(replace(c, known=np.zeros((2, 100), bool)) for c in board.cells))
    assert verdicts(nothing) == ["not run"] * 3


def test_an_unfinished_run_answers_for_the_judged_images_and_says_so() -> None:
    board = made(400, 2.0)
    known = np.arange(400) < [[300], [200]]
    part = board_with(*(replace(cell, known=known) for cell in board.cells))
    for answer in DIGITS.answers(part):
        assert answer.effect is not None and answer.effect.count == 200
        assert "Only 200 of 400 images" in answer.caveat


def test_tables_and_figures_are_functions_of_the_board() -> None:
    board = made(300, 2.0)
    table = DIGITS.table("accuracies", board)
    assert DIGITS.shown(board)["accuracies"].rows == table.rows
    share = (board.cell("white linf").smallest[1] > 0.1).mean()
    assert table.rows[1] == ("pgd-at", table.rows[1][1], f"{100 * share:.1f} %", table.rows[1][3])
    (figure,) = DIGITS.figures(board)
    (panel,) = sweeps(figure)
    assert [line.model for line in panel.lines] == ["natural", "pgd-at"]
    assert [len(line.value) for line in panel.lines] == [31, 31]


def test_answers_are_json() -> None:
    content = json.loads(json.dumps([one.plain() for one in DIGITS.answers(made(50, 2.0))]))
    assert content[0]["verdict"] == "yes" and content[0]["effect"]["count"] == 50


@pytest.mark.parametrize(("name", "study"), list(STUDIES.items()))
def test_a_shipped_study_measures_the_cells_and_models_of_its_spec(name: str, study: Study) -> None:
    for spec in (tomllib.loads(path.read_text()) for path in study.specs.values()):
        assert spec["name"] == study.name == name
        cells = {cell["name"] for cell in spec["cells"]}
        for claim in study.claims:  # others find models and cells by what they are
            given = getattr(claim.measure, "keywords", {})
            if "cell" in given:
                assert given["cell"] in cells
                assert {given["better"], given["worse"]} <= set(spec["models"])
    told = {(claim.id, data) for claim in study.claims for data in claim.data or ("any",)}
    assert len(told) == sum(max(1, len(claim.data)) for claim in study.claims)


def crafted_elsewhere(spec: dict[str, Any]) -> set[str]:
    """Texts of the models whose images are judged on others: of replays and of substitutes."""
    names = {one["source"] for one in spec.get("replays", [])}
    for cell in spec["cells"]:
        given = cell.get("substitute", {})
        names |= set(given.values()) if isinstance(given, dict) else {given}
    return {str(spec["models"].get(name, name)) for name in names}


def test_static_models_of_ensemble_training_make_no_image_that_is_judged_on_it() -> None:
    """Else transfer would be measured with images as it was trained on."""
    looked = 0
    for study in (study for _, study in STUDIES.items()):
        for spec in (tomllib.loads(path.read_text()) for path in study.specs.values()):
            texts = json.dumps(spec["models"])
            trained = {zoo_card(n)["recipe"] for n in zoo_names() if f'"zoo:{n}"' in texts}
            trained |= {m["train"] for m in spec["models"].values() if isinstance(m, dict)}
            for text in trained:
                static = set(recipe(text).sources)
                looked += bool(static and crafted_elsewhere(spec))
                assert not static & crafted_elsewhere(spec), (study.name, text)
    assert looked >= 2, "eat on MNIST and CIFAR-10 meets images of other models"


def test_a_study_of_another_package_is_one_call() -> None:
    claim = Claim("X1", "It is.", partial(advantage, cell="white linf", better="b", worse="a"))
    mine = Study("mine", "Mine", "", Path("mine.toml"), (claim,))
    assert mine.shown(made(5, 1.0)) == {} and mine.figures(made(5, 1.0)) == ()
    assert [one.verdict for one in mine.answers(made(5, 1.0))] == ["not run"]
    with pytest.raises(UnknownNameError, match="digits"):
        STUDIES.get("digit")


def test_the_least_advantage_is_at_its_budget() -> None:
    board = made(500, 1.5)
    smallest = board.cell("white linf").smallest
    budgets = (0.05, 0.1, 0.2)
    found = least_advantage(board, "white linf", "pgd-at", "natural", budgets)
    each = [(smallest[1] > x).mean() - (smallest[0] > x).mean() for x in budgets]
    assert found.value == pytest.approx(min(each))
    assert found.low <= found.value <= found.high


def test_that_many_images_tell_nine_times_of_ten_that_an_order_does_not_change() -> None:
    single = replace(DIGITS, claims=DIGITS.claims[2:])
    (answer,) = single.answers(made(400, 2.0))
    assert answer.verdict == "cannot tell" and answer.needed is not None
    more = np.split(made(30 * answer.needed, 2.0).cell("white linf").smallest, 30, axis=1)
    told = [single.answers(board_with(searched("white linf", sizes))) for sizes in more]
    assert 0.8 <= np.mean([one.verdict == "yes" for (one,) in told]) <= 1


PAGES = sorted((Path(__file__).parents[2] / "docs" / "studies").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_of_the_docs_is_about_the_study_as_it_is(page: Path) -> None:
    """Written by ``besiege study NAME --run RUN --page FILE``; run that again after a change."""
    study = STUDIES.get(page.stem.partition("-")[0])
    text = page.read_text()
    assert text.startswith(f"# {study.title}") and f"{study.source}." in text
    data = text.partition("\n")[0].rpartition(" on ")[2]
    claims = [one for one in study.claims if not one.data or data in one.data]
    for line in [
        *(f"| **{one.id}** {one.text} |" for one in claims),
        *(f"- {one}" for one in study.differs),
        *(f"- `--size {name}`: {size.about}." for name, size in study.sizes.items()),
    ]:
        assert line in text
    assert "Run of 20" in text and "commit " in text and f"besiege study {study.name}" in text


def test_there_is_a_page_of_the_docs() -> None:
    assert PAGES

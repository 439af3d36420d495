"""The study on boards with known content: readings, claims, tables, figures and pages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.studies.su.made import (
    FORMS,
    MODELS,
    answered,
    board,
    crossed_cell,
    even,
    measured_cell,
    spread,
)

from besiege.bench.board import Board
from besiege.bench.display import HeatMap, Scatter
from besiege.core.errors import InputError, UnknownNameError
from besiege.metrics.paired import LEVEL
from besiege.report.study import study_page
from besiege.studies.study import STUDIES
from besiege.studies.su.figures import figures
from besiege.studies.su.laws import laws_of
from besiege.studies.su.reading import (
    CW,
    EAD,
    FGSM,
    IFGSM,
    LINF,
    RANDOM,
    UNTARGETED,
    crossed_of,
    depth_pairs,
    setting,
    settings_of,
    sizes_of,
    sizes_under,
)
from besiege.studies.su.tables import (
    batches,
    cells,
    distances,
    estimated,
    law,
    matrices_of,
    means,
    success,
)

IMAGES = 200
ERRORS = [0.05, 0.1, 0.2, 0.3, 0.45]
MIDDLES = [0.06, 0.09, 0.13, 0.15, 0.2]
TAGS = {
    "depth": {"v1": "11", "v2": "16"},
    "stripes": {"v1": "yes", "v2": "yes"},
    "asymmetry": {"v1": "from", "m1": "to"},
}
MEAN = {FGSM: 0.8, IFGSM: 0.7, EAD: 0.5, CW: 0.4}
"""Mean transfer of the attacks at their usual parameters."""


def rates(name: str, targeted: float) -> NDArray[np.float64]:
    """Rates of a cell as the publication has them."""
    _, goal, eps, attacks = FORMS[name]
    of = []
    for place, text in enumerate(attacks):
        kind = {"fgsm": FGSM, "bim@": IFGSM, "cw(s": CW, "ead(": EAD}[text[:4]]
        mean = MEAN[kind] - (0.6 - 2 * eps if eps else 0) * 0.5
        mean += 0.06 * place if eps is None else -0.02 * max(place - 1, 0)
        mean = mean if goal == "untargeted" else targeted
        one = even(mean)
        one[:2] += 0.15  # the stripes
        one[:2, :2] += 0.05
        one[2:4, 2:4] += 0.15  # families
        one[0, 4] += 0.1
        one[np.arange(5), np.arange(5)] = (
            1 if kind != CW else 1 - place * (0.4 - 0.08 * np.arange(5))
        )
        of.append(one)
    return np.stack(of, 2)


def made(targeted: float = 0.1, images: int = IMAGES) -> Board:
    """A board on which S4 to S9 hold; S1 does too, but five models in order may be chance."""
    right = answered(ERRORS, images)
    found = spread(MIDDLES, images)
    crossed = [
        crossed_cell(name, rates(name, targeted), right, found, seed)
        for seed, name in enumerate(FORMS)
    ]
    estimate = 0.5 * found
    estimate[0, 3] = 99.0  # a score that C&W refutes
    return board(
        *crossed,
        measured_cell("distance linf, random", "linf", found, right),
        measured_cell("CLEVER, random", "l2", found, right, estimate),
        tags=TAGS,
    )


@pytest.fixture(scope="module")
def whole() -> Board:
    return made()


def test_settings_are_read_from_the_cells(whole: Board) -> None:
    forms = [one.title for one in settings_of(whole)]
    assert len(forms) == sum(len(one[3]) for one in FORMS.values()) == len(set(forms))
    assert "FGSM, eps 0.3, untargeted" in forms
    assert "I-FGSM, eps 0.3, 30 steps, untargeted" in forms
    assert "C&W, kappa 40, random" in forms and "EAD-L1, kappa 0, untargeted" in forms
    assert setting(whole, IFGSM, UNTARGETED).steps == 10
    with pytest.raises(UnknownNameError, match=r"I-FGSM \(eps 0.7, steps 10, untargeted\) was not"):
        setting(whole, IFGSM, UNTARGETED, eps=0.7)


def test_a_matrix_has_the_answers_of_its_cell(whole: Board) -> None:
    one = setting(whole, FGSM, UNTARGETED)
    found, cell = crossed_of(whole, one), whole.cell(one.cell)
    assert cell.across is not None
    assert np.array_equal(found.hit, cell.across.fooled[:, :, 0])
    assert np.array_equal(found.made, cell.correct) and found.models == MODELS
    targeted = crossed_of(whole, setting(whole, IFGSM, RANDOM))
    first = crossed_of(whole, setting(whole, IFGSM, RANDOM), top=6)
    seventh = crossed_of(whole, setting(whole, IFGSM, RANDOM), top=7)
    assert np.array_equal(targeted.hit, first.hit) and seventh.hit.all()


def test_a_model_with_other_classes_is_refused(whole: Board) -> None:
    one = setting(whole, FGSM, UNTARGETED)
    cell = whole.cell(one.cell)
    assert cell.across is not None
    seen = cell.across.seen.copy()
    seen[:, 2] = False
    wrong = replace(cell, across=replace(cell.across, seen=seen))
    with pytest.raises(InputError, match=r"d1 classifies 0\.0 % .* guessing does 10\.0 %"):
        crossed_of(replace(whole, cells=(wrong,)), one)


def test_distances_are_those_of_their_cells(whole: Board) -> None:
    found = sizes_of(whole, LINF, RANDOM)
    assert np.array_equal(found.size, whole.cell("distance linf, random").distance[:, 0])
    (common,) = {tuple(row) for row in found.control.among.tolist()}
    assert sum(common) == whole.cell("distance linf, random").correct.all(0).sum()
    with pytest.raises(UnknownNameError, match="least likely"):
        sizes_of(whole, LINF, "least likely")
    # l2 per value, of C&W without confidence.
    per_value = sizes_of(whole, "l2 of C&W per value", RANDOM)
    cell = whole.cell("C&W, random")
    assert np.array_equal(per_value.size, cell.distance[:, 0] / 64)
    assert depth_pairs(whole, MODELS) == (("v2", "v1"),)


def test_s9_compares_l2_of_images_of_two_sizes_by_value(whole: Board) -> None:
    """The largest distortion of these models is the smallest for each pixel value."""
    values = (64, 64, 64, 64, 640)
    larger = [replace(c, values=values) if c.name == "C&W, random" else c for c in whole.cells]
    mine = replace(whole, cells=tuple(larger))
    one = setting(mine, CW, RANDOM)
    found = sizes_under(mine, one)
    sums = mine.cell(one.cell).distance[:, one.place]
    assert found.size == pytest.approx(sums / np.array(values)[:, None])
    (answer,) = (a for a in STUDIES.get("su").answers(mine) if a.id == "S9")
    (before,) = (a for a in STUDIES.get("su").answers(whole) if a.id == "S9")
    assert answer.effect is not None and before.effect is not None
    assert answer.effect.value != before.effect.value


def test_every_claim_is_answered_as_the_board_was_made(whole: Board) -> None:
    answers = {one.id: one for one in STUDIES.get("su").answers(whole)}
    yes = {"S4", "S5", "S6", "S6 eps", "S6 steps", "S6 C&W", "S6 EAD-L1", "S7", "S8", "S9"}
    assert {name for name, one in answers.items() if one.verdict == "yes"} >= yes - {"S6 steps"}
    assert answers["S3"].verdict == "yes"  # the deeper VGG needs more here
    assert answers["S1"].verdict == "cannot tell" and answers["S1"].effect is not None
    assert answers["S1"].effect.value > 0.3 and answers["S1"].needed is None
    assert "S1 published" not in answers  # no claim about these data
    assert all("p " in one.caveat for one in answers.values() if one.verdict == "yes")
    steps = answers["S6 steps"].effect
    assert steps is not None and steps.value == pytest.approx(0.02, abs=0.03)


def test_claims_say_no_and_what_was_not_run(whole: Board) -> None:
    study = STUDIES.get("su")
    against = {one.id: one.verdict for one in study.answers(made(targeted=0.95))}
    assert against["S7"] == "no"
    few = replace(whole, cells=tuple(c for c in whole.cells if "C&W" not in c.name))
    left = {one.id: one for one in study.answers(few)}
    assert left["S4"].verdict == left["S9"].verdict == "not run"
    assert "C&W" in left["S4"].caveat
    alone = [replace(m, tags=m.tags if m.name == "v1" else {}) for m in whole.models]
    pair = {one.id: one for one in study.answers(replace(whole, models=tuple(alone)))}["S8"]
    assert "has the tag asymmetry = 'to'; 'v1' is 'from'" in pair.caveat
    untagged = replace(whole, models=tuple(replace(m, tags={}) for m in whole.models))
    found = {one.id: one.verdict for one in study.answers(untagged)}
    assert found["S2"] == found["S3"] == found["S4"] == found["S5"] == found["S8"] == "not run"


def test_headings_name_one_figure_or_several(whole: Board) -> None:
    headings = [one.heading for one in STUDIES.get("su").figures(whole)]
    assert "Figure 3: Transfer between models: FGSM" in headings
    assert "Figures 4, 9 and 10: Transfer between models: I-FGSM" in headings


def test_tables_have_the_numbers(whole: Board) -> None:
    one, matrix = matrices_of(whole)[0]
    assert one.title == "FGSM, eps 0.3, untargeted"
    long = cells(whole).numbers
    mine = long.where((long["form"] == one.form) & (long["goal"] == one.goal))
    assert mine["rate"].reshape(5, 5) == pytest.approx(matrix.rate)
    assert mine["rate_of_right"].reshape(5, 5) == pytest.approx(matrix.of_right)
    rows = means(whole).numbers
    first = rows.where((rows["form"] == one.form) & (rows["side"] == "from it"))
    assert first["mean"][:5] == pytest.approx(matrix.rows.value)
    both = distances(whole)
    assert both.rows[0][0] == "v1" and " of " in both.rows[0][1] and "/" in both.rows[0][1]
    found = success(whole).numbers
    mine = found.where((found["model"] == "v1") & (found["goal"] == UNTARGETED))
    assert (mine["success"][mine["form"] == one.form] == 1).all() and (
        mine["parameters"] == 1e3
    ).all()
    scores = estimated(whole).numbers
    fewer = batches(whole)
    assert len(fewer.rows) == 50 and fewer.columns[3] == "10 batches"
    assert fewer.numbers["after_10"] == pytest.approx(1.1 * fewer.numbers["all"])
    assert scores["refuted"].tolist() == [1, 0, 0, 0, 0] and scores["samples"][0] == "3"


def test_the_median_beside_estimates_is_infinite_where_most_images_were_not_broken() -> None:
    right = np.ones((2, 10), bool)
    found = np.full((2, 10), 0.5)
    found[0, 4:] = np.inf  # 4 of 10 broken
    found[1, 5:] = np.inf  # half of them
    cell = measured_cell("CLEVER, random", "l2", found, right, np.full((2, 10), 0.1))
    table = estimated(board(cell))
    assert table.numbers["distance"].tolist() == [np.inf, 0.5]
    assert [row[4] for row in table.rows] == ["inf", "0.5"]


def test_laws_are_of_means_and_medians_of_all_and_of_common_images(whole: Board) -> None:
    found = [one for one in laws_of(whole) if (one.sizes.name, one.sizes.goal) == (LINF, RANDOM)]
    assert [(one.control, one.median) for one in found] == [
        (False, False), (False, True), (True, False), (True, True)
    ]  # fmt: skip
    assert found[0].printed == (2.9e-2, 6.2e-2) and found[2].printed == (4.3e-2, 8.5e-2)
    mean, median = found[0].law, found[1].law
    cell = whole.cell("distance linf, random")
    assert mean.distortion[2] == pytest.approx(cell.distance[2, 0][cell.correct[2]].mean())
    assert median.distortion[2] == pytest.approx(
        np.sort(cell.distance[2, 0][cell.correct[2]])[(cell.correct[2].sum() - 1) // 2]
    )
    table = law(whole)
    assert len(table.rows) >= 12 and any("0.029, 0.062" in row for row in table.rows)


def test_figures_have_all_models_and_lines_only_between_their_accuracies(whole: Board) -> None:
    found = {one.name: one for one in figures(whole)}
    assert list(found)[:2] == ["1", "2"]
    assert {"3", "4, 9 and 10", "5", "8"} <= set(found) and "families" in found[""].title
    for panel in found["1"].panels + found["2"].panels:
        assert isinstance(panel, Scatter) and {spot.model for spot in panel.spots} == set(MODELS)
    lowest, highest = 100 * (1 - laws_of(whole)[0].law.error[[4, 0]])
    for panel in found["2"].panels:
        assert isinstance(panel, Scatter) and panel.lines
        for line in panel.lines:
            xs = [x for x, _ in line.corners]
            assert min(xs) >= lowest - 1e-9 and max(xs) <= highest + 1e-9
    heat = found["4, 9 and 10"].panels[0]
    assert isinstance(heat, HeatMap) and heat.value.shape == (5, 5) and heat.means is not None


def test_readings_say_what_limits_the_run(whole: Board) -> None:
    said = " ".join(STUDIES.get("su").readings(whole))
    assert "5 models are few: a rank correlation of 5 models has a p-value of 0.017" in said
    assert "1 of " in said and "CLEVER scores exceed" in said
    assert "Targeted success of FGSM" in said
    assert "imagenet-sample" not in said


def test_the_page_has_answers_and_tables(whole: Board) -> None:
    text = study_page(STUDIES.get("su"), whole)
    for words in ("**S1**", "## The law", "## Distortions", "## Success", "## Transfer by family"):
        assert words in text
    assert f"{100 * STUDIES.get('su').level:.4g} %" in text and LEVEL == 0.95

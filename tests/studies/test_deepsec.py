"""DEEPSEC: its answers on boards made for them, its tables, its critique and specifications."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.report.sample import rate
from tests.studies.attack_boards import first
from tests.studies.deepsec_boards import (
    SOURCE,
    answers_of,
    board,
    detections,
    layered,
    looks,
    shown,
    text,
)

from besiege.bench.benchmark_files import read_benchmark
from besiege.bench.board import Board
from besiege.core.errors import UnknownNameError
from besiege.metrics.paired import paired_interval
from besiege.studies.answers import Answer
from besiege.studies.choosing import resized, size_of
from besiege.studies.deepsec import answers as of
from besiege.studies.deepsec.attacks import SAME_BUT_GOAL, form, forms
from besiege.studies.deepsec.critique import POINTS, critique
from besiege.studies.deepsec.published import DETECTED, REPLAYED, TRANSFERRED, UTILITY_OF_DEFENSES
from besiege.studies.deepsec.reading import BLUR, COMPRESSED, data_of, look, withstood
from besiege.studies.deepsec.tables import (
    STANDS_FOR,
    TABLES,
    attack_utility,
    detection,
    replays,
    transferability,
)
from besiege.studies.study import STUDIES

STUDY = STUDIES.get("deepsec")
LINF, LARGER = "linf:0.1", "linf:0.2"
LEAST, DRAWN = "linf:0.1 targeted:least-likely", "linf:0.1 targeted:random"
ALONE = {SOURCE: "undefended"}


def answer(name: str, made: Board) -> Answer:
    return next(one for one in STUDY.answers(made) if one.id == name)


# R1


@pytest.mark.parametrize(
    ("count", "left", "verdict"), [(1000, 0, "yes"), (400, 40, "no"), (30, 0, "cannot tell")]
)
def test_r1_iterative_attacks_succeed(count: int, left: int, verdict: str) -> None:
    by = {LINF: ("BIM", "PGD", "U-MI-FGSM"), LEAST: ("ILLC",), DRAWN: ("T-MI-FGSM",)}
    threats = {
        threat: {SOURCE: {text(row): left if row == "ILLC" else 0 for row in rows}}
        for threat, rows in by.items()
    }
    found = answer("R1", board(threats, ALONE, count))
    assert found.verdict == verdict and found.effect is not None
    assert found.effect.value == 1 - left / count
    del threats[DRAWN]
    assert answer("R1", board(threats, ALONE, count)).verdict == "not run"


# R2


def metrics(psd: tuple[float, ...], ass: tuple[float, ...], others: float = 0.2) -> Board:
    """Attacks with these metrics; the norms vary by `others` of their mean."""
    rows = [*forms("cifar10").values()]
    values_of = (np.resize(given, len(rows)) for given in (psd, ass))
    sign = np.resize([1, -1], len(rows)) * others
    threats: dict[str, Any] = {}
    about: dict[tuple[str, str], dict[str, Any]] = {}
    for row, p, a, s in zip(rows, *values_of, sign, strict=True):
        threats.setdefault(row.threat, {SOURCE: {}})[SOURCE][text(row.name)] = 10
        figures = about.setdefault((row.threat, SOURCE), {"attack_utility": ()})
        values = {"psd": p, "ass": a, "l0": 0.5 * (1 + s), "l2": 1 + s, "linf": 0.1 * (1 + s)}
        figures["attack_utility"] += (looks(row.name, **values),)
    return board(threats, ALONE, about=about)


@pytest.mark.parametrize(
    ("psd", "ass", "verdict"),
    [
        ((1, 99, 1, 99, 1, 99), (0.9, 0.9, 0.9, 0.9, 0.9, 0.91), "yes"),
        ((50, 50, 50, 50, 50, 51), (0.1, 0.9, 0.1, 0.9, 0.1, 0.9), "no"),
        ((37, 63, 50), (0.7, 0.95, 0.9, 0.8, 0.9, 0.85), "cannot tell"),
    ],
)
def test_r2_how_much_metrics_vary(psd: Any, ass: Any, verdict: str) -> None:
    found = answer("R2", metrics(psd, ass))
    assert found.verdict == verdict and found.unit == "attacks"
    every = np.resize(psd, 19)
    spread = np.std(every) / np.mean(every)
    assert f"PSD {spread:.2f}" in found.caveat


def test_r2_needs_images() -> None:
    made = board({LINF: {SOURCE: {text("FGSM"): 10}}}, ALONE)
    assert answer("R2", made).verdict == "not run"


# R3


def blurred(
    untargeted: float, targeted: float, count: int, compressed: float | None = None
) -> Board:
    """How many successes of each goal survive both layers, untargeted ones of the second apart."""
    threats: dict[str, Any] = {}
    about: dict[tuple[str, str], dict[str, Any]] = {}
    for (one, other), layer in product(SAME_BUT_GOAL, (BLUR, COMPRESSED)):
        first_ = untargeted if compressed is None or layer == BLUR else compressed
        for row, share in ((one, first_), (other, targeted)):
            threat = form("cifar10", row).threat
            mine = threats.setdefault(threat, {SOURCE: {}})[SOURCE]
            mine[text(row)], mine[layered(row, layer)] = 0, 0
            figures = about.setdefault((threat, SOURCE), {"replays": ()})
            figures["replays"] += (shown(row, round(share * count), count, layer),)
    return board(threats, ALONE, about=about)


@pytest.mark.parametrize(
    ("untargeted", "targeted", "count", "verdict"),
    [
        (0.95, 0.3, 400, "yes"),
        (0.5, 0.9, 400, "no"),
        (0.6, 0.55, 400, "cannot tell"),
        (0.95, 0.3, 49, "cannot tell"),
    ],
)
def test_r3_untargeted_successes_survive(
    untargeted: float, targeted: float, count: int, verdict: str
) -> None:
    found = answer("R3", blurred(untargeted, targeted, count))
    assert found.verdict == verdict
    assert ("Fewer than 50 successes" in found.caveat) == (count < 50)
    assert found.effect is not None and found.effect.count == count
    assert found.unit == "successes" and (count >= 50 or found.needed == 50)


def test_r3_is_about_both_layers() -> None:
    found = answer("R3", blurred(0.95, 0.5, 400, compressed=0.3))
    assert found.verdict == "no" and "after jpeg" in found.caveat


# R4


def cleaned(*defenses: tuple[int, float]) -> Board:
    """Defenses that lose so many of 400 images, and are so certain of the others."""
    names = [f"d{n}" for n in range(len(defenses))]
    clean = {SOURCE: answers_of(first(400, 400), 0.99)}
    for name, (lost, certainty) in zip(names, defenses, strict=True):
        clean[name] = answers_of(first(400 - lost, 400), certainty)
    roles = ALONE | dict.fromkeys(names, "defense")
    return board({LINF: {SOURCE: {text("FGSM"): 0}}}, roles, clean=clean)


LOSSES = tuple(range(4, 64, 4))


@pytest.mark.parametrize(
    ("certainty", "count", "verdict"),
    [(lambda n: 0.98 - n / 200, 15, "yes"), (lambda n: 0.3 + n / 100, 15, "no"),
     (lambda n: 0.9 - (n % 5) / 10, 15, "cannot tell"), (lambda n: 0.98 - n / 200, 7,
                                                         "cannot tell")],
)  # fmt: skip
def test_r4_utility_follows_accuracy(certainty: Any, count: int, verdict: str) -> None:
    found = answer("R4", cleaned(*((n, certainty(n)) for n in LOSSES[:count])))
    assert found.verdict == verdict and found.unit == "defenses"
    assert ("Fewer than 8" in found.caveat) == (count < 8)


# R5 and R8


ROLES = ALONE | {"a": "defense", "b": "defense", "both": "ensemble"}


def defended(
    adaptive: tuple[int, int, int], transfer: tuple[int, int, int], count: int = 400
) -> Board:
    """What a, b and their ensemble leave under PGD, on themselves and replayed."""
    rows: dict[str, Any] = {SOURCE: {text("PGD"): 0}}
    for name, own, crossed in zip(("a", "b", "both"), adaptive, transfer, strict=True):
        rows[name] = {text("PGD"): own, text("PGD", SOURCE): crossed}
    texts = {"both": "ensemble(zoo:a, zoo:b, fuse=probabilities)"}
    return board({LINF: rows}, ROLES, count, texts=texts)


GOOD, BAD, SOME = (395, 100, 300), (200, 100, 150), (376, 100, 300)


@pytest.mark.parametrize(("left", "verdict"), [(BAD, "yes"), (GOOD, "no"), (SOME, "cannot tell")])
def test_r5_no_defense_is_universal(left: tuple[int, int, int], verdict: str) -> None:
    if verdict == "cannot tell":
        left = (46, 10, 30)
    count = 50 if verdict == "cannot tell" else 400
    other = (count, count, count)
    for name, made in (("R5", defended(left, other, count)), ("R5t", defended(other, left, count))):
        found = answer(name, made)
        assert found.verdict == verdict and found.effect is not None
        assert found.effect.value == pytest.approx(1 - max(left[:2]) / count)
        assert f"a {100 - 100 * left[0] / count:.1f}" in found.caveat
    if count == 400:  # what transfers says nothing about attacks on the defense itself
        assert answer("R5", defended(other, left, count)).verdict == "no"


@pytest.mark.parametrize(
    ("left", "count", "verdict"),
    [
        ((300, 100, 200), 400, "yes"),
        ((200, 100, 300), 400, "no"),
        ((30, 10, 30), 40, "cannot tell"),
    ],
)
def test_r8_ensembles_and_their_best_members(
    left: tuple[int, int, int], count: int, verdict: str
) -> None:
    other = (count // 2,) * 3
    for name, made in (("R8", defended(left, other, count)), ("R8t", defended(other, left, count))):
        found = answer(name, made)
        assert found.verdict == verdict and found.effect is not None
        assert found.effect.value == pytest.approx((max(left[:2]) - left[2]) / count)
        assert "both and a" in found.caveat and "over b" in found.caveat


def test_r8_does_not_know_which_member_is_best() -> None:
    """Of two members that leave as many images, the one that shares fewer may be far ahead."""
    rows: dict[str, Any] = {SOURCE: {text("PGD"): 0}}
    for name, left in (("a", first(60, 100)), ("b", ~first(40, 100)), ("both", first(60, 100))):
        rows[name] = {text("PGD"): left}
    texts = {"both": "ensemble(zoo:a, zoo:b, fuse=probabilities)"}
    found = answer("R8", board({LINF: rows}, ROLES, 100, texts=texts)).effect
    told = 1 - (1 - STUDY.level) / 2
    ends = [paired_interval(only, only, 100, told) for only in (0, 40)]
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0, *np.max(ends, 0)))


def test_members_are_found_by_their_whole_texts() -> None:
    made = defended(GOOD, GOOD)
    assert of.members_of(made, "both") == ["a", "b"]
    texts = {"both": "ensemble(zoo:a+bits(depth=3), zoo:b)"}
    some = board({LINF: {SOURCE: {text("PGD"): 0}}}, ROLES, texts=texts)
    assert of.members_of(some, "both") == ["b"]


def test_replayed_images_never_count_as_attacks_on_the_model_itself() -> None:
    made = defended((400, 400, 400), (0, 0, 0))
    assert withstood(made, "a", transfer=False).held.all()
    assert not withstood(made, "a", transfer=True).held.any()
    with pytest.raises(UnknownNameError, match="not shown"):
        withstood(made, SOURCE, transfer=True)


def test_what_the_suite_adaptive_breaks_counts() -> None:
    made = defended((300, 300, 300), (400, 400, 400))
    cells = tuple(
        replace(cell, robust=cell.robust & (np.arange(400) < 100)) if cell.suite else cell
        for cell in made.cells
    )
    some = replace(made, cells=cells)
    assert withstood(some, "a", transfer=False).held.sum() == 100
    assert withstood(some, "a", transfer=True).held.all()


def test_r5_is_not_confirmed_where_a_defense_was_left_out() -> None:
    """It may be the universal one; that another one is universal denies the remark as before."""
    for left, verdict in ((BAD, "cannot tell"), (GOOD, "no")):
        made = defended(left, left)
        models = (*made.models, replace(made.models[1], name="c", text="zoo:c"))
        for name in ("R5", "R5t"):
            found = answer(name, replace(made, models=models))
            assert found.verdict == verdict and "Left out: 'c' was not" in found.caveat


def test_images_that_were_not_replayed_withstand() -> None:
    """The attack failed on the source: they belong to the denominator."""
    made, cells = defended((100, 80, 90), (200, 320, 340)), []
    for cell in made.cells:
        covered = cell.covered.copy()
        covered[cell.models.index("a"), cell.attacks.index(text("PGD", SOURCE)), 300:] = False
        cells.append(replace(cell, covered=covered, success=cell.success & covered))
    found = withstood(replace(made, cells=tuple(cells)), "a", transfer=True)
    assert (len(found.held), found.held.sum()) == (400, 300)


def test_without_the_suite_adaptive_a_model_is_not_attacked_adaptively() -> None:
    """Attacks that hidden gradients stop leave everything, and would make any defense universal."""
    rows = {SOURCE: {text("PGD"): 0}, "a": {text("PGD"): 400, text("PGD", SOURCE): 390}}
    made = board({LINF: rows}, ALONE | {"a": "defense"}, adaptive=False)
    found = answer("R5", made)
    assert (
        found.verdict == "not run" and "'a' was not attacked by the suite adaptive" in found.caveat
    )
    assert answer("R5t", made).verdict == "no"
    assert replays(made).rows[-1] == ("adaptive, linf", "-")
    assert critique(made).rows[0][3].startswith("not run")


def test_a_defense_that_classifies_no_image_correctly_has_no_worst_case() -> None:
    made = defended(BAD, GOOD)
    places = {cell.name: cell.models.index("a") for cell in made.cells}
    cells = []
    for cell in made.cells:
        correct = cell.correct.copy()
        correct[places[cell.name]] = False
        cells.append(replace(cell, correct=correct))
    for name in ("R5", "R5t"):
        found = answer(name, replace(made, cells=tuple(cells)))
        assert "'a' classifies none of these images correctly" in found.caveat
        assert found.effect is not None and "b 7" in found.caveat


def test_the_worst_case_is_taken_image_by_image() -> None:
    mine = first(300), ~first(100, 300)
    rows: dict[str, Any] = {SOURCE: {text("PGD"): 0}}
    left = {text("PGD"): first(300, 400), text("BIM"): ~first(100, 400)}
    del mine
    made = board({LINF: rows | {"a": left}}, ROLES)
    assert withstood(made, "a", transfer=False).held.sum() == 200


# R6


def guarded(smaller: tuple[int, int], larger: tuple[int, int], source: str) -> Board:
    """Errors that a detector rejects under both budgets."""
    roles = ALONE | {"d": "detector"}
    about: dict[tuple[str, str], dict[str, Any]] = {}
    threats: dict[str, Any] = {}
    for threat, row, caught in ((LINF, "FGSM", smaller), (LARGER, "FGSM, larger", larger)):
        name = text(row, source)
        threats[threat] = {SOURCE: {text(row): 0}, "d": {name: 10}}
        about[threat, "d"] = {"rejection": detections({name: caught})}
    return board(threats, roles, about=about)


@pytest.mark.parametrize(
    ("smaller", "larger", "verdict"),
    [
        ((300, 400), (100, 400), "yes"),
        ((100, 400), (300, 400), "no"),
        ((20, 40), (19, 40), "cannot tell"),
    ],
)
@pytest.mark.parametrize("source", ["", SOURCE])
def test_r6_larger_budgets_are_no_easier_to_detect(
    smaller: tuple[int, int], larger: tuple[int, int], verdict: str, source: str
) -> None:
    mine, other = ("R6t", "R6") if source else ("R6", "R6t")
    made = guarded(smaller, larger, source)
    found = answer(mine, made)
    assert found.verdict == verdict and "d 0.40 and 0.40" in found.caveat
    assert answer(other, made).verdict == "not run"
    grid = detection(made)
    assert "flipped sign" in grid.note and "Clean images rejected: d 5.0 %" in grid.note


# R7


TRANSFER_ROLES = ALONE | {"twin": "second start", "vgg": "another family"}


def crossed(left: Mapping[str, int], count: int = 400) -> Board:
    """What both other models leave of images made on the undefended one."""
    threats: dict[str, Any] = {}
    for row, kept in left.items():
        mine = threats.setdefault(form("cifar10", row).threat, {SOURCE: {}, "twin": {}, "vgg": {}})
        mine[SOURCE][text(row)] = 0
        mine["twin"][text(row, SOURCE)] = kept
        mine["vgg"][text(row, SOURCE)] = kept
    return board(threats, TRANSFER_ROLES, count)


BASE = {"FGSM": 40, "R+FGSM": 60, "BIM": 30, "U-MI-FGSM": 30, "PGD": 30}


FEW = dict.fromkeys(BASE, 4)


@pytest.mark.parametrize(
    ("base", "targeted", "count", "verdict"),
    [(BASE, 340, 400, "yes"), (BASE, 20, 400, "no"), (FEW, 6, 40, "cannot tell")],
)
def test_r7_untargeted_attacks_transfer_more(
    base: dict[str, int], targeted: int, count: int, verdict: str
) -> None:
    left = base | dict.fromkeys((other for _, other in SAME_BUT_GOAL), targeted)
    found = answer("R7", crossed(left, count))
    assert found.verdict == verdict and found.effect is not None
    assert found.effect.value == pytest.approx((targeted - base["R+FGSM"]) / count)


@pytest.mark.parametrize(
    ("base", "flat", "count", "verdict"),
    [(BASE, 380, 400, "yes"), (BASE, 20, 400, "no"), (FEW, 6, 40, "cannot tell")],
)
def test_r7_linf_transfers_more_than_l2(
    base: dict[str, int], flat: int, count: int, verdict: str
) -> None:
    assert answer("R7n", crossed(base | {"DF": flat}, count)).verdict == verdict


# Tables and pages.


def test_replayed_and_adaptive_figures_stand_in_one_entry() -> None:
    made = defended((100, 80, 90), (360, 320, 340))
    grid = replays(made)
    (row,) = (r for r in grid.rows if r[0] == "PGD")
    assert row[1:] == ("90.0 / 25.0", "80.0 / 20.0")
    assert grid.rows[-1] == ("adaptive, linf", "25.0", "20.0")
    assert "no robustness" in grid.note
    with pytest.raises(UnknownNameError):
        transferability(made)


def test_an_attack_without_a_success_transfers_nothing() -> None:
    """No image of it can be replayed, and none becomes an error of another model."""
    rows: dict[str, Any] = {SOURCE: {text("PGD"): 0, text("FGSM"): 400}}
    rows["a"] = {text("PGD"): 0, text("FGSM"): 100, text("PGD", SOURCE): 100}
    rows["b"] = {text("PGD"): 0, text("FGSM"): 100}
    made = board({LINF: rows}, ALONE | {"a": "defense", "b": "defense"})
    found = {row[0]: row[1:] for row in replays(made).rows}
    assert found["FGSM"] == ("100.0 / 25.0", "not run"), "b was shown nothing"
    cell = replace(made.cells[0], covered=made.cells[0].covered & (np.arange(400) < 300))
    found = {row[0]: row[1:] for row in replays(replace(made, cells=(cell,))).rows}
    assert found["FGSM"][0] == "not run", "it may still succeed on the others"


def test_rows_name_the_steps_that_a_size_chose() -> None:
    few = f"{text('CW2')}(steps=30)"
    made = board({"l2 targeted:random": {SOURCE: {few: 400, text("EAD-EN"): 0}}}, ALONE)
    rows = [row[0] for row in attack_utility(_looking(made, few, text("EAD-EN"))).rows]
    assert rows == ["CW2, 30 steps", "EAD-EN"]


def _looking(made: Any, *texts: str) -> Any:
    (cell,) = made.cells
    found = [replace(looks("FGSM"), text=one) for one in texts]
    evaluations = (replace(made.evaluation(cell, 0), attack_utility=tuple(found)),)
    return replace(made, figures=replace(made.figures, evaluations=evaluations))


def test_an_area_that_is_not_there_is_no_number() -> None:
    made = guarded((200, 400), (100, 400), "")
    caught = {text("FGSM"): (0, 400)}
    none = replace(detections(caught).detection[0], rejected=None, auc=None)
    evaluations = tuple(
        replace(one, rejection=replace(one.rejection, detection=(none,)))
        if one.rejection is not None
        else one
        for one in made.figures.evaluations
    )
    grid = detection(replace(made, figures=replace(made.figures, evaluations=evaluations)))
    assert ("FGSM", "not run", "-, -") in grid.rows


def test_rates_of_a_table_have_one_denominator() -> None:
    """Images on which an attack fails on the source were not replayed, and count as withstood."""
    rows: dict[str, Any] = {SOURCE: {text("PGD"): 0, text("FGSM"): 300}}
    rows["a"] = {text(n): 0 for n in ("PGD", "FGSM")}
    rows["a"] |= {text("PGD", SOURCE): 100, text("FGSM", SOURCE): 350}
    made = board({LINF: rows}, ALONE | {"a": "defense"})
    found = replays(made).numbers
    assert set(found["images"]) == {400}
    assert dict(zip(found["attack"], found["transfer"], strict=True)) == {
        "FGSM": 0.875,
        "PGD": 0.25,
    }


def test_the_critique_has_thirteen_points_with_a_figure_each() -> None:
    grid = critique(defended((100, 80, 90), (360, 320, 340)))
    assert [row[0] for row in grid.rows] == [str(n) for n in range(1, 14)]
    assert "a: 90.0 % replayed, 25.0 % adaptive" in grid.rows[0][3]
    assert "~~NAT 82.2" in grid.rows[1][3] and "worst cases here: a 25.0 %" in grid.rows[1][3]
    assert sum(row[3].startswith("not run") for row in grid.rows) < len(POINTS)
    assert any(row[3].startswith("not run: ") for row in grid.rows), "LLC was not run here"
    assert grid.sentences, "pages show them one below the other"


def test_no_mean_over_attacks_is_shown() -> None:
    made = defended((100, 80, 90), (360, 320, 340))
    for table in TABLES:
        try:
            grid = table.make(made)
        except UnknownNameError:
            continue
        words = [row[0].lower() for row in grid.rows] + [head.lower() for head in grid.columns]
        assert not any(one in ("mean", "average") for one in words), table.name


def test_printed_tables_are_whole() -> None:
    for of_ in (REPLAYED, TRANSFERRED):
        assert {data: set(rows) for data, rows in of_.items()} == {
            data: set(forms(data)) for data in ("cifar10", "mnist")
        }
    assert set(forms("cifar10")) - set(DETECTED["cifar10"]) == {"CW2, kappa 20"}
    for rows in UTILITY_OF_DEFENSES.values():
        for name, row in rows.items():
            assert row["CAV"] == pytest.approx(row["CRR"] - row["CSR"], abs=0.011), name
    assert (
        REPLAYED["cifar10"]["DF"]["NAT"] == 88.9 and TRANSFERRED["mnist"]["BIM"]["best-3"] == 97.0
    )
    assert DETECTED["cifar10"]["BIM"]["FS AUC"] == 25.5
    # Table VII, at the budgets of the larger FGSM.
    larger = {data: list(rows["FGSM, larger"].values()) for data, rows in DETECTED.items()}
    assert larger == {"cifar10": [95.2, 89.7, 98.8], "mnist": [98.2, 99.0, 100.0]}
    mine = guarded((200, 400), (100, 400), SOURCE)
    models = tuple(
        replace(m, tags={**m.tags, STANDS_FOR: "FS"} if m.name == "d" else m.tags)
        for m in mine.models
    )
    rows_ = {row[0]: row[1] for row in detection(replace(mine, models=models)).rows}
    assert rows_["FGSM"].endswith("(0.826)") and rows_["FGSM, larger"].endswith("(0.897)")


# Specifications.


@pytest.mark.parametrize("data", ["digits", "mnist", "cifar10"])
def test_a_specification_has_every_row_on_the_undefended_model(data: Any) -> None:
    benchmark = read_benchmark(STUDY.specs[data])
    roles = benchmark.tags["role"]
    assert set(roles) == set(benchmark.models)
    source = next(name for name, role in roles.items() if role == "undefended")
    for row in forms(data).values():
        found = [
            cell
            for cell in benchmark.cells
            if any(row.runs_as(one) for one in cell.attacks or ())
            and row.threat in {text for _, text in cell.threats()}
            and (cell.models is None or source in cell.models)
        ]
        assert len(found) == 1, row.name
    (through, others) = benchmark.replays
    assert through.source == others.source == source
    assert set(others.on) == set(benchmark.models) - {source}
    (adaptive,) = (cell for cell in benchmark.cells if cell.suite == "adaptive")
    wanted = {n for n, role in roles.items() if role in ("defense", "detector", "ensemble")}
    assert set(adaptive.models or ()) == wanted


def test_smaller_sizes_have_fewer_steps_in_slow_searches() -> None:
    benchmark = resized(STUDY, read_benchmark(STUDY.specs["mnist"]), size_of(STUDY, "smoke"))
    slow = [cell for cell in benchmark.cells if cell.name.endswith("slow")]
    listed = [one for cell in slow for one in cell.attacks or ()]
    assert listed and all("(steps=30)" in one for one in listed)
    assert all(any(r.runs_as(one) for r in forms("mnist").values()) for one in listed)
    assert {cell.count for cell in slow} == {40}


def test_the_data_of_a_board_must_be_known() -> None:
    made = defended(GOOD, GOOD)
    assert data_of(made) == "cifar10"
    assert look(made, "a", form("cifar10", "PGD"), SOURCE).text == text("PGD", SOURCE)
    assert rate(1, 2).value == 0.5

"""AutoAttack's claims on boards made for them, its table recounted, its cards."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.report.sample import evaluation, figures, rate
from tests.studies.attack_boards import attacked, first

from besiege.bench.benchmark_files import read_benchmark
from besiege.bench.board import Board
from besiege.core.errors import UnknownNameError
from besiege.core.threat import Threat
from besiege.metrics.defense_values import Certified
from besiege.metrics.paired import Difference, paired_interval
from besiege.models.public import PUBLIC
from besiege.studies.answers import Answer
from besiege.studies.autoattack import scaling, step_sizes
from besiege.studies.autoattack.reading import AVERAGED, PARTS, UNTARGETED, alone
from besiege.studies.autoattack.tables import bounds, table_2
from besiege.studies.study import STUDIES

STUDY = STUDIES.get("autoattack")
CE, T, FAB, SQUARE = PARTS.values()
ZOO = files("besiege") / "models" / "zoo"
Lefts = Mapping[str, Mapping[str, int]]


def board(lefts: Lefts, reported: Mapping[str, float] | None = None, count: int = 400) -> Board:
    """How many of the first images each attack leaves of each model, and what cards report."""
    rows = {m: {a: first(left, count) for a, left in by.items()} for m, by in lefts.items()}
    made = attacked("alone", rows)
    return tagged(made, {"reported": reported or {}})


def tagged(made: Board, tags: Mapping[str, Mapping[str, Any]], data: str = "digits") -> Board:
    models = tuple(
        replace(m, tags={t: str(by[m.name]) for t, by in tags.items() if m.name in by})
        for m in made.models
    )
    cells = tuple(replace(cell, data=data) for cell in made.cells)
    return replace(made, models=models, cells=cells)


def parts(
    ce: int, t: int, fab: int, square: int, dlr: int = 400, free: int = 400
) -> dict[str, int]:
    values = (ce, t, fab, square, dlr, free)
    return dict(zip((*PARTS.values(), *UNTARGETED.values()), values, strict=True))


def many(count: int, *lefts: dict[str, int]) -> dict[str, dict[str, int]]:
    """So many models, of which those with equal remainders are alike."""
    return {f"m{n}": lefts[n % len(lefts)] for n in range(count)}


def answer(name: str, made: Board) -> Answer:
    return next(one for one in STUDY.answers(made) if one.id == name)


USUAL = parts(200, 160, 164, 200)


@pytest.mark.parametrize(
    ("name", "count", "reported", "verdict"),
    [
        ("A1", 12, 60.0, "yes"),
        ("A1", 12, 30.0, "no"),
        ("A1", 12, 41.0, "cannot tell"),
        ("A1", 12, 46.0, "cannot tell"),  # below at 95 %, not at the level of twelve models
        ("A1", 7, 60.0, "cannot tell"),
        ("A2", 12, 60.0, "yes"),
        ("A2", 80, 36.0, "no"),
        ("A2", 12, 41.0, "cannot tell"),
        ("A3", 12, 85.0, "yes"),
        ("A3", 80, 50.0, "no"),
        ("A3", 12, 50.0, "cannot tell"),
    ],
)
def test_reported_figures(name: str, count: int, reported: float, verdict: str) -> None:
    """The worst case is 40 %: image by image, since the parts break nested sets of images."""
    made = board(many(count, USUAL), {f"m{n}": reported for n in range(count)})
    found = answer(name, made)
    assert found.verdict == verdict and f"{count} of our models" in found.caveat
    assert found.effect is not None and found.effect.unit == "models"
    without = board(many(count, USUAL), {"m0": reported})
    assert answer(name, without).effect is None or "1 of our models" in answer(name, without).caveat


def test_a_model_whose_card_reports_nothing_says_so() -> None:
    made = board(many(12, USUAL))
    assert answer("A1", made).verdict == "not run"
    assert table_2(made).rows[0][-1] == "nothing"


EXPOSED, NOT, OTHER = (parts(ce, t, 300, 300) for ce, t in ((260, 160), (200, 160), (200, 260)))


@pytest.mark.parametrize(
    ("count", "lefts", "verdict"),
    [
        (24, (EXPOSED,), "yes"),
        (120, (NOT,), "no"),
        (24, (EXPOSED, NOT, OTHER), "cannot tell"),
        (7, (EXPOSED,), "cannot tell"),
    ],
)
def test_a4_targeted_dlr_exposes_more(count: int, lefts: Any, verdict: str) -> None:
    made = board(many(count, *lefts), {f"m{n}": 60.0 for n in range(count)})
    found = answer("A4", made)
    assert found.verdict == verdict and "APGD-T" in found.caveat


@pytest.mark.parametrize(
    ("lefts", "verdict"),
    [
        (parts(200, 162, 160, 200), "yes"),
        (parts(200, 260, 160, 200), "no"),
        (parts(200, 200, 160, 200), "cannot tell"),
    ],
)
def test_a5_the_worst_failure_of_apgd_t(lefts: dict[str, int], verdict: str) -> None:
    made = board({**many(9, USUAL), "worst": lefts})
    found = answer("A5", made)
    assert found.verdict == verdict and "worst" in found.caveat
    assert found.effect is not None
    assert found.effect.value == pytest.approx(0.12 - (lefts[T] - 160) / 400)
    assert answer("A5", board({**many(2, USUAL), "worst": lefts})).verdict == "cannot tell"


def test_a5_does_not_know_which_attack_is_best() -> None:
    """Square leaves as many images as APGD-T, and others: it may be ahead of it elsewhere."""
    left = {text: first(60, 100) for text in PARTS.values()}
    left[SQUARE] = ~first(40, 100)
    rows = {f"m{n}": {text: first(60, 100) for text in PARTS.values()} for n in range(9)}
    made = tagged(attacked("alone", rows | {"other": left}), {})
    found = answer("A5", made).effect
    change = Difference.of(left[T], left[SQUARE])
    level = 1 - (1 - STUDY.level) / 10 / 3
    _, high = paired_interval(change.only_first, change.only_second, 100, level)
    assert found is not None and (found.value, found.low) == pytest.approx((0.12, 0.12 - high))
    assert change.value == 0 and answer("A5", made).verdict == "cannot tell"


@pytest.mark.parametrize(
    ("lefts", "verdict"),
    [
        (parts(300, 160, 260, 280), "yes"),
        (parts(300, 160, 166, 280), "no"),
        (parts(300, 160, 260, 166), "no"),
        (parts(166, 160, 260, 280), "no"),
        (parts(300, 160, 190, 280), "cannot tell"),
    ],
)
def test_a6_every_other_part_fails_somewhere(lefts: dict[str, int], verdict: str) -> None:
    found = answer("A6", board({"one": parts(160, 160, 160, 160), "other": lefts}))
    assert found.verdict == verdict and "FAB-T" in found.caveat


@pytest.mark.parametrize(
    ("name", "best", "other", "shared", "verdict"),
    [
        ("A7", parts(200, 160, 170, 200), parts(200, 170, 160, 200), 1, "yes"),
        ("A7", parts(200, 170, 160, 200), parts(200, 170, 160, 200), 1, "no"),
        ("A7", parts(200, 160, 170, 200), parts(200, 170, 160, 200), 2, "cannot tell"),
        ("A8", parts(200, 160, 170, 200, 180), USUAL, 1, "yes"),
        ("A8", parts(200, 160, 170, 200, 150), USUAL, 1, "no"),
        ("A8", parts(200, 160, 170, 200, 150), USUAL, 2, "cannot tell"),
        ("A9", parts(200, 160, 170, 200, free=180), USUAL, 1, "yes"),
        ("A9", parts(200, 160, 170, 200, free=150), USUAL, 1, "no"),
        ("A9", parts(200, 160, 170, 200, free=150), USUAL, 2, "cannot tell"),
    ],
)
def test_shares_of_models(
    name: str, best: dict[str, int], other: dict[str, int], shared: int, verdict: str
) -> None:
    lefts = (best, other)[:shared]
    found = answer(name, board(many(14, *lefts)))
    assert found.verdict == verdict
    assert answer(name, board(many(7, *lefts))).verdict == "cannot tell"


@pytest.mark.parametrize(
    ("name", "lefts", "verdict"),
    [
        ("A7", parts(200, 180, 190, 150), "yes"),
        ("A7", parts(200, 180, 190, 190), "no"),
        ("A8", parts(200, 180, 190, 150, 170), "yes"),
        ("A8", parts(200, 180, 190, 150, 190), "no"),
        ("A9", parts(200, 180, 190, 150, free=170), "yes"),
        ("A9", parts(200, 180, 190, 150, free=195), "no"),
    ],
)
def test_on_mnist_it_is_the_other_way_round(name: str, lefts: dict[str, int], verdict: str) -> None:
    made = tagged(board(many(14, lefts)), {}, "mnist")
    assert answer(name, made).verdict == verdict
    assert "MNIST" in answer(name, made).claim


@pytest.mark.parametrize(("square", "verdict"), [(100, "yes"), (160, "no"), (157, "cannot tell")])
def test_a10_square_breaks_what_gradients_leave(square: int, verdict: str) -> None:
    lefts = {"plain": parts(200, 160, 160, 220), "masked": parts(200, 160, 160, square)}
    if verdict == "no":  # none of so many images
        made = board({"plain": parts(4000, 3200, 3200, 3600)}, count=8000)
    else:
        made = board(lefts)
    found = answer("A10", made)
    assert found.verdict == verdict
    assert verdict != "yes" or "masked" in found.caveat


def test_a10_counts_every_white_box_attack() -> None:
    """What APGD-DLR or FAB with five restarts break, a gradient has found as well."""
    for dlr, free in ((100, 400), (400, 100)):
        lefts = parts(200, 160, 160, 100, dlr, free)
        found = answer("A10", board({"one": lefts, "other": lefts}))
        assert found.effect is not None and found.effect.value == 0 and found.verdict != "yes"
    alone_ = {"one": {text: n for text, n in lefts.items() if text in PARTS.values()}}
    assert answer("A10", board(alone_)).verdict == "yes", "where these were run"


@pytest.mark.parametrize(
    ("lefts", "verdict"),
    [((100, 140, 200), "yes"), ((200, 140, 200), "no"), ((150, 151, 200), "cannot tell")],
)
def test_a11_entropy_leads_on_randomised_models(lefts: tuple[int, ...], verdict: str) -> None:
    rows = dict(zip(AVERAGED.values(), lefts, strict=True))
    other = dict.fromkeys(rows, 300) | {AVERAGED["APGD-CE"]: 100}
    found = answer("A11", board({"noise": rows, "other": other}))
    assert found.verdict == verdict and found.effect is not None
    assert found.effect.value == (min(lefts[1:]) - lefts[0]) / 400
    assert answer("A11", board(many(3, USUAL))).verdict == "not run"


@pytest.mark.parametrize(
    ("first_", "second", "count", "verdict"),
    [
        (parts(100, 100, 100, 100), parts(200, 200, 200, 200), 2, "yes"),
        (parts(200, 200, 200, 200), parts(100, 100, 100, 100), 12, "no"),
        (parts(200, 200, 200, 200), parts(202, 202, 202, 202), 12, "cannot tell"),
        (parts(200, 200, 200, 200), parts(100, 100, 100, 100), 2, "cannot tell"),
    ],
)
def test_a12_orders_change(
    first_: dict[str, int], second: dict[str, int], count: int, verdict: str
) -> None:
    """Every second model is the worse one by its card."""
    made = board(many(count, first_, second), {f"m{n}": 80 - 10 * (n % 2) for n in range(count)})
    assert answer("A12", made).verdict == verdict


@pytest.mark.parametrize(
    ("open_", "contradicted", "count", "verdict"),
    [(50, 0, 1000, "yes"), (0, 100, 1000, "no"), (1, 0, 20, "cannot tell")],
)
def test_a13_what_is_proved_is_never_broken(
    open_: int, contradicted: int, count: int, verdict: str
) -> None:
    made = board({"net": USUAL, "other": USUAL})
    whole = rate(count, count)
    proved = Certified("crown", whole, whole, whole, count - open_, 0, open_, contradicted)
    made = replace(made, figures=figures(evaluation(certified=proved), evaluation()))
    assert answer("A13", made).verdict == verdict
    assert bounds(made).rows[0][-1] == str(contradicted)
    assert answer("A13", board({"net": USUAL})).verdict == "not run"


def seven(lefts: tuple[int, ...], models: int = 4) -> Board:
    """Step sizes: what the seven attacks leave of some models, for each loss alike."""
    names = [one for loss in step_sizes.LOSSES for one in step_sizes.attacks(loss)]
    by = {n: first(lefts[i % 7], 400) for i, n in enumerate(names)}
    made = attacked(step_sizes.CELL, {f"m{n}": by for n in range(models)})
    return tagged(made, {"logits": {"m0": "large"}})


@pytest.mark.parametrize(
    ("lefts", "models", "verdict"),
    [
        ((90, 90, 99, 90, 90, 90, 80), 12, "yes"),
        ((90, 80, 99, 90, 90, 90, 85), 12, "no"),
        ((90, 80, 99, 90, 90, 90, 80), 12, "cannot tell"),
        ((90, 90, 99, 90, 90, 90, 80), 7, "cannot tell"),
        ((90, 80, 99, 90, 90, 90, 85), 7, "cannot tell"),
    ],
)
def test_a14_apgd_leads_seven_attacks(lefts: tuple[int, ...], models: int, verdict: str) -> None:
    """Three losses of a model are one model."""
    found = answer("A14", seven(lefts, models))
    assert found.verdict == verdict and f"{models} of our models" in found.caveat
    assert found.effect is not None and found.effect.count == models


def test_a14_is_about_each_loss() -> None:
    made = seven((90, 90, 99, 90, 90, 90, 80), 12)
    (cell,) = made.cells
    left = cell.left.copy()
    left[:, cell.attacks.index(step_sizes.apgd("dlr"))] = first(85, 400)
    left[:, cell.attacks.index(step_sizes.pgd("dlr", "0.25"))] = first(80, 400)
    found = answer("A14", replace(made, cells=(replace(cell, left=left),)))
    assert found.verdict == "no" and "margin 12 and 0 ties, dlr 0 and 0 ties" in found.caveat


@pytest.mark.parametrize(("largest", "verdict"), [(150, "yes"), (260, "no"), (198, "cannot tell")])
def test_a15_the_largest_step_on_large_logits(largest: int, verdict: str) -> None:
    found = answer("A15", seven((201, 200, largest, 200, 200, 200, 200)))
    assert found.verdict == verdict and "m0" in found.caveat


def test_a15_compares_with_the_better_of_the_smaller_steps() -> None:
    for small in ((300, 150), (150, 300)):
        found = answer("A15", seven((*small, 200, 200, 200, 200, 200)))
        assert found.verdict == "no" and found.effect is not None
        assert found.effect.value == (150 - 200) / 400


def divided(large: tuple[int, ...], plain: tuple[int, ...]) -> Board:
    rows = {
        name: {scaling.ascent(n): first(left, 400) for n, left in zip(scaling.DIVISORS, lefts,
                                                                        strict=True)}
        for name, lefts in (("big", large), ("small", plain))
    }  # fmt: skip
    made = attacked(scaling.CELL, rows)
    return tagged(made, {"logits": {"big": "large", "small": "plain"}})


@pytest.mark.parametrize(
    ("large", "plain", "verdicts"),
    [
        ((380, 370, 280, 180), (180, 200, 230, 240), ("yes", "yes")),
        ((180, 180, 180, 240), (240, 200, 200, 180), ("no", "no")),
        ((180, 180, 180, 178), (180, 180, 180, 181), ("cannot tell", "cannot tell")),
    ],
)
def test_a16_and_a17_divided_logits(
    large: tuple[int, ...], plain: tuple[int, ...], verdicts: tuple[str, str]
) -> None:
    made = divided(large, plain)
    assert (answer("A16", made).verdict, answer("A17", made).verdict) == verdicts


def test_table_2_is_counted_image_by_image() -> None:
    made = board({"net": parts(200, 160, 170, 200)}, {"net": 55.0})
    (cell,) = made.cells
    left = cell.left.copy()
    left[0, 3, :50], left[0, 3, 350:] = False, True  # Square breaks other images
    made = replace(made, cells=(replace(cell, left=left),))
    (row,) = table_2(made).rows
    together = left[0, :4].all(0).mean()
    assert row[1:7] == ("100.0", "50.0", "40.0", "42.5", "50.0", f"{100 * together:.1f}")
    assert together < left[0, :4].mean(1).min(), "the worst case is below every part"
    assert row[-1] == "55.0"
    suite = replace(
        made.cells[0], suite=True, name="standard", robust=np.asarray(left[:, :4].all(1))
    )
    both = table_2(replace(made, cells=(*made.cells, suite)))
    assert both.rows[0][9] == f"{100 * together:.1f}" and both.rows[0][10] == "not run"
    elsewhere = replace(suite, threat="linf:0.2")
    assert table_2(replace(made, cells=(*made.cells, elsewhere))).rows[0][9] == "not run"
    with pytest.raises(UnknownNameError, match="each on all points"):
        alone(replace(made, cells=(suite,)))


def test_the_reading_has_the_figures_of_the_publication() -> None:
    """Of Xiao et al.: AutoAttack 18.50, Square 20.44, and 8.0 with more queries and restarts."""
    said = " ".join(STUDY.readings(board(many(1, USUAL))))
    assert (
        "four parts together left 18.5 %, Square alone 20.4 %" in said and "8.0 % (of 500" in said
    )


@pytest.mark.parametrize("data", ["digits", "mnist", "cifar10"])
def test_reported_figures_are_those_of_the_cards(data: str) -> None:
    """Accuracy under PGD by the card, at the budget of the model's cell; else there is none."""
    benchmark = read_benchmark(STUDY.specs[data])
    budget = {
        name: cell.threat
        for cell in benchmark.cells
        if cell.name.startswith(("alone", "randomised"))
        for name in cell.models or ()
    }
    told = benchmark.tags["reported"]
    for name, text in benchmark.models.items():
        kind, _, card = str(text).partition(":")
        found = None
        if kind == "zoo" and "+" not in card:
            found = of_zoo(card, budget[name])
        elif kind == "public" and (place := WEIGHTS / f"{card}.txt").is_file():
            found = of_public(place.read_text(), budget[name])
        elif kind == "public" and name in told:
            continue  # the data root has no cards here
        assert told.get(name) == found, name


WEIGHTS = Path(os.environ.get("BESIEGE_DATA", "")) / "weights"


def of_zoo(card: str, threat: str) -> str:
    found = json.loads(Path(str(ZOO / f"{card}.json")).read_text())
    assert found["threat"] == threat
    return str(found["accuracy"]["pgd20"]).partition(" %")[0]


def of_public(card: str, threat: str) -> str:
    (line,) = re.findall(r"PGD-40 (\S+) (\S+), first 1,000 test images: (\S+) %", card)
    assert replace(Threat.parse(f"{line[0].lower()}:{line[1]}"), written=None) == replace(
        Threat.parse(threat), written=None
    )
    return str(line[2])


@pytest.mark.parametrize("data", ["digits", "mnist", "cifar10"])
def test_every_model_of_the_zoo_and_of_the_public_ones_is_there(data: str) -> None:
    benchmark = read_benchmark(STUDY.specs[data])
    here = {str(text) for text in benchmark.models.values()}
    zoo = {
        f"zoo:{Path(str(one)).stem}"
        for one in ZOO.iterdir()
        if str(one).endswith(".json") and Path(str(one)).stem.startswith(f"{data}-")
        and "autoencoder" not in str(one) and "pixelcnn" not in str(one)
    }  # fmt: skip
    named = {f"public:{name}" for name, one in PUBLIC.items() if one.data == data}
    assert zoo | named <= here


def test_nothing_is_decided_twice() -> None:
    """Boards where every image is broken by all parts: ties are open, and never count."""
    made = board(many(14, parts(0, 0, 0, 0, 0, 0)))
    for name in ("A7", "A8", "A9"):
        found = answer(name, made)
        assert found.verdict == "cannot tell" and "14 ties" in found.caveat
    assert np.isfinite([o.effect.value for o in STUDY.answers(made) if o.effect]).all()

"""DEEPSEC's attacks as the card has them, its printed values, and the effects of its remarks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.studies.attack_boards import attacked, first

from besiege.attacks.attack import parse
from besiege.bench.board import Board
from besiege.core.errors import UnknownNameError
from besiege.core.presets import PRESETS
from besiege.core.threat import Threat
from besiege.metrics.evidence import Origin
from besiege.studies.answers import decide
from besiege.studies.deepsec import answers
from besiege.studies.deepsec.attacks import SAME_BUT_GOAL, form, forms
from besiege.studies.deepsec.published import UTILITY
from besiege.studies.deepsec.reading import wins

BOTH: Any = ("cifar10", "mnist")
NETS = ("natural", "pgd-at")


@pytest.mark.parametrize("data", BOTH)
def test_every_row_has_a_preset_in_a_threat_it_was_published_in(data: Any) -> None:
    for row in forms(data).values():
        preset = PRESETS.get(row.attack)
        norms = {text.split()[0].partition(":")[0] for text in preset.threats}
        assert row.norm in norms and ("targeted" in " ".join(preset.threats)) >= row.targeted
        if row.norm == "linf":
            known = [replace(Threat.parse(text), written=None) for text in preset.threats]
            assert replace(Threat.parse(row.threat), written=None) in known, row
    assert set(UTILITY[data]) == set(forms(data))


@pytest.mark.parametrize(
    ("name", "cifar10", "mnist"),
    [
        ("FGSM", "steps=1 schedule=constant(step=1.0)", "steps=1 schedule=constant(step=1.0)"),
        ("R+FGSM", "start=signs(share=0.5) schedule=constant(step=0.5)", ""),
        ("BIM", "steps=15 schedule=constant(step=0.1)", "steps=15 schedule=constant(step=0.16"),
        ("PGD", "steps=15 start=uniform", "schedule=constant(step=0.16"),
        ("U-MI-FGSM", "steps=15 direction=chain(momentum", "schedule=constant(step=0.16"),
        ("UAP", "target=0.8", "target=0.3"),
        ("DF", "steps=50 overshoot=0.02", ""),
        ("OM", "rounds=4 first=1 rate=0.02 copies=20 size=0.0313", "first=0.02 rate=0.2 size=0.3"),
        ("LLC", "steps=1 aim='least-likely'", ""),
        ("R+LLC", "start=signs(share=0.5) aim='least-likely'", ""),
        ("ILLC", "steps=10 schedule=constant(step=0.1)", "steps=10 schedule=constant(step=0.16"),
        ("T-MI-FGSM", "steps=15 direction=chain(momentum", ""),
        ("JSMA", "theta=1.0 gamma=0.1", ""),
        ("BLB", "weights=5 steps=1000 first=0.01", ""),
        ("CW2", "rounds=10 steps=10000 kappa=0 first=0.001 rate=0.02", ""),
        ("CW2, kappa 20", "kappa=20 rate=0.02", ""),
        ("EAD-EN", "rule='en' beta=0.001 first=0.001 rate=0.02 kappa=0", ""),
        ("EAD-L1", "rule='l1' beta=0.001 first=0.001 rate=0.02 kappa=0", ""),
    ],
)
def test_the_parameters_are_those_of_the_publication(name: str, cifar10: str, mnist: str) -> None:
    for data, wanted in zip(BOTH, (cifar10, mnist), strict=True):
        attack = parse(form(data, name).attack)
        for one in wanted.split():
            parameter, _, value = one.partition("=")
            found = getattr(attack, parameter)
            shown = repr(found) if isinstance(found, (str, int, float)) else str(found)
            if value.startswith("constant") or value.startswith("chain") or "signs" in value:
                step = getattr(found, "step", getattr(found, "share", None))
                assert step is None or f"{step:.10f}".startswith(value.split("=")[-1].strip(")"))
                assert type(found).__name__.lower() == value.partition("(")[0]
            elif value == "uniform":
                assert type(found).__name__ == "Uniform"
            else:
                assert shown.startswith(value), one


def test_printed_values_are_those_of_the_tables() -> None:
    assert UTILITY["cifar10"]["FGSM"]["PSD"] == 276.991
    assert UTILITY["mnist"]["T-MI-FGSM"]["MR"] > UTILITY["mnist"]["U-MI-FGSM"]["MR"], "their bug"
    assert math.isnan(UTILITY["cifar10"]["UAP"]["seconds"])
    assert [len(UTILITY[data]) for data in BOTH] == [19, 19]


def board_of(lefts: Mapping[str, int], source: str = "", count: int = 200) -> Board:
    """A board of CIFAR-10 rows: how many of the first images each leaves on the second model."""
    boards = []
    for threat in dict.fromkeys(form("cifar10", name).threat for name in lefts):
        some = {n: left for n, left in lefts.items() if form("cifar10", n).threat == threat}
        texts = {
            n: str(Origin(source, form("cifar10", n).attack, "", False))
            if source
            else form("cifar10", n).attack
            for n in some
        }
        rows = {
            model: {
                texts[n]: first(left if model == NETS[1] else count, count)
                for n, left in some.items()
            }
            for model in NETS
        }
        (cell,) = attacked(threat, rows).cells
        boards.append(replace(cell, threat=threat, norm=threat.split()[0].partition(":")[0]))
    whole = attacked("x", {m: {"a": first(1, count)} for m in NETS})
    return replace(whole, cells=tuple(boards))


def test_a_board_shows_which_rows_are_absent() -> None:
    board = board_of(dict.fromkeys(answers.ITERATIVE, 0))
    lacking = answers.absent(board, NETS[1], "cifar10")
    assert set(lacking) == set(forms("cifar10")) - set(answers.ITERATIVE)
    with pytest.raises(UnknownNameError, match="FGSM"):
        wins(board, NETS[1], form("cifar10", "FGSM"))


@pytest.mark.parametrize(
    ("lefts", "verdict", "named"),
    [
        ((0, 0, 0, 0, 0), "yes", "BIM"),
        ((0, 0, 0, 40, 0), "no", "ILLC"),
        ((0, 4, 0, 0, 0), "cannot tell", "PGD"),
    ],
)
def test_remark_1(lefts: tuple[int, ...], verdict: str, named: str) -> None:
    board = board_of(dict(zip(answers.ITERATIVE, lefts, strict=True)))
    found = answers.least_rate(board, model=NETS[1], data="cifar10")
    assert decide(found.low, found.high, 0.99, denied=0.96) == verdict
    assert found.value == 1 - max(lefts) / 200 and named in found.caveat


TARGETED = {"FGSM": 40, "R+FGSM": 40, "BIM": 20, "U-MI-FGSM": 20}


@pytest.mark.parametrize(
    ("others", "verdict"),
    [
        ((120, 120, 120, 120), "yes"),
        ((120, 120, 10, 120), "no"),
        ((120, 120, 26, 120), "cannot tell"),
    ],
)
def test_remark_7_of_goals(others: tuple[int, ...], verdict: str) -> None:
    names = [targeted for _, targeted in SAME_BUT_GOAL]
    board = board_of({**TARGETED, **dict(zip(names, others, strict=True))}, NETS[0])
    how: dict[str, Any] = {"model": NETS[1], "source": NETS[0], "data": "cifar10"}
    found = answers.untargeted_transfers_more(board, **how)
    assert decide(found.low, found.high, 0.05) == verdict
    assert found.value == pytest.approx(
        min(b - TARGETED[a] for (a, _), b in zip(SAME_BUT_GOAL, others, strict=True)) / 200
    )


@pytest.mark.parametrize(("flat", "verdict"), [(190, "yes"), (10, "no"), (44, "cannot tell")])
def test_remark_7_of_norms(flat: int, verdict: str) -> None:
    lefts = {"FGSM": 40, "BIM": 20, "PGD": 15, "U-MI-FGSM": 12, "DF": flat}
    how: dict[str, Any] = {"model": NETS[1], "source": NETS[0], "data": "cifar10"}
    found = answers.linf_transfers_more(board_of(lefts, NETS[0]), **how)
    assert decide(found.low, found.high, 0.05) == verdict
    assert found.value == pytest.approx((flat - 40) / 200) and "FGSM and DF" in found.caveat
    del lefts["PGD"]
    with pytest.raises(UnknownNameError, match="PGD"):
        answers.linf_transfers_more(board_of(lefts, NETS[0]), **how)


def test_images_that_either_model_misclassifies_do_not_count() -> None:
    board = board_of({"BIM": 20}, NETS[0])
    (cell,) = board.cells
    correct = cell.correct.copy()
    correct[0, 150:], correct[1, :10] = False, False
    board = replace(board, cells=(replace(cell, correct=correct),))
    found = wins(board, NETS[1], form("cifar10", "BIM"), NETS[0])
    assert len(found.samples) == 140 and found.success.sum() == 130
    assert np.array_equal(found.samples, np.arange(10, 150))

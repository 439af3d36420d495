"""The words and tables of a comparison, from made-up counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from rich.console import Console
from tests.report.sample import DATA, evaluation, threat

from besiege.bench.compared import Compared, Group, Pair, PairedComparison
from besiege.core.errors import Finding, Level
from besiege.core.examination import Check, Examination
from besiege.metrics.crossings import along_budget
from besiege.metrics.intervals import Rate
from besiege.metrics.paired import Difference, samples_needed
from besiege.report.comparison import (
    ComparisonTable,
    crossing_sentence,
    in_words,
    pair_sentence,
    told,
)

NAMES = ("pgd-at", "resnet20-pgd-at", "natural", "trades", "mart", "awp", "free")


def compared(name: str, left: int, count: int = 100, **changes: Any) -> Compared:
    usual: dict[str, Any] = {
        "figures": evaluation(),
        "folder": Path("run"),
        "clean": Rate.of(90, 100),
        "robust": Rate.of(left, count),
        "median": None,
        "only": np.arange(3),
        "all_but": np.arange(2),
    }
    return Compared(name, **usual | changes)


def pair(first: str, second: str, b: int, c: int, n: int = 100, **changes: Any) -> Pair:
    change = Difference.counted(b, c, n)
    usual: dict[str, Any] = {
        "p": change.p,
        "needed": samples_needed(change),
        "only_first": np.arange(b)[::-1] * 11,
        "only_second": np.arange(c) + 500,
    }
    return Pair(first, second, change, **usual | changes)


def group(evaluations: Sequence[Compared], pairs: Sequence[Pair], **changes: Any) -> Group:
    usual: dict[str, Any] = {
        "threat": evaluation().threat,
        "data": replace(DATA, count=100, total=10_000),
        "count": 100,
        "notes": (),
    }
    return Group(evaluations=tuple(evaluations), pairs=tuple(pairs), **usual | changes)


def said(one: Pair, *others: Pair, **changes: Any) -> str:
    names = [compared(one.first, 46), compared(one.second, 40)]
    found = group(names, [one, *others], **changes)
    return pair_sentence(one, found, PairedComparison((found,), ()))


def printed(found: PairedComparison, width: int = 80, images: bool = False) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as held:
        console.print(ComparisonTable(found, images))
    return held.get()


def test_the_word_unknown_stays_with_the_figure() -> None:
    checks = (Check("attacks are strong enough", "not run"),)
    doubted = compared("a", 46, figures=evaluation(examination=Examination(checks)))
    one = group([doubted, compared("b", 40)], [pair("a", "b", 30, 10)])
    found = PairedComparison((one,), ())
    lines = [" ".join(line.split()) for line in printed(found).splitlines()]
    (first,) = (line for line in lines if line.startswith("1 a "))
    (second,) = (line for line in lines if line.startswith("2 b "))
    assert first.endswith("unknown") and "unknown" not in second
    assert "This concerns a." in " ".join(lines) and "This concerns a." in in_words(found)
    certain = PairedComparison((replace(one, evaluations=one.evaluations[1:]),), ())
    assert "unknown" not in printed(certain)


# Sentences.


def test_the_sentence_of_a_difference_that_cannot_be_told() -> None:
    assert said(pair("pgd-at", "resnet20-pgd-at", 7, 1)) == (
        "These 100 images cannot tell whether pgd-at withstands more than resnet20-pgd-at; about "
        "260 would. Observed: +6.0 points [0.6, 12.9], p = 0.070."
    )


def test_the_sentence_of_a_clear_difference() -> None:
    assert said(pair("a", "b", 30, 10)) == (
        "a withstands more than b: +20.0 points [7.9, 31.7], p = 0.002 on the same 100 images."
    )


def test_several_pairs_have_corrected_p_values() -> None:
    one = pair("a", "b", 30, 10, p=0.2)
    assert said(one, pair("a", "c", 3, 1)).endswith("[7.9, 31.7], corrected p = 0.20.")


def test_more_images_than_there_are() -> None:
    small = {"data": replace(DATA, count=100, total=200)}
    assert "; about 260 would, but digits (test) has 200. Observed" in said(
        pair("a", "b", 7, 1), **small
    )
    unknown = {"data": replace(DATA, count=100, total=None)}
    assert "; about 260 would. Observed" in said(pair("a", "b", 7, 1), **unknown)
    # With a few images the formula may ask for no more than there are.
    assert "withstands more than b. Observed" in said(pair("a", "b", 4, 0, needed=90))


@pytest.mark.parametrize(
    ("needed", "shown"), [(104, "100"), (262, "260"), (26_149, "26,000"), (1_960_000, "2,000,000")]
)
def test_how_many_would_tell_is_rounded(needed: int, shown: str) -> None:
    data = {"data": replace(DATA, count=50, total=10**9)}
    assert f"about {shown} would" in said(pair("a", "b", 3, 1, 50, needed=needed), **data)


def crossed(first: Any, second: Any, unit: float = 1, **changes: Any) -> str:
    """The sentence about two models that need perturbations of these sizes."""
    (found,) = along_budget([first, second], [(0, 1)], unit=unit)
    one = pair("a", "b", 30, 10, crossing=found)
    return crossing_sentence(one, group([compared("a", 46), compared("b", 40)], [one], **changes))


def test_where_the_order_changes() -> None:
    linf: dict[str, Any] = {"threat": threat("linf:0.1", 0.1, "0.1")}
    narrow, wide = np.full(400, 0.07), np.tile([0.05, 0.1], 200)
    assert crossed(narrow, wide, **linf) == (
        "a withstands more up to linf 0.065, b beyond 0.07: the order changes (certain)."
    )
    assert crossed(wide, narrow, **linf).startswith("b withstands more up to linf 0.065, a beyond")
    eighths = crossed(narrow, wide, 255, threat=threat("linf:8/255", 8 / 255, "8/255"))
    assert "a withstands more up to linf 17/255, b beyond 18/255" in eighths
    fragile, wrong = np.full(400, 1e-6), np.tile([0.0, 0.1], 200)
    assert crossed(fragile, wrong, **linf).startswith("a withstands more without an attack, b beyo")


def test_a_change_that_the_images_cannot_tell_says_how_many_would() -> None:
    linf: dict[str, Any] = {"threat": threat("linf:0.1", 0.1, "0.1")}
    generator = np.random.default_rng(3)
    hard = generator.lognormal(-3, 0.5, 60)
    first, second = (hard * generator.lognormal(0, own, 60) for own in (0.2, 0.8))
    text = crossed(first, second, **linf)
    assert text.startswith("These 60 images cannot tell whether the order of a and b changes")
    assert "; about " in text
    assert " would. Observed: a withstands more up to linf 0.0" in text and ", b beyond 0.0" in text


def test_an_order_that_does_not_change() -> None:
    linf: dict[str, Any] = {"threat": threat("linf:0.1", 0.1, "0.1")}
    generator = np.random.default_rng(4)
    first = generator.uniform(0.05, 0.1, 4000)
    assert crossed(first, first, **linf) == (
        "The order of a and b does not change by a point or more, up to linf 0.095 (certain)."
    )
    few = crossed(first[:20], first[:20] / 2, **linf)
    assert few.startswith("These 20 images cannot tell whether the order of a and b changes with")
    assert "the budget, up to linf 0." in few and "; about" in few and "Observed" not in few


def test_the_sentence_follows_its_pair_and_without_distances_there_is_none() -> None:
    (found,) = along_budget([np.full(400, 0.07), np.tile([0.05, 0.1], 200)], [(0, 1)])
    one = pair("a", "b", 30, 10, crossing=found)
    both = group([compared("a", 46), compared("b", 40)], [one])
    lines = in_words(PairedComparison((both,), ())).splitlines()
    assert lines[0].startswith("a withstands more than b") and "(certain)" in lines[1]
    assert "the order changes (certain)" in " ".join(printed(PairedComparison((both,), ())).split())
    content = one.plain()["crossing"]
    assert content["verdict"] == "crossing" and content["needed"] is None
    (change,) = content["changes"]
    assert (change["from"], change["to"], change["before"]) == ("a", "b", 0.065)
    assert len(content["budgets"]) == len(content["low"]) == len(content["difference"])
    without = replace(both, pairs=(replace(one, crossing=None),))
    assert len(in_words(PairedComparison((without,), ())).splitlines()) == 1
    assert without.pairs[0].plain()["crossing"] is None


def test_no_difference() -> None:
    assert said(pair("a", "b", 0, 0)) == (
        "a and b withstand the same images, +0.0 points [-3.7, 3.7] of 100 images."
    )
    assert said(pair("a", "b", 4, 4)) == (
        "a and b withstand equally many of 100 images, each 4 that the other does not: +0.0 points "
        "[-6.5, 6.5], so these cannot tell."
    )


def test_without_a_budget() -> None:
    free = {"threat": threat("linf", None)}
    assert said(pair("a", "b", 60, 30), **free).startswith(
        "a needs larger perturbations than b: larger ones on 60 images, smaller ones on 30; +30.0 "
    )
    unclear = said(pair("a", "b", 6, 4), **free)
    assert unclear.startswith("These 100 images cannot tell whether a needs larger perturbations")
    assert ". Observed: larger ones on 6 images, smaller ones on 4; +2.0 points [" in unclear
    assert "each needs the larger perturbation on 5 of 100" in said(pair("a", "b", 5, 5), **free)
    assert "need the same perturbations on all 100" in said(pair("a", "b", 0, 0), **free)


def test_a_figure_that_must_not_be_quoted_is_not_quoted() -> None:
    stop = Finding("W14", "the model answers differently.", "Declare it.", get_args(Level)[0])
    bad = compared("b", 40, figures=evaluation(warnings=[stop], complete=False), robust=None)
    found = group([compared("a", 46), bad], [pair("a", "b", 7, 1)])
    whole = PairedComparison((found,), (("c against l2:1 in run", "no other has this threat"),))
    for text in (in_words(whole), printed(whole, 200)):
        assert "p = 0.070. (Not to be quoted.)" in text
        assert "! Do not quote the figures of b (W14): The model answers differently." in text
        assert "! b is not complete: 0 of 100 images are judged." in text
        assert "Not compared: c against l2:1 in run (no other has this threat)." in text
    row = next(line for line in printed(whole).splitlines() if line.startswith("2  b"))
    assert "n/a" in row and row.rstrip().endswith("!")


# The table.


def many(count: int) -> PairedComparison:
    """Models of which each withstands two images less than the one before."""
    names = [NAMES[n] if n < len(NAMES) else f"model-{n}" for n in range(count)]
    pairs = [
        pair(names[one], names[two], 2 * (two - one) + 3, 3)
        for one, two in combinations(range(count), 2)
    ]
    return PairedComparison(
        (group([compared(n, 60 - 2 * k) for k, n in enumerate(names)], pairs),), ()
    )


def test_two_models() -> None:
    text = printed(many(2))
    assert "against linf:0.15" in text and "on 100 of the 10,000 images of digits (test)" in text
    assert "1  pgd-at           60.0 %  [49.7, 69.7]  90.0 %     3        2" in text
    assert "pair  points" not in text, "the sentence says it"
    assert "corrected" not in text and "Holm" not in text


@pytest.mark.parametrize("count", [3, 6])
def test_up_to_six_models_have_all_pairs(count: int) -> None:
    found = many(count)
    text = printed(found)
    pairs = count * (count - 1) // 2
    assert len(told(found.groups[0])) == pairs == " ".join(text.split()).count("corrected p ")
    value = Difference.counted(5, 3, 100)
    ends = f"[{100 * value.low:.1f}, {100 * value.high:.1f}]"
    row = next(line for line in text.splitlines() if line.startswith("1 - 2"))
    assert row.split() == ["1", "-", "2", "+2.0", *ends.split(), "0.73", "5", "3"]
    assert f"p is corrected for {pairs} comparisons (Holm)" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("count", [7, 10, 25])
def test_more_models_have_a_matrix_of_all_pairs_and_sentences_of_neighbours(
    count: int, width: int
) -> None:
    found = many(count)
    text = printed(found, width)
    assert max(map(len, text.splitlines())) <= width
    neighbours = told(found.groups[0])
    assert len(neighbours) == count - 1
    assert all(one.change.only_first == 5 for one in neighbours)
    assert " ".join(text.split()).count("corrected p = ") == count - 1
    assert text.count("+2.0") >= 2 * (count - 1), "in the matrix and in the sentences"
    last = 2.0 * (count - 1)
    star = "*" if found.pairs[count - 2].clear else ""
    assert f"+{last:.1f}{star}" in text, "the best over the last"
    cells = sum(cell[0] == "+" and cell[1].isdigit() for cell in text.split())
    assert cells >= len(found.pairs) + count - 1
    assert "besiege" not in in_words(found)
    rest = len(found.pairs) - (count - 1)
    assert f"Neighbours only; {rest} other pairs are in `pairs`." in in_words(found)


def test_the_matrix_has_the_sign_of_the_ranking() -> None:
    found = many(7)
    (whole,) = found.groups
    turned = [
        replace(one, first=one.second, second=one.first) if one is whole.pairs[0] else one
        for one in whole.pairs
    ]
    text = printed(PairedComparison((replace(whole, pairs=tuple(turned)),), ()))
    row = next(
        line for line in text.splitlines() if line.split()[:1] == ["2"] and len(line.split()) == 2
    )
    assert row.split() == ["2", "-2.0"]


def test_the_ids_are_listed() -> None:
    text = printed(many(2), images=True)
    assert "  only pgd-at (5): 0, 11, 22, 33, 44" in text
    assert "  only resnet20-pgd-at (3): 500, 501, 502" in text
    three = printed(many(3), images=True)
    assert "  natural and no other (3): 0, 1, 2" in three and "  all but natural (2): 0, 1" in three
    assert "only pgd-at" not in printed(many(2))


def test_notes_and_a_query_limit_are_printed() -> None:
    limited = replace(evaluation().threat, queries=1000)
    found = group(
        [compared("a", 46), compared("b", 40)],
        [pair("a", "b", 7, 1)],
        notes=("Not the same attacks.",),
        threat=limited,
        count=30,
    )
    text = printed(PairedComparison((found,), ()))
    assert "against linf:0.15, 1,000 queries" in text and "Not the same attacks." in text
    assert "on 30 images of digits (test)\n" in text


def test_medians_without_a_budget() -> None:
    free = evaluation(threat=threat("linf", None))
    rows = [
        compared("a", 3, median=None, figures=free),
        compared("b", 0, median=0.12, figures=free),
    ]
    text = printed(
        PairedComparison((group(rows, [pair("a", "b", 60, 30)], threat=free.threat),), ())
    )
    assert "median" in text and "infinite" in text and "0.12" in text and "robust" not in text
    assert "Without a budget:" in text

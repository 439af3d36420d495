from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.report.sample import (
    DATA,
    MODEL,
    Figures,
    attack,
    broken_run,
    by_chance,
    classes,
    confusion,
    crowded,
    eight,
    evaluation,
    figures,
    four,
    item,
    minimal_run,
    pictures,
    rate,
    smallest_run,
    suite,
    threat,
)

from besiege.core.errors import DataError, Finding, StoreError
from besiege.core.examination import Check, Examination
from besiege.metrics import RunFigures
from besiege.metrics.attack_values import AttackCurve, AttackQueries
from besiege.metrics.defense_values import DefenseFigures
from besiege.metrics.values import Picture
from besiege.report import fragment, write
from besiege.report.charts import charts, steps_chart
from besiege.report.grouping import ranked
from besiege.report.page import _prose, rendered
from besiege.report.pictures import gallery

INLINE = {"a", "b", "code", "strong", "time", "wbr"}
VOID = {"meta", "link", "img", "br", "wbr", "input", "hr"}


class Reader(HTMLParser):
    """The tags of a page, whether they nest, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag not in INLINE:
            self.words.append(" ")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        """The text with single spaces."""
        return " ".join("".join(self.words).replace("\u00a0", " ").split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read(given: Figures) -> Reader:
    return Reader(rendered(given, pictures))


CASES: dict[str, Callable[[], Figures]] = {
    "one": figures,
    "four": four,
    "eight": eight,
    "broken": broken_run,
    "minimal": minimal_run,
    "smallest": smallest_run,
    "crowded": crowded,
    "suite": suite,
    "chance": by_chance,
    "empty": lambda: figures(
        evaluation(
            steps_curve=[], eps_curve=None, gallery=[], warnings=[], attacks=[attack("a", 9)]
        )
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_page_is_whole_and_loads_nothing(case: str) -> None:
    text = rendered(CASES[case](), pictures)
    page = Reader(text)
    assert page.open == [], "every tag is closed"
    assert text.lstrip().startswith("<!doctype html>")
    assert page.all("html")[0]["lang"] == "en"
    assert not page.all("script") and not page.all("iframe")
    for _, attributes in page.tags:
        for key, value in attributes.items():
            assert not key.startswith("on"), key
            if key in ("src", "href", "action", "srcset", "data"):
                assert (value or "").startswith(("data:", "#")), (key, value)
    assert "@import" not in text and "url(" not in text
    policy = next(m["content"] for m in page.all("meta") if "http-equiv" in m)
    assert policy is not None and policy.startswith("default-src 'none'; img-src data:;")
    assert "script-src" not in policy


@pytest.mark.parametrize("case", CASES)
def test_headings_are_in_order_and_ids_and_texts_are_there(case: str) -> None:
    page = read(CASES[case]())
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all(image["alt"] for image in page.all("img"))
    assert all("scope" in header for header in page.all("th"))
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    for link in page.all("a"):
        assert (link["href"] or "").removeprefix("#") in ids


def test_names_from_outside_are_text_never_markup() -> None:
    nasty = "<script>alert('x')</script>"
    usual = evaluation()
    assert usual.eps_curve is not None
    given = evaluation(
        warnings=[Finding(nasty, nasty, nasty, "note")],
        model=replace(MODEL, name=nasty, digest=nasty, kind=nasty),
        data=replace(DATA, name=nasty, class_names=(nasty,) * 10),
        attacks=[attack(nasty, 51, told=nasty), attack("b", 9, failure=nasty)],
        threat=replace(usual.threat, text=nasty, words=nasty),
        steps_curve=[replace(usual.steps_curve[0], attack=nasty)],
        eps_curve=replace(usual.eps_curve, attack=nasty),
    )
    text = rendered(figures(given, command=nasty, versions={"besiege": nasty}), pictures)
    page = Reader(text)
    assert "<script" not in text.lower()
    assert page.text.count(nasty) > 20
    assert "<script" not in fragment(figures(given)).lower()


def test_the_answer_is_first_and_says_how_sure_and_against_what() -> None:
    text = read(figures()).text
    order = [
        "zoo:digits-natural against linf:0.15",
        "Under attack, 11.8 % of the images are still classified correctly; without an attack, ",
        "[8.8, 15.4] 95 % interval; 47 of 397 images",
        "[94.2, 98.1] 95 % interval; 383 of 397 images",
        "Every pixel may change by at most 0.15.",
        "A stronger attack can only lower it",
        "pgd broke most: 332 of the 383 correctly classified images.",
        "The attacks",
        "Accuracy against steps.",
        "Accuracy against perturbation size.",
        "Misclassified images",
        "W24 note Precision The interval is 6.6 points wide. Use more samples (--count).",
        "What the attacker may do",
        "Any wrong answer counts as a success.",
        "How to read this page",
        "besiege evaluate zoo:digits-natural --data digits --threat linf:0.15",
        "c951b60a92eb35bd" * 4,
        "397 of the 1,797 images of digits (test), chosen with seed 0",
        "9f2c1b60a92eb35b" * 4,
        "27,000 forward passes, 25,500 backward passes, 27,001 queries, 1,588 images judged, 9.7 s",
    ]
    places = [text.find(said, 0) for said in order]
    assert -1 not in places, order[places.index(-1)]
    first = [text.index(order[0])]
    for said in order[1:]:
        first.append(text.index(said, first[-1]))


def test_the_interval_is_drawn_where_it_lies() -> None:
    text = rendered(figures(), pictures)
    found = rate(47)
    assert f'style="width:{100 * found.value:.2f}%"' in text
    between = f"left:{100 * found.low:.2f}%;right:{100 - 100 * found.high:.2f}%"
    assert between in text


def test_every_attack_is_in_the_table_and_the_strongest_stands_out() -> None:
    text = rendered(figures(), pictures)
    body = text[text.index("<tbody") : text.index("</tbody")]
    rows = [Reader(row).text for row in re.findall(r"<tr.*?</tr>", body, re.S)]
    assert len(rows) == 3
    assert "17.4 % [13.8, 21.5] 314 0 0.149 44.1 3.2 s" in rows[0]
    assert ["broke most" in row for row in rows] == [False, True, False]
    assert "332 4 0.149 44.1 3.2 s" in rows[1]


def test_a_suite_says_what_broke_first_and_calls_no_attack_the_strongest() -> None:
    text = rendered(suite(), pictures)
    shown = Reader(text).text
    assert "Broke first apgd broke 263 of the 383 correctly classified images" in shown
    assert "none is the strongest" in shown and "broke most" not in shown
    body = text[text.index('<table class="attacks"') :]
    table = Reader(body[: body.index("</table>") + 8]).text
    assert "Ran on" in table and "Alone" not in table and "Alone:" not in shown
    assert "Ran on: the images that no attack before it broke" in shown
    line = "45.0 % if the defense is ignored, 26.7 % if it is known"
    worth = DefenseFigures(rate(27, 60), rate(16, 60))
    assert f"Defense {line}, on the same images." in read(figures(evaluation(defense=worth))).text


def test_the_word_unknown_stays_with_the_figure_in_the_table_of_several() -> None:
    one, *others = four().evaluations
    checks = (Check("attacks are strong enough", "not run"),)
    doubted = rendered(figures(replace(one, examination=Examination(checks)), *others), pictures)
    cells = [cell.partition("</div>")[0] for cell in doubted.split('<div class="cell">')[1:5]]
    assert [cell.count(">unknown</span>") for cell in cells].count(1) == 1
    assert 'class="badge" title="Quote' not in rendered(four(), pictures)


def test_which_attack_broke_what_first_and_what_it_left() -> None:
    text = rendered(suite(), pictures)
    table = text[text.index('<table class="cascade"') :]
    rows = [Reader(row).text for row in re.findall(r"<tr><th scope=.row.*?</tr>", table, re.S)]
    assert rows[0] == "apgd 383 263 120 12 17,500 3.2 s"
    assert rows[3] == "square(steps=5000, rescale=True) 78 0 78 – 17,500 3.2 s"
    assert "Each attack ran on the images that withstood the ones before." in Reader(text).text
    assert "first attack in the list that broke it" in read(figures()).text
    (short,) = suite().evaluations
    stages = (*short.cascade[:3], replace(short.cascade[3], unknown=5))
    assert "5 unknown" in read(figures(replace(short, cascade=stages))).text


def test_a_model_that_answers_by_chance_has_a_mean_and_a_deviation() -> None:
    text = read(by_chance()).text
    assert "21.51 % (1.02) under attack, 96.05 % (0.31) without" in text
    assert "fabt 30.00 % (1.00) 12.5 % 8.8 %" in text
    assert "worst attack for each image 21.51 % (1.02) 12.5 % 8.8 %" in text
    assert "5 tries 10 tries" in text
    assert "0.0 % 0.0 % to 52.2 % 25" in text and "100.0 % 47.8 % to 100.0 % 175" in text
    assert "Stochastic model" not in read(suite()).text
    assert text.count("right in most of 10 draws: quote this figure, with these words") == 1
    assert "of the images are still classified correctly in most of 10 draws; without" in text
    assert "One draw 21.5 % right in a single draw, another figure" in text
    assert "of 10 draws" not in read(suite()).text


def test_equal_attacks_share_the_mark_and_idle_ones_get_none() -> None:
    equal = figures(evaluation(attacks=[attack("a", 51), attack("b", 51), attack("c", 99)]))
    assert "a and b broke most: 332 each, of the 383" in read(equal).text
    idle = figures(evaluation(attacks=[attack("a", 383)], robust=rate(383)))
    page = read(idle)
    assert "No attack broke an image." in page.text
    assert "broke most" not in page.text


def test_what_went_wrong_is_loud_and_never_a_figure() -> None:
    text = rendered(broken_run(), pictures)
    page = Reader(text)
    assert page.text.index("must not be quoted") < page.text.index("Under attack")
    assert "W14 The model answered the same images differently." in page.text
    assert "Failed, which never counts as robust. MemoryError: no room" in page.text
    assert "fgsm failed: its missing images count as not attacked, never as robust." in page.text
    assert "has not finished" in page.text and "unfinished" in page.text
    row = re.search(r'<tr role="row" class="failed">.*?</tr>', text, re.S)
    assert row is not None and "%" not in row[0]


def test_an_incomplete_run_says_so_even_when_no_attack_does() -> None:
    assert "This run is not complete." in read(figures(complete=False)).text
    assert "This run is not complete." in fragment(figures(complete=False))
    assert "not complete" not in read(figures()).text


def test_a_failure_on_part_of_the_images_shows_what_was_finished() -> None:
    partly = attack("pgd", 51, failure="OSError: gone", complete=False)
    assert "On the 397 images it finished, the accuracy is 12.8 % [9.7, 16.5]." in (
        read(figures(evaluation(attacks=[partly]))).text
    )


def test_where_no_attack_finished_nothing_is_known() -> None:
    lost = attack("pgd", 51, accuracy=None, failure="OSError: x", complete=False)
    # Whatever the figure says: what was never attacked is not robust.
    page = read(figures(evaluation(attacks=[lost], robust=rate(383), gallery=[])))
    assert "No attack finished, so robustness is unknown" in page.text
    assert "unknown" in page.text
    assert "A stronger attack" not in page.text


def test_the_smallest_change_is_the_answer_where_there_is_no_budget() -> None:
    page = read(minimal_run())
    assert "The median smallest perturbation that breaks an image is 0.1 (linf)." in page.text
    assert "Never broken 11.8 %" in page.text
    assert "none: smallest perturbation" in page.text
    assert "each only on the images that withstood the ones before" in page.text
    assert "budget" not in re.findall(
        r'<text class="label (\w+)"', rendered(minimal_run(), pictures)
    )


def test_the_gallery_names_classes_confidences_and_what_it_was_misread_as() -> None:
    page = read(figures())
    assert "three classified as eight" in page.text
    assert "Confidence 99 % before, 71 % after." in page.text
    assert "perturbation ×4" in page.text
    assert len([i for i in page.all("img") if (i["src"] or "").startswith("data:image/png")]) == 24
    assert "2 more" in page.text  # six at once, the rest unfolds
    thousand = read(minimal_run()).text
    assert "class number 999, with its synonyms classified as class number 7" in thousand
    assert "Classified as class number 998, with its synonyms without an attack." in thousand


def test_no_confidence_is_told_where_the_model_tells_none() -> None:
    silent = item(0, clean_confidence=None, confidence=None)
    page = read(figures(evaluation(gallery=[silent])))
    assert "three classified as eight" in page.text
    assert "Confidence" not in page.text
    before = read(figures(evaluation(gallery=[replace(silent, clean_prediction=9)])))
    assert "Classified as nine without an attack." in before.text


def test_attacks_on_a_substitute_have_no_steps_on_the_model() -> None:
    attacks = [attack("pgd", 51, transfer=True), attack("mim", 60, transfer=False)]
    drawn = steps_chart(evaluation(attacks=attacks))
    assert drawn is not None and [curve.name for curve in drawn.chart.curves] == ["mim"]
    given = [replace(one, transfer=True) for one in attacks]
    assert "Accuracy against steps" not in read(figures(evaluation(attacks=given))).text
    assert "Accuracy against steps" in read(figures()).text


def test_broken_means_the_target_where_there_is_one() -> None:
    assert "classified correctly before, misclassified under this attack" in read(figures()).text
    aimed = replace(threat("linf:0.15 targeted:random", 0.15), goal="targeted:random")
    page = read(figures(evaluation(threat=aimed)))
    assert "classified correctly before, classified as the target under this attack" in page.text


def test_the_three_pictures_of_a_sample_are_in_order() -> None:
    shown = gallery([item(0)], pictures)[0]
    sources = [image["src"] for image in read(figures()).all("img")]
    assert sources[:3] == [shown.clean, shown.change, shown.adversarial]
    assert len(set(sources[:3])) == 3


def test_a_picture_that_cannot_be_read_does_not_lose_the_page() -> None:
    def none(_: Picture) -> Any:
        raise DataError("the record is damaged")

    text = Reader(rendered(figures(), none)).text
    assert "The images of sample 0 could not be read. DataError: the record is damaged" in text


def test_an_empty_evaluation_has_no_charts_and_no_pictures() -> None:
    page = read(CASES["empty"]())
    assert not page.all("svg") and not page.all("img")
    assert "No rule found a sign" in page.text


def test_the_data_of_a_chart_are_beside_it() -> None:
    page = read(figures())
    assert "pgd 0 96.5 [94.2, 98.1] 1 50.4 [45.3, 55.4]" in page.text
    assert "minimal(pgd(steps=20)) 0 96.0 [92.3, 98.3] 0.05 75.0 [68.4, 80.8]" in page.text


def test_several_evaluations_are_compared_first_and_linked() -> None:
    page = read(four())
    text = page.text
    assert text.index("At a glance") < text.index("Under attack,")
    head = text[: text.index("Under attack,")]
    for said in ("11.8 % [8.8, 15.4]", "19.4 %", "74.8 %", "82.4 %", "linf:8/255", "l2:0.5"):
        assert said in head
    assert [one["id"] for one in page.all("li") if "id" in one] == ["rule-W24"]
    assert page.text.count("The interval is 6.6 points wide.") == 1, "every rule once"
    cells = re.findall(r'<div class="cell">\s*<a href="(.*?)"', rendered(four(), pictures))
    assert cells == [f"#evaluation-{k}" for k in (1, 3, 2, 4)], "one row for each model"


def headings(text: str) -> list[tuple[str, str]]:
    """Level and text of every heading."""
    found = re.findall(r"<(h[1-6])[^>]*>(.*?)</h[1-6]>", text, re.S)
    return [(level, Reader(body).text) for level, body in found]


def test_several_evaluations_stand_by_threat_the_most_robust_first() -> None:
    text = rendered(eight(), pictures)
    found = [said for level, said in headings(text) if level in ("h2", "h3")]
    long = "path/to/a/deeply/nested/folder/of_models.py:make_the_network_of_tuesday(width=2)"
    order = ["zoo:digits-pgd-at", "zoo:digits-natural+bits(depth=2)", "zoo:digits-natural", long]
    assert found == [
        "At a glance",
        "Against linf:0.15",
        *order,
        "Against l2:1",
        *(order[k] for k in (0, 3, 1, 2)),
        "Warnings",
        "How to read this page",
        "Reproduce",
    ]
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>', text[: text.index("</table>")], re.S)
    assert [Reader(row).text for row in rows] == order


def test_one_of_many_evaluations_is_open_and_of_few_all() -> None:
    page = read(eight())
    folded = [d for d in page.all("details") if d.get("name") == "evaluation"]
    assert ["open" in one for one in folded] == [True] + [False] * 7
    assert not [a for a in page.all("article") if a.get("class") == "evaluation"]
    few = read(figures(*eight().evaluations[:3]))
    assert not [d for d in few.all("details") if d.get("name") == "evaluation"]
    assert [a["id"] for a in few.all("article")] == [f"evaluation-{k}" for k in (1, 2, 3)]


def test_the_place_of_a_link_is_inside_what_the_browser_unfolds() -> None:
    text = rendered(eight(), pictures)
    parts = re.split(r'<details class="evaluation"', text)[1:]
    for order, part in enumerate(parts, 1):
        summary, _, rest = part.partition("</summary>")
        assert "id=" not in summary
        assert rest.lstrip().startswith(f'<span class="place" id="evaluation-{order}"></span>')


@pytest.mark.parametrize("case", CASES)
def test_the_contents_lead_to_every_section_in_order(case: str) -> None:
    text = rendered(CASES[case](), pictures)
    nav = text[text.index("<nav") : text.index("</nav>")]
    links = re.findall(r'href="#([^"]*)"', nav)
    ids = [str(a["id"]) for _, a in Reader(text).tags if "id" in a]
    to = [link for link in links if link not in ("contents", "bar")]
    assert [one for one in ids if one in to] == to, "they stand as on the page"
    assert links[-2:] == ["contents", "bar"], "the bar opens the list, and closes it"
    assert to[-2:] == ["reading", "reproduce"]
    given = CASES[case]().evaluations
    if len(given) == 1:
        assert to[0] == "answer" and "evaluation-1-part-attacks" in to
    else:
        assert {f"evaluation-{k + 1}" for k in range(len(given))} < set(to)
        assert "74.8 %" in Reader(nav).text, "with the figure of each"


def test_a_name_is_broken_after_punctuation_but_a_number_is_not() -> None:
    text = rendered(figures(*eight().evaluations[:2]), pictures)
    assert "Against linf:<wbr>0.15" in text and "0.<wbr>" not in text
    assert "of_<wbr>models.<wbr>py:<wbr>make" in rendered(eight(), pictures)


def test_a_legend_names_the_models_of_the_charts_beside_it() -> None:
    text = rendered(eight(), pictures)
    legends = re.findall(r'<ul class="legend">(.*?)</ul>', text, re.S)
    linf, l2 = (re.findall(r"<li>(.*?)</li>", one, re.S) for one in legends)
    assert set(linf) == set(l2), "the same styles under both threats"
    names = [Reader(one).text for one in [*linf, *l2]]
    assert names == [e.model.name for e in ranked(eight().evaluations)]
    looks = re.findall(r"(?:stroke-dasharray=\"[^\"]*\" )?d=\"M0 5H34\"", legends[0])
    assert len(set(looks)) == 4, "they differ without colour, too"


def test_every_evaluation_is_reproduced_by_its_own_command() -> None:
    text = read(eight()).text
    for one in eight().evaluations:
        assert text.count(one.command) == 2, "in the list, and with the evaluation"
    command = figures().command
    assert read(figures(evaluation(command="another"))).text.count(command) == 1


def test_classes_are_listed_with_their_images_and_intervals() -> None:
    page = read(figures())
    assert "Least robust: nine, 0.0 %. Most robust: zero, 70.0 %." in page.text
    assert "zero 20 100.0 % 70.0 % [45.7, 88.1]" in page.text
    assert "nine 20 100.0 % 0.0 % [0.0, 16.8]" in page.text
    equal = [replace(one, robust=rate(0, 20)) for one in classes()]
    assert "Least robust" not in read(figures(evaluation(by_class=equal))).text
    assert "Accuracy by class" not in read(figures(evaluation(by_class=classes(1)))).text


def test_more_than_twenty_classes_are_folded_the_least_robust_first() -> None:
    def table(count: int) -> tuple[list[str], str]:
        text = rendered(figures(evaluation(by_class=classes(count))), pictures)
        part = text[text.index('id="evaluation-1-part-by_class"') :]
        body = part[part.index('<table class="classes"') : part.index("</table>")]
        rows = re.findall(r'<th scope="row">(.*?)</th>', body)
        return [Reader(row).text for row in rows], part[: part.index("<table")]

    rows, before = table(20)
    assert len(rows) == 20 and rows[0] == "zero" and "<details" not in before
    rows, before = table(21)
    assert len(rows) == 21 and rows[0] == "class 20" and "<details" in before
    rows, before = table(300)
    assert len(rows) == 100 and "100 of 300 classes, the least robust first" in before


def test_few_classes_have_a_matrix_and_many_the_most_frequent_pairs() -> None:
    text = rendered(figures(), pictures)
    matrix = text[text.index('<table class="confusion"') :]
    rows = re.findall(r"<tr><th scope=.row.>(.*?)</th>(.*?)</tr>", matrix[: matrix.index("</ta")])
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", body) for _, body in rows]
    assert [name for name, _ in rows] == list(DATA.class_names)
    assert [len(row) for row in cells] == [10] * 10
    counts = {(one.label, one.prediction): str(one.count) for one in confusion().pairs}
    for row in range(10):
        assert cells[row] == [counts.get((row, column), "") for column in range(10)]
    many = replace(MODEL, classes=13)
    page = read(figures(evaluation(model=many, confusion=confusion(13))))
    assert "The 13 most frequent of 13 pairs of classes." in page.text
    assert "zero one 13 one two 12" in page.text
    text = read(minimal_run()).text
    assert "The 15 most frequent of 200 pairs" in text
    assert "What broken images" not in read(figures(evaluation(confusion=None))).text


def test_a_picture_is_enlarged_by_a_control_of_its_own_without_being_stored_twice() -> None:
    text = rendered(figures(), pictures)
    zooms = re.findall(r'<details class="zoom[^>]*name="picture".*?</details>', text, re.S)
    assert len(zooms) == 8
    assert all(len(re.findall("<img", one.partition("</summary>")[0])) == 3 for one in zooms)
    assert text.count("<img") == 24


def test_a_table_that_may_be_wider_than_the_page_can_be_scrolled_by_keyboard() -> None:
    for make in CASES.values():
        for _, attributes in Reader(rendered(make(), pictures)).tags:
            if "scroll" in (attributes.get("class") or "").split():
                assert attributes["tabindex"] == "0" and attributes["role"] == "region"
                assert attributes["aria-label"]


def test_the_comparison_marks_what_must_not_be_quoted() -> None:
    first, second, *rest = four().evaluations
    second = replace(second, warnings=broken_run().evaluations[0].warnings)
    head = read(figures(first, second, *rest)).text
    said = "1 stop (not to be quoted): W14 different answers; 1 note: W24 precision"
    assert head.index(said) < head.index("do not quote") < head.index("Under attack,")
    assert "Not to be quoted: zoo:digits-natural against l2:0.5 At a glance" in head
    seen = "W14 stop Different answers The model answered the same images differently. "
    advised = "Make it deterministic. In zoo:digits-natural against l2:0.5."
    assert head.index(seen + advised) > head.index("Under attack,")
    assert head.count("Make it deterministic.") == 1


def test_a_warning_of_several_evaluations_says_of_which_its_sentence_is() -> None:
    first, second = (
        replace(one, warnings=(Finding("W05", f"'{name}' gained 2 points.", "More steps."),))
        for one, name in zip(four().evaluations[:2], ("pgd", "mim"), strict=True)
    )
    text = read(figures(first, second)).text
    seen = text.index("'pgd' gained") if "'pgd' gained" in text else text.index("pgd gained")
    assert text[:seen].rstrip().endswith(first.title)


def test_a_fragment_stands_alone() -> None:
    text = fragment(RunFigures.of(evaluation()))
    page = Reader(text)
    assert page.open == []
    assert not {"html", "body", "script", "img"} & {tag for tag, _ in page.tags}
    assert "11.8 %" in page.text and "pgd broke most" in page.text
    assert len(page.all("svg")) == 2


def test_the_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "report.html"
    assert write(figures(), pictures, path) == path
    before = path.read_text(encoding="utf-8")
    assert before == rendered(figures(), pictures)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for step in ("fsync", "replace"):
        with monkeypatch.context() as patch, pytest.raises(StoreError, match="is full"):
            patch.setattr(os, step, full)
            write(four(), pictures, path)
        assert path.read_text(encoding="utf-8") == before
        assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_long_curves_and_large_pictures_keep_the_page_small() -> None:
    x = [k / 10_000 for k in range(10_000)]
    value = tuple(1 - v for v in x)
    long: dict[str, Any] = {"x": tuple(x), "value": value, "low": value, "high": value}
    usual = evaluation()
    assert usual.eps_curve is not None
    given = evaluation(
        gallery=[item(k) for k in range(24)],
        steps_curve=[AttackCurve("square", **long, count=10_000)],
        eps_curve=replace(usual.eps_curve, **long),
    )
    text = rendered(figures(given), partial(pictures, shape=(3, 224, 224)))
    assert len(text) < 3_000_000
    assert "400 of 10,000 points are drawn and listed" in Reader(text).text


def test_the_smallest_changes_are_told_by_attack_and_together() -> None:
    page = read(smallest_run())
    titles = ("Smallest perturbations", "Images at the median size")
    assert all(title in page.text for title in titles)
    assert "First attack to break each image" not in page.text, (
        "the first that breaks it says little"
    )
    assert "Area to 0.947" in page.text and "from 0 to 0.947" in page.text
    assert "fabt 0.459 0.457 0.805 0.457 0 200 1.000" in page.text
    assert "infinite infinite infinite 0.507 250 150 0.877" in page.text
    assert "best of all for each image 0.459 0.457 0.805 0.457 0 383 1" in page.text
    assert (
        "fabt found the smallest perturbations overall, and the smallest of all for 200 of 383"
        in (page.text)
    )
    assert page.text.count("smallest perturbations") >= 3 and "broke most" not in page.text
    assert "in other norms l0 61, l1 2.43, linf 0.157" in page.text
    # One column for each round number of passes from the first success on.
    marks = "Attack 10 20 50 100 200 500 1,000 2,000 5,000 10,000 50,000 In all Passes in all fabt"
    assert f"{marks} 0.5" in page.text
    # What the whole run came to is no number of passes: it ends the row.
    assert "0.5 0.5 0.459 150.2 minimal(" in page.text
    before = " ".join(["0.5"] * 9)
    assert f"all, one after the other none {before} 0.46 0.459 20,500 None:" in page.text


def test_records_that_do_not_note_the_descent_of_all_are_shown() -> None:
    (given,) = smallest_run(2).evaluations
    assert given.distances is not None
    sizes = replace(given.distances, all=replace(given.distances.all, cost=None))
    page = read(figures(replace(given, distances=sizes)))
    assert "0.459 150.2 minimal(" in page.text and "one after the other" not in page.text


def test_each_attack_is_drawn_beside_the_best_of_all_and_cut() -> None:
    (figure,) = charts(smallest_run().evaluations[0])
    assert [c.name for c in figure.chart.curves][:2] == ["best of all", "fabt"]
    assert max(c.x[-1] for c in figure.chart.curves) <= 1.3 * 0.947
    assert figure.caption.endswith("Longer curves are cut.")
    assert figure.wide.count('class="band"') == 1, "that of the best of all"
    (alone,) = charts(smallest_run(1).evaluations[0])
    assert [c.name for c in alone.chart.curves] == ["fabt"]
    assert alone.wide.count('class="band"') == 1 and "cut" not in alone.caption


def test_autoattack_is_said_to_be_an_independent_implementation() -> None:
    text = read(suite()).text
    assert "An independent implementation of AutoAttack, not its authors' code." in text
    assert "FAB takes one forward pass fewer" in text and "Square draws windows" in text
    assert "independent" not in read(figures()).text


def test_query_based_attacks_show_queries_instead_of_passes() -> None:
    asked = tuple(AttackQueries(text, 383, 1234.5, 310.0, 200.0) for text in ("fgsm", "pgd", "mim"))
    limited = replace(threat("linf:0.15 score", 0.15), queries=500)
    text = read(figures(evaluation(queries=asked, threat=limited))).text
    assert "Queries per image" in text and "1,234 median 310" in text
    assert "at most 500 each" in text and "Passes per image" not in text
    mixed = read(figures(evaluation(queries=asked[:1]))).text
    assert "Queries per image" in mixed and "Passes per image" in mixed
    assert "Queries per image" not in read(figures()).text


def test_options_with_their_values_commands_and_quotes_are_code() -> None:
    shown = _prose("Use --suite standard, --count, besiege show W11, or `count`, see besiege.")
    for code in ("--suite standard", "--count", "besiege show W11", "count"):
        assert f'<code class="whole">{code}</code>' in shown
    assert shown.count("<code") == 4 and "`" not in shown


def test_a_suite_counts_what_an_attack_broke_first() -> None:
    (one,) = suite().evaluations
    assert [a.broken for a in one.attacks] == [stage.broken for stage in one.cascade]
    assert read(figures(one)).text.count("263") >= 2, "in the table of attacks and in the list"

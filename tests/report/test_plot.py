from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.report.sample import crowded, curve, eight, evaluation, four, threat

from besiege.metrics.attack_values import AttackCurve
from besiege.metrics.intervals import round_numbers
from besiege.report.charts import charts, together
from besiege.report.grouping import grouped
from besiege.report.plot import DRAWN, Chart, Curve, Mark, thinned

SPACE = "{http://www.w3.org/2000/svg}"


def drawn(chart: Chart, width: int = 720) -> ElementTree.Element:
    return ElementTree.fromstring(chart.svg(width))


def texts(svg: ElementTree.Element, kind: str) -> list[str]:
    return [t.text or "" for t in svg.iter(f"{SPACE}text") if t.get("class", "").startswith(kind)]


def corners(path: ElementTree.Element) -> np.ndarray:
    """The corners of a path of absolute commands, ``[corners, 2]``."""
    found = [(0.0, 0.0)]
    for command, text in re.findall(r"([MLHV])([-\d. ]+)", path.get("d") or ""):
        x, y = found[-1]
        numbers = [float(number) for number in text.split()]
        found.append(
            {"H": (numbers[0], y), "V": (x, numbers[0])}.get(command, (numbers[0], numbers[-1]))
        )
    return np.array(found[1:])


def falling(count: int, seed: int = 0) -> Curve:
    random = np.random.default_rng(seed)
    x = np.sort(random.exponential(size=count)).tolist()
    value = np.linspace(1, 0, count).tolist()
    return Curve("c", x, value, value, value)


@pytest.mark.parametrize("width", [720, 340])
def test_the_drawing_is_well_formed_and_names_are_escaped(width: int) -> None:
    name = "<script>&\"'"
    one = Curve(name, [0, 1], [1, 0.5], [0.9, 0.4], [1, 0.6])
    other = Curve("b", [0, 2], [1, 0.4], [0.9, 0.4], [1, 0.6])
    svg = drawn(Chart("t<&", [one, other], "x", "step"), width)
    assert svg.get("aria-label") == "t<&"
    assert name in texts(svg, "name")
    assert not list(svg.iter(f"{SPACE}script"))


def test_every_point_says_what_it_is_and_can_be_reached_by_keyboard() -> None:
    svg = drawn(charts(evaluation())[0].chart)
    points = [g for g in svg.iter(f"{SPACE}g") if g.get("class") == "point"]
    titles = [p.findtext(f"{SPACE}title") for p in points]
    assert "pgd, step 1: 50.4 % [45.3, 55.4]" in titles
    assert all(titles) and all(p.get("tabindex") == "0" for p in points)


def test_the_budget_axis_is_labelled_as_the_budget_was_written() -> None:
    given = evaluation(threat=threat("linf:8/255", 8 / 255, "8/255"))
    assert given.eps_curve is not None
    x = tuple(k / 255 for k in (0, 2, 4, 8, 16))
    given = replace(given, eps_curve=replace(given.eps_curve, x=x, median=4 / 255))
    svg = drawn(charts(given)[1].chart)
    assert "2/255" in texts(svg, "tick")
    assert texts(svg, "label budget") == ["budget 8/255"]
    assert texts(svg, "label median") == ["median 4/255"]


def test_a_step_curve_holds_its_value_until_the_next_point() -> None:
    one = Curve("c", [0, 1, 2], [1, 0.5, 0], [1, 0.5, 0], [1, 0.5, 0])
    svg = drawn(Chart("t", [one], "x", "at", step=True))
    line = next(p for p in svg.iter(f"{SPACE}path") if p.get("class") == "line")
    # Every move is along one axis, and down comes after right.
    moves = np.diff(corners(line), axis=0)
    assert len(moves) == 4
    assert np.all((moves == 0).sum(1) == 1)
    assert moves[0, 1] == 0 and moves[1, 0] == 0


def test_a_share_that_is_proved_up_to_a_size_is_drawn_up_to_it_only() -> None:
    """Between two sizes only the share of the larger one is proved, and nothing after the last."""
    low, high = [1.0, 0.5, 0.25], [1.0, 0.75, 0.5]
    upper = Curve("withstood", [0, 1, 2], high, low, high, back=("low",))
    lower = Curve("proved", [0, 1, 2], low, low, low, back=("value", "low", "high"))
    marks = [Mark(2, "budget 2")]  # which leaves room after the last point
    svg = drawn(Chart("t", [upper, lower], "x", "size", True, None, marks, banded=1))
    first, second = (corners(p) for p in svg.iter(f"{SPACE}path") if p.get("class") == "line")
    band = corners(next(p for p in svg.iter(f"{SPACE}path") if p.get("class") == "band"))
    moves = np.diff(second, axis=0)
    moves = moves[np.abs(moves).sum(1) > 0]
    assert moves[0, 0] == 0 < moves[0, 1], "it falls as soon as the size is larger"
    assert second[-1, 0] < first[-1, 0] and band[:, 0].max() == second[-1, 0]
    assert {tuple(one) for one in second} <= {tuple(one) for one in band}, "the gap ends at it"


@pytest.mark.parametrize("width", [720, 340])
@pytest.mark.parametrize("places", [(0.5, 0.51), (0.5, 0.6), (0.01, 0.02), (0.97, 1.0), (0.5, 0.5)])
def test_marks_that_are_close_have_labels_beside_each_others_lines(
    places: tuple[float, float], width: int
) -> None:
    one = Curve("c", [0, 1], [1, 0], [1, 0], [1, 0])
    marks = [Mark(places[0], "budget 0.5123"), Mark(places[1], "median 0.5123", "median")]
    svg = drawn(Chart("t", [one], "x", "at", step=True, marks=marks), width)
    texts = [t for t in svg.iter(f"{SPACE}text") if "label" in (t.get("class") or "")]
    lines = [p for p in svg.iter(f"{SPACE}path") if "mark" in (p.get("class") or "")]
    half = 0.5 * 0.6 * 12 * len("median 0.5123")
    spots = {
        (t.get("class") or "").split()[1]: (float(t.get("x", 0)), float(t.get("y", 0)))
        for t in texts
    }
    assert len(spots) == 2
    (x1, y1), (x2, y2) = spots.values()
    assert abs(y1 - y2) > 10 or abs(x1 - x2) >= 2 * half
    for line in lines:
        found = re.findall(r"([\d.]+) ([\d.]+)", line.get("d") or "")
        x, top = map(float, found[0])
        for kind, (middle, base) in spots.items():
            other = kind not in (line.get("class") or "")
            if other and top < base - 4 and places[0] != places[1]:
                assert abs(x - middle) >= half, "a line runs through the other's label"


@pytest.mark.parametrize("width", [720, 340])
def test_all_that_is_drawn_lies_inside_the_drawing(width: int) -> None:
    for figure in [*charts(evaluation()), *charts(crowded().evaluations[0])]:
        svg = drawn(figure.chart, width)
        _, _, wide, high = map(float, (svg.get("viewBox") or "").split())
        assert wide == width
        for path in svg.iter(f"{SPACE}path"):
            for x, y in corners(path):
                assert 0 <= x <= wide and 0 <= y <= high


def test_curves_differ_by_more_than_colour() -> None:
    svg = drawn(charts(crowded().evaluations[0])[0].chart)
    lines = [p for p in svg.iter(f"{SPACE}path") if p.get("class") == "line"]
    looks = {(p.get("style"), p.get("stroke-dasharray")) for p in lines}
    assert len(looks) == 8
    assert len({p.get("stroke-dasharray") for p in lines[:8]}) > 3


def looks(svg: ElementTree.Element) -> dict[str, tuple[str | None, str | None]]:
    """Colour and dash of each curve, by the name that its points give."""
    lines = [p for p in svg.iter(f"{SPACE}path") if p.get("class") == "line"]
    series = [g for g in svg.iter(f"{SPACE}g") if g.get("class") == "series"]
    names = [(g.findtext(f".//{SPACE}title") or "").rpartition(", ")[0] for g in series]
    styles = [(p.get("style"), p.get("stroke-dasharray")) for p in lines]
    return dict(zip([name.rpartition(", ")[0] for name in names], styles, strict=True))


def test_a_model_has_one_colour_and_dash_in_all_charts_of_the_page() -> None:
    groups = grouped(eight().evaluations)
    drawings = [drawn(figure.chart) for group in groups for figure in together(group.members)]
    assert len(drawings) == 4, "two threats, each against steps and against sizes"
    first = looks(drawings[0])
    assert set(first) == {one.model.name for one in eight().evaluations}
    assert len(set(first.values())) == 4
    for svg in drawings[1:]:
        assert looks(svg) == first
        assert not texts(svg, "name"), "the legend beside it names them"


def test_the_chart_of_all_models_has_the_strongest_attack_of_each() -> None:
    first, second = (one for one in four().evaluations if one.threat.text == "l2:0.5")
    one = replace(first, steps_curve=first.steps_curve[::-1])
    (group,) = grouped([one, replace(second, steps_curve=second.steps_curve[1:], eps_curve=None)])
    (steps,) = together(group.members)
    by_name = {c.name: c.value for c in steps.chart.curves}
    assert by_name[first.model.name] == first.steps_curve[0].value, "pgd broke more than mim"
    assert by_name[second.model.name] == second.steps_curve[1].value
    assert "These are mim and pgd" in steps.caption
    flat = [replace(c, value=(0.1,) * len(c.x)) for c in first.steps_curve]
    (group,) = grouped([replace(e, steps_curve=tuple(flat)) for e in (first, second)])
    assert [one.title for one in together(group.members)] == ["Accuracy against perturbation size"]
    alone = grouped([first])
    assert together(alone[0].members) == []


def test_a_model_without_a_curve_is_named_beside_the_chart() -> None:
    *some, last = (one for one in eight().evaluations if one.threat.text == "l2:1")
    (group,) = grouped([*some, replace(last, eps_curve=None)])
    sizes = together(group.members)[0]
    assert len(sizes.chart.curves) == 3
    assert sizes.caption.endswith(f"No curve: {last.model.name}.")


def test_nothing_to_draw_gives_no_chart() -> None:
    assert charts(evaluation(steps_curve=[], eps_curve=None)) == []
    empty = curve([], [], attack="pgd")
    assert charts(evaluation(steps_curve=[empty], eps_curve=None)) == []
    assert Chart("t", [], "x", "at").svg() == ""


def test_one_point_is_drawn() -> None:
    one = Curve("c", [0], [0.5], [0.4], [0.6])
    assert len(texts(drawn(Chart("t", [one], "x", "at")), "readout")) == 1


@pytest.mark.parametrize("count", [401, 10_000])
def test_thinning_keeps_the_shape(count: int) -> None:
    whole = falling(count)
    few = thinned(whole)
    assert len(few) <= DRAWN
    assert (few.x[0], few.x[-1]) == (whole.x[0], whole.x[-1])
    grid = np.linspace(0, whole.x[-1], 5000)

    def held(c: Curve) -> np.ndarray:
        return np.asarray(c.value)[np.clip(np.searchsorted(c.x, grid, "right") - 1, 0, None)]

    # As an area the two differ by less than a line is thick.
    assert np.abs(held(whole) - held(few)).mean() < 0.004


def test_thinning_keeps_a_spike_and_drops_what_lies_flat() -> None:
    value = [0.5] * 5000
    value[2500] = 1.0
    spike = Curve("c", list(range(5000)), value, value, value)
    few = thinned(spike)
    assert max(few.value) == 1.0 and few.x[list(few.value).index(1.0)] == 2500
    assert len(few) < 10


def test_thinning_keeps_the_extremes_of_a_restless_curve() -> None:
    random = np.random.default_rng(1)
    value = random.uniform(0.4, 0.6, 5000)
    value[1234], value[4321] = 0.9, 0.1
    restless = Curve("c", list(range(5000)), *([value.tolist()] * 3))
    few = thinned(restless)
    assert len(few) <= DRAWN
    assert (few.x[int(np.argmax(few.value))], max(few.value)) == (1234, 0.9)
    assert (few.x[int(np.argmin(few.value))], min(few.value)) == (4321, 0.1)


def test_a_short_curve_is_left_alone() -> None:
    short = falling(DRAWN)
    assert thinned(short) is short


@pytest.mark.parametrize("high", [0.0137, 0.21, 1.0, 7.3, 40.0, 1234.0])
def test_ticks_are_round_and_inside(high: float) -> None:
    ticks = round_numbers(0, high, 6)
    assert ticks[0] == 0 and ticks[-1] <= high * (1 + 1e-9)
    assert 3 <= len(ticks) <= 8
    step = ticks[1] - ticks[0]
    assert f"{step:.3g}".strip("0.")[0] in "125"
    assert np.allclose(np.diff(ticks), step)


def test_a_short_curve_beside_a_very_long_one_is_drawn_by_powers_of_ten() -> None:
    value = (1.0, 0.5, 0.4)
    curves = [AttackCurve(name, (0, 1, end), value, value, value, 10) for name, end in ENDS]
    chart = charts(evaluation(steps_curve=curves))[0].chart
    assert chart.by_tens and "logarithmic" in chart.x_title
    svg = drawn(chart)
    assert [t for t in texts(svg, "tick") if t in ("1", "10", "1,000")] == ["1", "10", "1,000"]
    assert "square, step 5,000: 40.0 % [40.0, 40.0]" in ElementTree.tostring(svg, "unicode")
    assert not charts(evaluation(steps_curve=curves[:1]))[0].chart.by_tens


ENDS = (("apgd", 100), ("square", 5000))

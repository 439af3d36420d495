"""Scatter plots and heat maps of studies: every name and number is there."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from besiege.bench.display import HeatMap, Ruled, Scatter, Spot
from besiege.report.site.scatter import heat_rows, in_words, plotted, visible

NAMES = [f"network-{k}" for k in range(18)]


def scatter(**given: Any) -> Scatter:
    spots = tuple(Spot(n, 70.0 + k, 0.1 + 0.001 * k, 0.1, 0.11) for k, n in enumerate(NAMES))
    words = {"title": "t", "x_title": "clean accuracy, %", "y_title": "linf", "spots": spots}
    return Scatter(**{**words, **given})


@pytest.mark.parametrize("width", [900, 340])
def test_18_names_stand_apart(width: int) -> None:
    svg = plotted(scatter(), {name: k for k, name in enumerate(NAMES)}, width)
    heights = sorted(
        float(y) for y in re.findall(r'<text x="[\d.]+" y="([\d.]+)">network-\d+</text>', svg)
    )
    assert len(heights) == 18 and min(np.diff(heights)) >= 16
    size = re.search(r'viewBox="0 0 (\d+) (\d+)"', svg)
    assert size is not None and int(size[1]) == width and heights[-1] < int(size[2])
    assert all(f"<title>{name}: " in svg for name in NAMES)


def test_only_lines_that_are_drawn_are_named() -> None:
    fit = Ruled("fit", "fit", ((70.0, 0.1), (80.0, 0.11)))
    far = Ruled("published", "printed", ((70.0, -2.0), (80.0, -1.0)))
    panel = scatter(lines=(fit, far), front=("network-0", "network-17"))
    assert [one.label for one in visible(panel)] == ["fit"]
    svg = plotted(panel, {}, 900)
    assert svg.count('class="ruled fit"') == 1 and "printed" not in svg
    assert svg.count('class="front"') == 1


def test_logarithmic_axes_and_no_models() -> None:
    sizes = zip("abc", (3, 5, 6), strict=True)
    spots = tuple(Spot(name, 10.0**k, 50.0, 40.0, 60.0) for name, k in sizes)
    svg = plotted(scatter(spots=spots, by_tens=True, y_title="success, %"), {}, 900)
    assert all(f">{text}</text>" in svg for text in ("1 k", "100 k", "1 M"))
    xs = [float(x) for x in re.findall(r'<path class="cross" d="M([\d.]+) ', svg)]
    assert xs[1] - xs[0] == pytest.approx(2 * (xs[2] - xs[1]), abs=0.2)
    assert plotted(scatter(spots=()), {}, 900) == ""
    assert in_words(scatter(), spots[0]) == "a: clean accuracy, % 1,000, linf 50 [40, 60]"


def test_a_heat_map_has_numbers_words_and_a_colour() -> None:
    value = np.array([[1.0, 0.25], [np.nan, 0.5]])
    words = (("a to a", "a <to> b"), ("b to a", "b to b"))
    panel = HeatMap("t", ("a", "b"), ("a", "b"), "corner", value, words, np.array([0.25, np.nan]))
    first, second = (row["cells"] for row in heat_rows(panel))
    assert '<td class="low" style="--v:100" title="a to a">100</td>' in first
    assert '<td style="--v:25" title="a &lt;to&gt; b">25</td>' in first
    assert first.count("<td") == 3 and second.count('class="nothing"') == 2
    other = HeatMap("t", ("a", "b"), ("c", "d"), "corner", value, words)
    assert "low" not in heat_rows(other)[0]["cells"]


def test_a_heat_map_of_18_models_takes_less_than_60_kb() -> None:
    names, more = tuple(NAMES), "47.2 % of 930 that it classifies correctly, q 0.012"
    words = tuple(tuple(f"{a} to {b}: {more}" for b in names) for a in names)
    panel = HeatMap("t", names, names, "corner", np.full((18, 18), 0.5), words, np.full(18, 0.5))
    assert sum(len(row["cells"]) + len(row["name"]) for row in heat_rows(panel)) < 60_000

"""Scatter plots and heat maps of studies: names beside the points, numbers in the cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import Any

from besiege.bench.display import HeatMap, Ruled, Scatter, Spot
from besiege.metrics.intervals import round_numbers
from besiege.report.drawing import apart
from besiege.report.formats import number
from besiege.report.site.frontier import EM, GAP
from besiege.report.site.view import EMPTY, shade
from besiege.report.strokes import symbol

_LEFT, _TOP, _BELOW = 58.0, 30.0, 46.0
Place = Callable[[float], float]


def plotted(panel: Scatter, styles: Mapping[str, int], width: int) -> str:
    """The drawing; names stand in a column at the right, where none covers another."""
    spots = panel.spots
    if not spots:
        return ""
    room = min(max(len(one.model) for one in spots) * EM + 14, 0.42 * width)
    right, top = width - room - 16, _TOP
    bottom = top + max(300.0, GAP * (len(spots) + 1))
    x, y = _along(panel, right), _up(panel, bottom)
    parts = [*_axes(panel, x, y, right, bottom)]
    by_name = {one.model: one for one in spots}
    chain = sorted((by_name[name] for name in panel.front), key=lambda one: (one.x, -one.y))
    if chain:
        line = "L".join(f"{x(one.x):.1f} {y(one.y):.1f}" for one in chain)
        parts.append(f'<path class="front" d="M{line}"/>')
    for ruled in visible(panel):
        inside = _inside(panel, ruled)
        corners = "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in inside)
        about = f"{ruled.label}: {number(inside[0][1])} to {number(inside[-1][1])}"
        title = f"<title>{escape(about)}</title>"
        parts.append(f'<path class="ruled {ruled.kind}" d="M{corners}">{title}</path>')
    heights = apart([y(one.y) for one in spots], GAP, top + 6, bottom)
    for one, height in zip(spots, heights, strict=True):
        parts.append(_spot(panel, one, styles.get(one.model, 0), x, y, right, height, width))
    about = f"{panel.title}: {panel.y_title} against {panel.x_title}"
    return (
        f'<svg class="scatter" role="img" aria-label="{escape(about)}" '
        f'viewBox="0 0 {width} {bottom + _BELOW:.0f}">{"".join(parts)}</svg>'
    )


def visible(panel: Scatter) -> list[Ruled]:
    """The lines of which a part is drawn: a published one may be far from these models."""
    return [one for one in panel.lines if panel.spots and len(_inside(panel, one)) > 1]


def _inside(panel: Scatter, ruled: Ruled) -> list[tuple[float, float]]:
    return [(a, b) for a, b in ruled.corners if 0 <= b <= _ceiling(panel)]


def _spot(
    panel: Scatter,
    one: Spot,
    style: int,
    x: Place,
    y: Place,
    right: float,
    height: float,
    width: int,
) -> str:
    at, up = x(one.x), y(one.y)
    most = max(int((width - right - 14) / EM), 4)
    name = one.model if len(one.model) <= most else one.model[: most - 1] + "…"
    cross = f"M{at:.1f} {y(one.low):.1f}V{y(one.high):.1f}" if one.high > one.low else ""
    return (
        f'<g class="m m{style}"><title>{escape(in_words(panel, one))}</title>'
        f'<path class="cross" d="{cross}"/><path class="lead" d="M{at:.1f} {up:.1f}'
        f'L{right + 4:.1f} {height:.1f}"/>{symbol(style, at, up)}'
        f'<text x="{right + 8:.1f}" y="{height + 4:.1f}">{escape(name)}</text></g>'
    )


def in_words(panel: Scatter, one: Spot) -> str:
    """A model of a plot in words."""
    ends = f" [{number(one.low)}, {number(one.high)}]" if one.high > one.low else ""
    return f"{one.model}: {panel.x_title} {number(one.x)}, {panel.y_title} {number(one.y)}{ends}"


def _ceiling(panel: Scatter) -> float:
    if panel.y_title.endswith("%"):
        return 100.0
    corners = [b for line in panel.lines if line.kind != "printed" for _, b in line.corners]
    return 1.1 * max([one.high for one in panel.spots] + corners) or 1.0


def _range(panel: Scatter) -> tuple[float, float]:
    xs = [one.x for one in panel.spots]
    low, high = min(xs), max(xs)
    if panel.by_tens:
        return low / 1.5, high * 1.5
    pad = 0.06 * (high - low) or 1.0
    return low - pad, high + pad


def _along(panel: Scatter, right: float) -> Place:
    low, high = _range(panel)

    def place(value: float) -> float:
        if panel.by_tens:
            part = math.log(value / low) / math.log(high / low)
        else:
            part = (value - low) / (high - low)
        return _LEFT + part * (right - _LEFT)

    return place


def _up(panel: Scatter, bottom: float) -> Place:
    ceiling = _ceiling(panel)
    return lambda value: bottom - min(value / ceiling, 1.0) * (bottom - _TOP)


def _axes(panel: Scatter, x: Place, y: Place, right: float, bottom: float) -> Iterator[str]:
    for tick in round_numbers(0, _ceiling(panel), 5):
        yield f'<path class="grid" d="M{_LEFT} {y(tick):.1f}H{right:.1f}"/>'
        yield f'<text class="e" x="{_LEFT - 6}" y="{y(tick) + 4:.1f}">{number(tick)}</text>'
    for tick in _ticks(panel, right < 400):
        yield f'<path class="grid" d="M{x(tick):.1f} {_TOP}V{bottom:.1f}"/>'
        text = _count(tick) if panel.by_tens else number(tick)
        yield f'<text class="c" x="{x(tick):.1f}" y="{bottom + 16:.1f}">{text}</text>'
    middle = (_LEFT + right) / 2
    name = panel.x_title + (", logarithmic" if panel.by_tens else "")
    yield f'<text class="c t" x="{middle:.1f}" y="{bottom + 36:.1f}">{escape(name)}</text>'
    yield f'<text class="t" x="4" y="14">{escape(panel.y_title)}</text>'


def _ticks(panel: Scatter, narrow: bool) -> list[float]:
    low, high = _range(panel)
    if not panel.by_tens:
        return round_numbers(low, high, 3 if narrow else 6)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [m * 10.0**k for k in powers for m in (1, 3) if low <= m * 10.0**k <= high]
    return found[:: 2 if narrow and len(found) > 3 else 1]


def _count(value: float) -> str:
    for unit, word in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= unit:
            return f"{value / unit:g}{word}"
    return f"{value:g}"


def heat_rows(panel: HeatMap) -> list[dict[str, Any]]:
    """The rows of a heat map: their names, and the cells as HTML."""
    square = panel.rows == panel.columns and panel.means is not None
    rows = []
    for r, name in enumerate(panel.rows):
        values, words = panel.value[r], panel.words[r]
        cells = [
            shade(float(v), f"{100 * v:.0f}", "", square and r == c, escape(words[c]))
            if math.isfinite(v)
            else EMPTY
            for c, v in enumerate(values)
        ]
        mean = None if panel.means is None else float(panel.means[r])
        if mean is not None:
            cells.append(shade(mean, f"{100 * mean:.0f}") if math.isfinite(mean) else EMPTY)
        rows.append({"name": name, "cells": "".join(cells)})
    return rows

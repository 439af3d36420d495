"""Small multiples: one compact drawing for the curves of all models under one attack.

Lines are rounded to whole pixels and colours come from classes, because a page has many of these
drawings. A title holds the values of each line in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

import numpy as np

from besiege.bench.sweeps import Line, Sweep
from besiege.metrics.intervals import round_numbers
from besiege.metrics.outcomes import Numbers
from besiege.report.formats import distance, number
from besiege.report.strokes import path

WIDE, HIGH = 330, 212
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 318, 12, 168
_COARSE = 9
"""Pixels between the corners of a band."""


def panel(sweep: Sweep, styles: Mapping[str, int], unit: int | None, eps: float | None) -> str:
    """The drawing of one sweep as SVG; a mark shows the budget `eps`."""
    high = _high(sweep)
    parts = [*_axes(sweep, unit, high)]
    if eps is not None and sweep.axis == "size" and eps <= sweep.end:
        x = _x(eps, sweep)
        parts.append(f'<path class="mark" d="M{x} {_TOP}V{_BOTTOM}"/>')
    for line in sweep.lines:
        parts.append(_drawn(line, sweep, styles[line.model], unit, high))
    title = f"{sweep.attack}: {_Y[sweep.measure]} against {_X[sweep.axis]}"
    return (
        f'<svg class="panel" role="img" aria-label="{escape(title)}" '
        f'viewBox="0 0 {WIDE} {HIGH}">{"".join(parts)}</svg>'
    )


_X = {"size": "perturbation size", "steps": "steps", "queries": "queries", "passes": "passes"}
_Y = {"accuracy": "accuracy", "success": "success rate", "size": "median size"}


def _high(sweep: Sweep) -> float:
    if sweep.measure != "size":
        return 1.0
    return 1.05 * max(float(line.value.max(initial=0.0)) for line in sweep.lines) or 1.0


def _across(values: Numbers, sweep: Sweep) -> Numbers:
    """Whole pixels from the left."""
    if sweep.axis == "passes":  # searches of very different lengths
        part = np.log10(1 + values) / np.log10(1 + sweep.end)
    else:
        part = values / sweep.end
    found: Numbers = np.rint(_LEFT + np.minimum(part, 1.0) * (_RIGHT - _LEFT))
    return found


def _down(values: Numbers, high: float) -> Numbers:
    """Whole pixels from the top."""
    return np.rint(_BOTTOM - values / high * (_BOTTOM - _TOP))


def _x(value: float, sweep: Sweep) -> int:
    return int(_across(np.array(value), sweep))


def _y(value: float, high: float) -> int:
    return int(_down(np.array(value), high))


def _axes(sweep: Sweep, unit: int | None, high: float) -> Iterator[str]:
    ticks = [0.0, 0.25, 0.5, 0.75, 1.0] if sweep.measure != "size" else round_numbers(0, high, 4)
    grid = "".join(f"M{_LEFT} {_y(tick, high)}H{_RIGHT}" for tick in ticks if tick)
    yield f'<path class="grid" d="{grid}"/><path class="axis" d="M{_LEFT} {_BOTTOM}H{_RIGHT}"/>'
    for tick in ticks:
        text = number(tick) if sweep.measure == "size" else f"{100 * tick:.0f}"
        yield f'<text class="e" x="{_LEFT - 6}" y="{_y(tick, high) + 4}">{text}</text>'
    scale = (unit if sweep.axis == "size" else None) or 1
    if sweep.axis == "passes":
        marks = [0.0, *(10.0**k for k in range(1, 1 + int(np.log10(1 + sweep.end))))]
    else:
        marks = round_numbers(0, sweep.end * scale, 4)
    for mark in marks:
        x = _x(mark / scale, sweep)
        yield f'<text class="c" x="{x}" y="{_BOTTOM + 16}">{number(mark)}</text>'
    name = _X[sweep.axis] + (f" / {scale}" if scale != 1 else "")
    name += ", logarithmic" if sweep.axis == "passes" else ""
    yield f'<text class="c t" x="{(_LEFT + _RIGHT) // 2}" y="{HIGH - 8}">{name}</text>'


def _drawn(line: Line, sweep: Sweep, style: int, unit: int | None, high: float) -> str:
    corners = _corners(line, line.x, line.value, sweep, high)
    band = ""
    if sweep.measure != "size":
        upper = _thin(_corners(line, line.at, line.high, sweep, high))
        lower = _thin(_corners(line, line.at, line.low, sweep, high))
        band = f'<path class="b" d="{_short([*upper, *reversed(lower)])}Z"/>'
    title = escape(_words(line, sweep, unit))
    return (
        f'<g class="m m{style}"><title>{title}</title>{band}'
        f'<path class="l" d="{_short(corners)}"/></g>'
    )


def _corners(
    line: Line, points: Numbers, column: Numbers, sweep: Sweep, high: float
) -> list[tuple[int, int]]:
    """The corners of a line in whole pixels; the last value of each column of pixels counts."""
    inside = points <= sweep.end
    x, y = _across(points[inside], sweep), _down(column[inside], high)
    last = np.append(x[1:] != x[:-1], True)
    x, y = x[last], y[last]
    if not line.joined:
        end = _RIGHT if sweep.axis == "size" else x[-1]
        rises = np.append(True, y[1:] != y[:-1])  # a flat stretch is one command
        x, y = np.append(x[rises].repeat(2)[1:], end), y[rises].repeat(2)
    return [*zip(x.astype(int).tolist(), y.astype(int).tolist(), strict=True)]


def _thin(corners: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Few corners of a band, its ends included."""
    kept = [corners[0]]
    for corner in corners[1:-1]:
        if corner[0] - kept[-1][0] >= _COARSE:
            kept.append(corner)
    return [*kept, corners[-1]]


def _short(corners: Sequence[tuple[int, int]]) -> str:
    return path(corners).replace(".0", "")


def _words(line: Line, sweep: Sweep, unit: int | None) -> str:
    """A line in words: where it starts and ends, its median and its area."""
    if sweep.measure == "size":
        return f"{line.model}: median {number(line.value[-1])} after {number(line.x[-1])} passes"
    kind = "images" if sweep.measure == "accuracy" else "correctly classified images"
    text = f"{line.model}: {100 * line.value[0]:.1f} % at first, {100 * line.value[-1]:.1f} % at "
    text += f"the end, of {line.count:,} {kind}"
    if line.median is not None and line.area is not None:
        text += f"; median {distance(line.median, unit)}, area {distance(line.area, unit)} up to "
        text += distance(sweep.end, unit)
    return text

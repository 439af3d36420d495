"""The layout of a chart: axes, curves, marks and names that do not overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, log10
from typing import TYPE_CHECKING

from besiege.metrics.intervals import round_numbers
from besiege.report.formats import number
from besiege.report.strokes import colour, path, segment, stroke, symbol, text_at

if TYPE_CHECKING:
    from besiege.report.plot import Chart, Curve, Mark

BANDS = 3
"""Largest number of curves whose intervals are drawn: more would cover each other."""

_EM = 12.0  # font size, in units of the drawing
_GAP = 26.0  # between points that can be reached
_GLYPH = 0.6  # upper estimate of the mean width of a letter, so that labels do not overlap


class Drawing:
    """The layout of one chart at one width."""

    def __init__(self, chart: Chart, curves: Sequence[Curve], width: int) -> None:
        self.chart, self.curves, self.width = chart, curves, width
        self.styles = [
            order if curve.style is None else curve.style for order, curve in enumerate(curves)
        ]
        longest = max(_span(curve.name) for curve in curves)
        # Names are at the ends of their curves if there is room, else in rows above.
        named = chart.named and len(curves) > 1
        self.direct = named and len(curves) <= 6 and width >= 560
        self.rows = self._legend_rows() if named and not self.direct else []
        self.left = 44.0
        self.right = width - (min(longest, 170.0) + 22 if self.direct else 16.0)
        self.x_low = min(0.0, *(curve.x[0] for curve in curves))
        ends = [curve.x[-1] for curve in curves] + [mark.x for mark in chart.marks]
        self.x_high = max(ends) if max(ends) > self.x_low else self.x_low + 1.0
        if any(mark.x >= self.x_high for mark in chart.marks):
            self.x_high += 0.05 * (self.x_high - self.x_low)
        self.labels = self._mark_labels()
        floors = 1 + max((row for *_, row in self.labels), default=-1)
        self.top = 30.0 + 20 * len(self.rows) + 17 * floors
        self.bottom = self.top + (230.0 if width >= 560 else 200.0)
        self.height = self.bottom + 46

    def x(self, value: float) -> float:
        low, high = self.x_low, self.x_high
        if self.chart.by_tens:
            low, value, high = (log10(1.0 + v) for v in (low, value, high))
        part = (value - low) / (high - low)
        return self.left + part * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - value * (self.bottom - self.top)

    def svg(self) -> str:
        parts = [*self._grid(), *self._marks()]
        # Where there are many curves, only the first ones have a band.
        banded = len(self.curves) if len(self.curves) <= BANDS else self.chart.banded
        banded = banded if self.chart.sure else 0
        styled = [*zip(self.styles, self.curves, strict=True)]
        parts += [self._band(style, curve) for style, curve in styled[:banded]]
        parts += [self._line(style, curve) for style, curve in styled]
        parts += [self._points(style, curve) for style, curve in styled]
        parts += self._names()
        return (
            f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" role="group" '
            f'aria-label="{escape(self.chart.title)}" '
            f'viewBox="0 0 {self.width} {self.height:.0f}" '
            f'font-family="system-ui, sans-serif" font-size="{_EM:.0f}" fill="currentColor">'
            + "".join(parts)
            + "</svg>"
        )

    def _grid(self) -> Iterator[str]:
        for share in (0.0, 0.25, 0.5, 0.75, 1.0):
            y = self.y(share)
            yield segment(self.left, y, self.right, y, "axis" if share == 0 else "grid")
            yield text_at(self.left - 8, y + 4, f"{100 * share:.0f}", "tick", "end")
        scale = self.chart.unit or 1
        room = (self.right - self.left) / 74
        ticks = round_numbers(self.x_low * scale, self.x_high * scale, max(2, int(room)))
        if self.chart.by_tens:
            ticks = [0.0, *(10.0**k for k in range(ceil(log10(1.0 + self.x_high))))]
        for tick in ticks:
            x = self.x(tick / scale)
            text = f"{number(tick)}/{scale}" if scale != 1 and tick else number(tick)
            yield segment(x, self.bottom, x, self.bottom + 4, "axis")
            half = _span(text) / 2
            yield text_at(min(x, self.width - half), self.bottom + 18, text, "tick", "middle")
        middle = (self.left + self.right) / 2
        yield text_at(middle, self.bottom + 38, self.chart.x_title, "title", "middle")
        yield text_at(4, 14, self.chart.y_title, "title", "start")
        if self.chart.diagonal:
            yield segment(self.left, self.bottom, self.right, self.top, "mark chance")

    def _mark_labels(self) -> list[tuple[Mark, float, int]]:
        """Each mark with the middle and the row of its label, so that labels do not overlap."""
        marks = sorted(self.chart.marks, key=lambda m: m.x)
        halves = [_span(mark.label) / 2 + 5 for mark in marks]
        middles = [
            min(max(self.x(mark.x), self.left + half), self.right - half)
            for mark, half in zip(marks, halves, strict=True)
        ]
        if len(marks) < 2 or middles[1] - middles[0] >= sum(halves):
            return [(mark, middle, 0) for mark, middle in zip(marks, middles, strict=True)]
        # Of two labels that overlap, one goes to the row below, beside the other's line.
        first, second = (self.x(mark.x) for mark in marks)
        below = max(middles[1], first + halves[1])
        if below + halves[1] <= self.right:
            return [(marks[0], middles[0], 0), (marks[1], below, 1)]
        below = min(middles[0], second - halves[0])
        return [(marks[0], below, 1), (marks[1], middles[1], 0)]

    def _marks(self) -> Iterator[str]:
        floors = 1 + max((row for *_, row in self.labels), default=-1)
        for mark, middle, row in self.labels:
            base = self.top - 7 - 17 * (floors - 1 - row)
            x = self.x(mark.x)
            yield segment(x, base + 4, x, self.bottom, f"mark {mark.kind}")
            yield text_at(middle, base, mark.label, f"label {mark.kind}", "middle")

    def _corners(self, curve: Curve, name: str, end: float) -> list[tuple[float, float]]:
        column: Sequence[float] = getattr(curve, name)
        back = name in curve.back
        corners = []
        for row, value in enumerate(column):
            if self.chart.step and row:
                at, level = (row - 1, row) if back else (row, row - 1)
                corners.append((self.x(curve.x[at]), self.y(column[level])))
            corners.append((self.x(curve.x[row]), self.y(value)))
        if self.chart.step:
            corners.append((self.x(end), self.y(column[-1])))
        return corners

    def _end(self, curve: Curve, *names: str) -> float:
        """Up to where columns are drawn in a chart of steps."""
        return curve.x[-1] if set(names) & set(curve.back) else self.x_high

    def _band(self, style: int, curve: Curve) -> str:
        end = self._end(curve, "low", "high")
        high, low = (self._corners(curve, name, end) for name in ("high", "low"))
        around = path([*high, *reversed(low)])
        return (
            f'<path class="band" {colour(style)} d="{around}Z" fill="currentColor" opacity="0.14"/>'
        )

    def _line(self, style: int, curve: Curve) -> str:
        return stroke(style, path(self._corners(curve, "value", self._end(curve, "value"))))

    def _points(self, style: int, curve: Curve) -> str:
        """Points with a tooltip; a few per curve, since the table has all of them."""
        parts = [f'<g {colour(style)} class="series">']
        for row in _spread([self.x(x) for x in curve.x], _GAP if self.chart.named else 2 * _GAP):
            words = escape(self.chart.words(curve, row))
            x, y = self.x(curve.x[row]), self.y(curve.value[row])
            parts.append(
                f'<g class="point" tabindex="0" role="img"><title>{words}</title>'
                f'<circle class="reach" cx="{x:.1f}" cy="{y:.1f}" r="11" fill="transparent"/>'
                f"{symbol(style, x, y)}"
                + text_at(self.width - 4, 14, self._readout(curve, row), "readout", "end")
                + "</g>"
            )
        return "".join([*parts, "</g>"])

    def _readout(self, curve: Curve, row: int) -> str:
        """A point in words, without the curve's name where there is no room for it."""
        words = self.chart.words(curve, row)
        return words if _span(words) < self.width - 100 else words.removeprefix(f"{curve.name}, ")

    def _legend_rows(self) -> list[list[tuple[int, float]]]:
        """The rows of the legend: number of the curve, and x of its name."""
        rows: list[list[tuple[int, float]]] = []
        free = -1.0
        for order, curve in enumerate(self.curves):
            wide = 34 + min(_span(curve.name), self.width - 44) + 14
            if free < 0 or free + wide > self.width:
                rows.append([])
                free = 4.0
            rows[-1].append((order, free))
            free += wide
        return rows

    def _names(self) -> Iterator[str]:
        if self.direct:
            ends = [self.y(curve.value[-1]) for curve in self.curves]
            for order, y in enumerate(apart(ends, 16.0, self.top, self.bottom)):
                mine = colour(self.styles[order])
                curve = self.curves[order]
                end = self.x(self._end(curve, "value") if self.chart.step else curve.x[-1])
                x = self.right + 8
                # A dotted line leads from the end of a curve to its name.
                yield (
                    f'<path {mine} class="lead" stroke="currentColor" fill="none" '
                    f'opacity="0.5" stroke-dasharray="1 3" d="M{end + 2:.1f} {ends[order]:.1f}'
                    f'H{self.right:.1f}L{x - 1:.1f} {y:.1f}"/>'
                )
                name = _cut(self.curves[order].name, self.width - x - 4)
                yield f"<g {mine}>{text_at(x + 2, y + 4, name, 'name', 'start')}</g>"
            return
        for number_of_row, row in enumerate(self.rows):
            y = 34.0 + 20 * number_of_row
            for order, x in row:
                style = self.styles[order]
                sample = stroke(style, f"M{x:.1f} {y - 4:.1f}H{x + 26:.1f}")
                name = _cut(self.curves[order].name, self.width - x - 34)
                yield (
                    f"{sample}<g {colour(style)}>{symbol(style, x + 13, y - 4)}"
                    f"{text_at(x + 32, y, name, 'name', 'start')}</g>"
                )


def _span(text: str) -> float:
    return _GLYPH * _EM * len(text)


def _cut(text: str, room: float) -> str:
    most = int(room / (_GLYPH * _EM))
    return text if len(text) <= most else text[: max(most - 1, 1)] + "…"


def _spread(places: Sequence[float], gap: float) -> list[int]:
    """The first and the last place, and those between them that are at least `gap` apart."""
    kept = [0]
    for row in range(1, len(places) - 1):
        if places[row] - places[kept[-1]] >= gap and places[-1] - places[row] >= gap:
            kept.append(row)
    return kept if len(places) == 1 else [*kept, len(places) - 1]


def apart(wanted: Sequence[float], gap: float, top: float, bottom: float) -> list[float]:
    """Heights near the wanted ones, at least `gap` apart, between top and bottom."""
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    found = list(wanted)
    floor = top
    for row in order:
        found[row] = max(wanted[row], floor)
        floor = found[row] + gap
    ceiling = bottom
    for row in reversed(order):
        found[row] = min(found[row], ceiling)
        ceiling = found[row] - gap
    return found

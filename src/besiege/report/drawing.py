"""The layout of a chart: axes, curves, marks and names that do not overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from math import ceil, floor, log10
from typing import TYPE_CHECKING

from besiege.report.formats import number

if TYPE_CHECKING:
    from besiege.report.plot import Chart, Curve, Mark

BANDS = 3
"""Largest number of curves whose intervals are drawn: more would cover each other."""

# Blue and orange come first: colour-blind readers distinguish this pair best.
COLOURS = ("#0b66b0", "#b85200", "#1b7f5c", "#8f4a8c", "#6b5b1e", "#5b6570")
DASHES = ("", "7 4", "2 4", "10 4 2 4", "5 2", "1 3")
_EM = 12.0  # font size, in units of the drawing
_GLYPH = 0.6  # upper estimate of the mean width of a letter, so that labels do not overlap


def nice_ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers that divide a range into about `about` parts.

    Examples
    --------
    >>> nice_ticks(0, 40, 4)
    [0.0, 10.0, 20.0, 30.0, 40.0]
    """
    span = high - low
    if not span > 0:
        return [low]
    raw = span / max(about, 1)
    power = 10.0 ** floor(log10(raw))
    step = power * next(m for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    first = ceil(low / step - 1e-9)
    last = floor(high / step + 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


class Drawing:
    """The layout of one chart at one width."""

    def __init__(self, chart: Chart, curves: Sequence[Curve], width: int) -> None:
        self.chart, self.curves, self.width = chart, curves, width
        longest = max(_span(curve.name) for curve in curves)
        # Names are at the ends of their curves if there is room, else in rows above.
        self.direct = 1 < len(curves) <= 6 and width >= 560
        self.rows = [] if self.direct or len(curves) == 1 else self._legend_rows()
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
        parts += [self._band(order, curve) for order, curve in enumerate(self.curves[:banded])]
        for order, curve in enumerate(self.curves):
            parts.append(self._line(order, curve))
        for order, curve in enumerate(self.curves):
            parts.append(self._points(order, curve))
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
            yield _segment(self.left, y, self.right, y, "axis" if share == 0 else "grid")
            yield _text(self.left - 8, y + 4, f"{100 * share:.0f}", "tick", "end")
        scale = self.chart.unit or 1
        room = (self.right - self.left) / 74
        ticks = nice_ticks(self.x_low * scale, self.x_high * scale, max(2, int(room)))
        if self.chart.by_tens:
            ticks = [0.0, *(10.0**k for k in range(ceil(log10(1.0 + self.x_high))))]
        for tick in ticks:
            x = self.x(tick / scale)
            text = f"{number(tick)}/{scale}" if scale != 1 and tick else number(tick)
            yield _segment(x, self.bottom, x, self.bottom + 4, "axis")
            half = _span(text) / 2
            yield _text(min(x, self.width - half), self.bottom + 18, text, "tick", "middle")
        middle = (self.left + self.right) / 2
        yield _text(middle, self.bottom + 38, self.chart.x_title, "title", "middle")
        yield _text(4, 14, "accuracy, %", "title", "start")

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
            yield _segment(x, base + 4, x, self.bottom, f"mark {mark.kind}")
            yield _text(middle, base, mark.label, f"label {mark.kind}", "middle")

    def _corners(self, curve: Curve, column: Sequence[float]) -> list[tuple[float, float]]:
        corners = []
        for row, value in enumerate(column):
            if self.chart.step and row:
                corners.append((self.x(curve.x[row]), self.y(column[row - 1])))
            corners.append((self.x(curve.x[row]), self.y(value)))
        if self.chart.step:
            corners.append((self.x(self.x_high), self.y(column[-1])))
        return corners

    def _band(self, order: int, curve: Curve) -> str:
        high, low = self._corners(curve, curve.high), self._corners(curve, curve.low)
        path = _path([*high, *reversed(low)])
        return (
            f'<path class="band" {_colour(order)} d="{path}Z" fill="currentColor" opacity="0.14"/>'
        )

    def _line(self, order: int, curve: Curve) -> str:
        return _stroke(order, _path(self._corners(curve, curve.value)))

    def _points(self, order: int, curve: Curve) -> str:
        """Points with a tooltip; a few per curve, since the table has all of them."""
        parts = [f'<g {_colour(order)} class="series">']
        for row in _spread([self.x(x) for x in curve.x], 26.0):
            words = escape(self.chart.words(curve, row))
            x, y = self.x(curve.x[row]), self.y(curve.value[row])
            parts.append(
                f'<g class="point" tabindex="0" role="img" aria-label="{words}">'
                f"<title>{words}</title>"
                f'<circle class="reach" cx="{x:.1f}" cy="{y:.1f}" r="11" fill="transparent"/>'
                f"{_symbol(order, x, y)}"
                + _text(self.width - 4, 14, self._readout(curve, row), "readout", "end")
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
            for order, y in enumerate(_apart(ends, 16.0, self.top, self.bottom)):
                end = self.right if self.chart.step else self.x(self.curves[order].x[-1])
                x = self.right + 8
                # A dotted line leads from the end of a curve to its name.
                yield (
                    f'<path {_colour(order)} class="lead" stroke="currentColor" fill="none" '
                    f'opacity="0.5" stroke-dasharray="1 3" d="M{end + 2:.1f} {ends[order]:.1f}'
                    f'H{self.right:.1f}L{x - 1:.1f} {y:.1f}"/>'
                )
                name = _cut(self.curves[order].name, self.width - x - 4)
                yield f"<g {_colour(order)}>{_text(x + 2, y + 4, name, 'name', 'start')}</g>"
            return
        for number_of_row, row in enumerate(self.rows):
            y = 34.0 + 20 * number_of_row
            for order, x in row:
                sample = _stroke(order, f"M{x:.1f} {y - 4:.1f}H{x + 26:.1f}")
                name = _cut(self.curves[order].name, self.width - x - 34)
                yield (
                    f"{sample}<g {_colour(order)}>{_symbol(order, x + 13, y - 4)}"
                    f"{_text(x + 32, y, name, 'name', 'start')}</g>"
                )


def _span(text: str) -> float:
    return _GLYPH * _EM * len(text)


def _cut(text: str, room: float) -> str:
    most = int(room / (_GLYPH * _EM))
    return text if len(text) <= most else text[: max(most - 1, 1)] + "…"


def _colour(order: int) -> str:
    which = order % len(COLOURS)
    return f'style="color:var(--series-{which + 1},{COLOURS[which]})"'


def _stroke(order: int, path: str) -> str:
    # The seventh curve has the colour of the first, and another dash.
    dash = DASHES[(order + order // len(COLOURS)) % len(DASHES)]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<path class="line" {_colour(order)} fill="none" stroke="currentColor" stroke-width="2" '
        f'stroke-linejoin="round"{dashes} d="{path}"/>'
    )


def _path(corners: Sequence[tuple[float, float]]) -> str:
    """An SVG path along these corners, without repeated ones."""
    texts = [f"{x:.1f} {y:.1f}" for x, y in corners]
    kept = [text for row, text in enumerate(texts) if not row or text != texts[row - 1]]
    return "M" + "L".join(kept)


def _segment(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    faint = ' opacity="0.15"' if kind == "grid" else ""
    dash = {"mark median": "2 3", "mark budget": "6 3"}.get(kind)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<path class="{kind}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="currentColor" '
        f'fill="none"{faint}{dashes}/>'
    )


def _text(x: float, y: float, text: str, kind: str, anchor: str) -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {where}>{escape(text)}</text>'


def _shapes() -> tuple[Callable[[float, float], str], ...]:
    def polygon(*corners: tuple[float, float]) -> Callable[[float, float], str]:
        return lambda x, y: (
            '<path class="dot" d="M'
            + "L".join(f"{x + dx:.1f} {y + dy:.1f}" for dx, dy in corners)
            + 'Z"/>'
        )

    return (
        lambda x, y: f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3"/>',
        polygon((-2.8, -2.8), (2.8, -2.8), (2.8, 2.8), (-2.8, 2.8)),
        polygon((0, -3.8), (3.6, 2.6), (-3.6, 2.6)),
        polygon((0, -4), (4, 0), (0, 4), (-4, 0)),
        polygon((0, 3.8), (3.6, -2.6), (-3.6, -2.6)),
        polygon((-4, -1.6), (4, -1.6), (4, 1.6), (-4, 1.6)),
    )


_SHAPES = _shapes()


def _symbol(order: int, x: float, y: float) -> str:
    return _SHAPES[order % len(_SHAPES)](x, y)


def _spread(places: Sequence[float], gap: float) -> list[int]:
    """The first and the last place, and those between them that are at least `gap` apart."""
    kept = [0]
    for row in range(1, len(places) - 1):
        if places[row] - places[kept[-1]] >= gap and places[-1] - places[row] >= gap:
            kept.append(row)
    return kept if len(places) == 1 else [*kept, len(places) - 1]


def _apart(wanted: Sequence[float], gap: float, top: float, bottom: float) -> list[float]:
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

"""Curves as SVG: small, readable without script, in light and dark, on paper and by keyboard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from besiege.metrics.values import AttackCurve, BudgetCurve
from besiege.report.drawing import Drawing
from besiege.report.formats import distance

DRAWN = 400
"""The most points of a curve that are drawn."""


@dataclass(frozen=True)
class Curve:
    """Accuracies with their intervals over something, in ascending order of x."""

    name: str
    x: Sequence[float]
    value: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]

    def __len__(self) -> int:
        return len(self.x)

    def at(self, rows: Sequence[int]) -> Curve:
        """The curve at these points."""
        columns = (self.x, self.value, self.low, self.high)
        return Curve(self.name, *([column[row] for row in rows] for column in columns))

    @classmethod
    def of(cls, given: AttackCurve | BudgetCurve) -> Curve:
        """A curve of the figures."""
        return cls(given.attack, given.x, given.value, given.low, given.high)


@dataclass(frozen=True)
class Mark:
    """A place on the horizontal axis that has a name."""

    x: float
    label: str
    kind: str = "budget"


@dataclass(frozen=True)
class Chart:
    """Curves of accuracy over one axis.

    Parameters
    ----------
    title : str
        What a screen reader says first.
    curves : sequence of Curve
        With points or without.
    x_title : str
        Name of the horizontal axis.
    x_word : str
        What one value of it is called, as in "step 12".
    step : bool
        Whether a value holds until the next point; otherwise points are joined by lines.
    unit : int, optional
        Denominator the horizontal axis is labelled over, such as 255.
    marks : sequence of Mark
        One or two places to point out.
    by_tens : bool
        Whether the horizontal axis goes by powers of ten, from zero: for curves of very different
        lengths.
    banded : int
        How many curves from the first have their intervals drawn where there are too many for all.
    """

    title: str
    curves: Sequence[Curve]
    x_title: str
    x_word: str
    step: bool = False
    unit: int | None = None
    marks: Sequence[Mark] = ()
    by_tens: bool = False
    banded: int = 0

    @property
    def drawn(self) -> list[Curve]:
        """The curves that have points, thinned out."""
        return [thinned(curve) for curve in self.curves if len(curve)]

    def said(self, curve: Curve, row: int) -> str:
        """One point in words."""
        x = f"{self.x_word} {self.x_text(curve.x[row])}"
        value, low, high = (100 * c[row] for c in (curve.value, curve.low, curve.high))
        return f"{curve.name}, {x}: {value:.1f} % [{low:.1f}, {high:.1f}]"

    def x_text(self, value: float) -> str:
        """A value of the horizontal axis."""
        return distance(value, self.unit)

    def svg(self, width: int = 720) -> str:
        """The drawing, this many units wide; a narrow one moves the names above the curves."""
        curves = self.drawn
        return Drawing(self, curves, width).svg() if curves else ""


def thinned(curve: Curve, most: int = DRAWN) -> Curve:
    """The curve with at most so many points, which draws the same.

    Points that change nothing go first. Then the axis is cut into columns narrower than a
    reader can tell apart, and each keeps its first, lowest, highest and last point.

    Examples
    --------
    >>> flat = Curve("flat", [0, 1, 2, 3], [1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0])
    >>> list(thinned(flat, most=3).x)
    [0, 2, 3]
    """
    if len(curve) <= most:
        return curve
    curve = curve.at(_needed(curve))
    columns = most // 2
    while len(curve) > most:
        kept = sorted(set(_extremes(curve, columns)))
        if len(kept) <= most:
            curve = curve.at(kept)
        columns -= max(1, columns // 8)
    return curve


def _needed(curve: Curve) -> list[int]:
    """The points without those amid a flat stretch, which neither a line nor a step needs."""
    last = len(curve) - 1
    columns = (curve.value, curve.low, curve.high)
    return [
        row
        for row in range(last + 1)
        if row in (0, last) or any(not c[row - 1] == c[row] == c[row + 1] for c in columns)
    ]


def _extremes(curve: Curve, columns: int) -> Iterator[int]:
    start, span = curve.x[0], curve.x[-1] - curve.x[0]
    members: dict[int, list[int]] = {}
    for row, x in enumerate(curve.x):
        column = int((x - start) / span * columns) if span > 0 else 0
        members.setdefault(min(column, columns - 1), []).append(row)
    for rows in members.values():
        yield rows[0]
        yield min(rows, key=curve.value.__getitem__)
        yield max(rows, key=curve.value.__getitem__)
        yield rows[-1]

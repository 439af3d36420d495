"""Charts of curves as SVG without scripts, for light and dark pages and for paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from besiege.metrics.attack_values import AttackCurve, BudgetCurve
from besiege.report.drawing import Drawing
from besiege.report.formats import distance

DRAWN = 400
"""Largest number of drawn points per curve."""


@dataclass(frozen=True)
class Curve:
    """Accuracies with their intervals, in ascending order of x.

    ``style`` is the number of its colour, dash and symbol; by default its place in the chart.
    In a chart of steps a value holds from its point to the next one. For the columns of ``back``
    it holds from the point before up to its own, and nothing is drawn after the last one: of what
    is proved at 0.1 nothing is known beyond 0.1.
    """

    name: str
    x: Sequence[float]
    value: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    style: int | None = None
    back: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.x)

    def at(self, rows: Sequence[int]) -> Curve:
        """The curve at these points."""
        columns = (self.x, self.value, self.low, self.high)
        x, value, low, high = ([column[row] for row in rows] for column in columns)
        return replace(self, x=x, value=value, low=low, high=high)

    @classmethod
    def of(cls, given: AttackCurve | BudgetCurve) -> Curve:
        """A curve of the figures."""
        return cls(given.attack, given.x, given.value, given.low, given.high)


@dataclass(frozen=True)
class Mark:
    """A labelled position on the horizontal axis."""

    x: float
    label: str
    kind: str = "budget"


@dataclass(frozen=True)
class Chart:
    """Curves of accuracy, or of another share, over one axis.

    Parameters
    ----------
    title : str
        The title, which a screen reader reads first.
    curves : sequence of Curve
        The curves; those without points are not drawn.
    x_title : str
        Name of the horizontal axis.
    x_word : str
        Name of one value of it, as in "step 12".
    step : bool
        Whether a value holds until the next point; otherwise lines join the points.
    unit : int, optional
        Denominator of the labels of the horizontal axis, such as 255.
    marks : sequence of Mark
        One or two labelled positions.
    by_tens : bool
        Whether the horizontal axis is logarithmic, from zero: for curves of very different lengths.
    banded : int
        Number of curves whose intervals are drawn where there are too many for all.
    named : bool
        Whether the drawing names its curves; otherwise the page has a legend of them.
    y_title : str
        Name of the vertical axis, a share in percent.
    sure : bool
        Whether the curves have intervals.
    diagonal : bool
        Whether to draw the line from the lowest to the highest corner: a ROC curve by chance.
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
    named: bool = True
    y_title: str = "accuracy, %"
    sure: bool = True
    diagonal: bool = False

    @cached_property
    def drawn(self) -> list[Curve]:
        """The curves that have points, with fewer points where there are many."""
        return [thinned(curve) for curve in self.curves if len(curve)]

    def words(self, curve: Curve, row: int) -> str:
        """One point in words, with the curve's name where there are several."""
        x = f"{self.x_word} {self.x_text(curve.x[row])}"
        value, low, high = (100 * c[row] for c in (curve.value, curve.low, curve.high))
        name = f"{curve.name}, " if len(self.drawn) > 1 else ""
        ends = f" [{low:.1f}, {high:.1f}]" if self.sure else ""
        return f"{name}{x}: {value:.1f} %{ends}"

    def x_text(self, value: float) -> str:
        """A value of the horizontal axis."""
        return distance(value, self.unit)

    def svg(self, width: int = 720) -> str:
        """The drawing, `width` units wide; a narrow one has the names above the curves."""
        curves = self.drawn
        return Drawing(self, curves, width).svg() if curves else ""


def thinned(curve: Curve, most: int = DRAWN) -> Curve:
    """The curve with at most `most` points, which looks the same.

    Points on flat stretches are left out first. Then the axis is cut into columns too narrow to
    be seen, and each keeps its first, lowest, highest and last point.

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
    """The points that are not inside a flat stretch."""
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

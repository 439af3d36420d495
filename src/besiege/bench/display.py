"""Tables and figures of a board as values: made by studies, shown by pages, terminals and files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from besiege.bench.sweeps import Line, Sweep
from besiege.metrics.bands import Bands
from besiege.metrics.outcomes import Numbers
from besiege.metrics.rows import Rows


@dataclass(frozen=True, eq=False)
class Grid:
    """A table.

    Attributes
    ----------
    title : str
        Its title.
    columns, rows : tuple
        Texts as people read them.
    note : str
        What the numbers are, below the table.
    data : Rows, optional
        The same as columns of numbers, for files that programs read; by default the texts.
    sentences : bool
        Whether its columns are sentences, which are shown one below the other. What stands between
        two pairs of tildes is crossed out.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    data: Rows | None = None
    sentences: bool = False

    @property
    def numbers(self) -> Rows:
        """The columns that a program reads."""
        if self.data is not None:
            return self.data
        return rows_of(dict(zip(self.columns, row, strict=True)) for row in self.rows)

    def plain(self) -> dict[str, Any]:
        """The texts as JSON."""
        found = {"title": self.title, "columns": self.columns, "rows": self.rows}
        return {**found, "note": self.note} if self.note else found


def rows_of(found: Iterable[Mapping[str, Any]]) -> Rows:
    """Columns of rows that all have the same names; texts are objects.

    Examples
    --------
    >>> rows_of([{"model": "a", "accuracy": 0.5}, {"model": "b", "accuracy": 0.25}])["accuracy"]
    array([0.5 , 0.25])
    """
    listed = list(found)
    return Rows(
        {
            name: np.array(
                [row[name] for row in listed], object if isinstance(listed[0][name], str) else None
            )
            for name in (listed[0] if listed else {})
        }
    )


@dataclass(frozen=True, eq=False)
class HeatMap:
    """A matrix of shares, drawn as a table with a colour scale.

    Attributes
    ----------
    title : str
        What it shows.
    rows, columns : tuple of str
        Names.
    corner : str
        What rows and columns are.
    value : array ``[rows, columns]``
        Shares; NaN where there is none.
    words : tuple of tuple of str
        More about each cell, which a pointer shows.
    means : array ``[rows]``, optional
        A last column.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    corner: str
    value: Numbers
    words: tuple[tuple[str, ...], ...]
    means: Numbers | None = None


@dataclass(frozen=True)
class Spot:
    """A model in a scatter plot, with the ends of its interval along the vertical axis."""

    model: str
    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Ruled:
    """A line in a scatter plot by its corners; ``kind`` is fit or printed."""

    label: str
    kind: str
    corners: tuple[tuple[float, float], ...]


@dataclass(frozen=True, eq=False)
class Scatter:
    """Models by two numbers.

    Attributes
    ----------
    title, x_title, y_title : str
        What it shows, and what the axes are.
    spots : tuple of Spot
        The models.
    by_tens : bool
        Whether the horizontal axis is logarithmic.
    front : tuple of str
        Models that are joined.
    lines : tuple of Ruled
        Lines.
    """

    title: str
    x_title: str
    y_title: str
    spots: tuple[Spot, ...]
    by_tens: bool = False
    front: tuple[str, ...] = ()
    lines: tuple[Ruled, ...] = ()


@dataclass(frozen=True, eq=False)
class Figure:
    """A figure: panels, each of all models under one attack.

    Attributes
    ----------
    name, title : str
        Its name within the study, such as the number in the publication, and what it shows.
    panels : tuple of Sweep, HeatMap or Scatter
        The panels.
    note : str
        What differs from the figure of the publication.
    """

    name: str
    title: str
    panels: tuple[Sweep | HeatMap | Scatter, ...]
    note: str = ""

    @property
    def heading(self) -> str:
        """Its title after its number, if it has one.

        Examples
        --------
        >>> Figure("4, 9 and 10", "Transfer", ()).heading
        'Figures 4, 9 and 10: Transfer'
        """
        if not self.name:
            return self.title
        return f"Figure{'s' * (' and ' in self.name)} {self.name}: {self.title}"


@dataclass(frozen=True, eq=False)
class Curves:
    """A figure of one panel: a curve of accuracy with bands for each name."""

    title: str
    axis: str
    names: tuple[str, ...]
    bands: Bands
    cell: int = field(default=0)

    def figure(self) -> Figure:
        """The same as a figure."""
        found, x = self.bands, self.bands.x
        lines = tuple(
            Line(name, x, found.value[m], x, found.lowest[m], found.highest[m], int(found.count[m]))
            for m, name in enumerate(self.names)
        )
        end = float(x[-1])
        panel = Sweep(self.cell, self.axis, "budget", "accuracy", "size", end, lines)
        return Figure("", self.title, (panel,))

"""Tables fitted to the width of a terminal: which columns are left out, where names break."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from besiege.core.text import broken_up

NARROW = 76
"""On narrower terminals the interval of an accuracy goes to a second line."""
_NAME = 12
"""Least width of the names of attacks; columns that leave less are left out."""
NONE = "-"
"""Stands where there is no figure."""


def plain_table(width: int) -> Table:
    """A table without lines, with smaller gaps on a narrow terminal."""
    gap = 1 if width < NARROW else 2
    return Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")


@dataclass(frozen=True)
class Columns:
    """The columns that fit beside the names of attacks, and the width left for these names."""

    headings: list[str]
    cells: list[list[str]]
    room: int


def fitting(headings: list[str], cells: list[list[str]], width: int) -> Columns:
    """The columns that fit beside the names: the first, and then each that leaves room for them."""
    gap = 1 if width < NARROW else 2
    kept: list[int] = []
    room = width
    for place, column in enumerate(zip(headings, *cells, strict=True)):
        wide = gap + max(map(cell_len, "\n".join(column).split("\n")))
        if not place or room - wide >= _NAME:
            kept.append(place)
            room -= wide
    return Columns(
        [headings[place] for place in kept], [[row[place] for place in kept] for row in cells], room
    )


def named_rows(
    title: str, headings: list[str], cells: list[tuple[str, list[str]]], width: int
) -> Table:
    """A table of names and figures, in which long names are broken."""
    columns = fitting(headings, [shown for _, shown in cells], width)
    rows = plain_table(width)
    rows.add_column(title, overflow="fold")
    for heading in columns.headings:
        rows.add_column(heading, justify="right", no_wrap=True)
    for (name, _), shown in zip(cells, columns.cells, strict=True):
        rows.add_row(Text(broken_up(name, max(columns.room, 8))), *map(Text, shown))
    return rows

"""Prints the answers and tables of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from besiege.cli import screen

if TYPE_CHECKING:
    from besiege.bench.display import Grid
    from besiege.studies.answers import Answer
    from besiege.studies.study import Study

_STYLES = {"yes": "bold green", "no": "bold red"}


def print_answers(
    chosen: Study, answers: Sequence[Answer], tables: Mapping[str, Grid], readings: Sequence[str]
) -> None:
    """Print the answers of a study, its tables, and how these are not to be read."""
    console = screen.out()
    console.print(Text(chosen.title, "bold"))
    console.print()
    rows = Table.grid(padding=(0, 2, 0, 0))
    shared = {one.caveat for one in answers} if len(answers) > 1 else set()
    for one in answers:
        below = _sentences(one, caveat=len(shared) != 1)
        text = Text(one.claim).append("".join(f"\n{each}" for each in below), "dim")
        verdict = Text(one.verdict, _STYLES.get(one.verdict, "bold"), no_wrap=True)
        rows.add_row(Text(one.id, "bold", no_wrap=True), verdict, text)
    console.print(rows)
    if any(one.effect is not None for one in answers):
        console.print()
        screen.say(console, Text(_caption(chosen), "dim"))
    for grid in tables.values():
        console.print()
        print_grid(console, grid)
    for sentence in readings:
        console.print()
        screen.say(console, Text(sentence))
    if len(shared) == 1 and (caveat := shared.pop()):
        console.print()
        screen.say(console, Text(caveat, "dim"))


def print_grid(console: Console, grid: Grid) -> None:
    """Print a table, as several of as many columns as fit beside the first one."""
    screen.say(console, Text(grid.title, "bold"))
    if grid.sentences:
        return _print_sentences(console, grid)
    widths = [
        2 + max(map(cell_len, (head, *(row[n] for row in grid.rows))))
        for n, head in enumerate(grid.columns)
    ]
    start = 1
    while start < len(grid.columns):
        stop, room = start, console.width - min(widths[0], console.width // 3)
        while stop < len(grid.columns) and (stop == start or widths[stop] <= room):
            room -= widths[stop]
            stop += 1
        heads = (grid.columns[0], *grid.columns[start:stop])
        table = screen.columns(*heads, right=heads[1:])
        for row in grid.rows:
            table.add_row(row[0], *row[start:stop])
        console.print(table)
        start = stop
    if grid.note:
        screen.say(console, Text(grid.note, "dim"))


def _print_sentences(console: Console, grid: Grid) -> None:
    """Print a table of sentences, those of a row one below the other."""
    rows = Table.grid(padding=(0, 2, 0, 0))
    for first, told, *others in grid.rows:
        below = "".join(f"\n{one}" for one in others)
        rows.add_row(Text(first, "bold", no_wrap=True), Text(told).append(below, "dim"))
    console.print(rows)
    if grid.note:
        screen.say(console, Text(grid.note, "dim"))


def _caption(chosen: Study) -> str:
    """What the intervals are."""
    number, level = len(chosen.claims), f"{100 * chosen.level:.4g} %"
    if number == 1:
        return f"The interval is that of {level}; the answer follows from it."
    return (
        f"Each interval is that of {level}, and the answers follow from them: any of the "
        f"{number} is false in at most 5 % of all experiments (Bonferroni)."
    )


def _sentences(answer: Answer, caveat: bool) -> list[str]:
    """What an answer rests on."""
    found = []
    if answer.effect is not None:
        value, low, high = (
            100 * each for each in (answer.effect.value, answer.effect.low, answer.effect.high)
        )
        count = f"{answer.effect.count:,} {answer.unit}"
        found.append(f"{value:+.1f} points [{low:.1f}, {high:.1f}], on the same {count}.")
    if answer.needed is not None:
        found.append(f"These {answer.unit} cannot tell; about {answer.needed:,} would.")
    if answer.paper:
        found.append(f"Published: {answer.paper}")
    return [*found, answer.caveat] if caveat and answer.caveat else found

"""One evaluation: its name, its result, and the tables of its attacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from besiege.metrics.defense_values import Spread
from besiege.metrics.intervals import Rate
from besiege.metrics.registry import registered
from besiege.metrics.values import EvaluationFigures as Evaluation
from besiege.report.answer import (
    descent,
    elsewhere,
    errors,
    guards,
    headline,
    is_minimal,
    robust,
    sample_choice,
    since,
    troubles,
    without_guards,
)
from besiege.report.formats import interval, number, share
from besiege.report.terminal.attacks import attack_table
from besiege.report.terminal.shares import share_tables
from besiege.report.terminal.sizes import descent_table, size_table


def detailed(
    evaluation: Evaluation, width: int, above: Sequence[RenderableType]
) -> Iterator[RenderableType]:
    """One evaluation; `above` is shown between its name and its result."""
    yield Text(evaluation.title, "bold", overflow="fold")
    yield Text(f"on {sample_choice(evaluation)}", "dim", overflow="fold")
    if transfer := elsewhere(evaluation):
        yield Text(transfer, "bold", overflow="fold")
    yield from above
    if errors(evaluation):
        yield Text("DO NOT QUOTE THESE FIGURES", "bold red")
    for trouble in troubles(evaluation):
        yield Text(f"NOT COMPLETE: {trouble}", "bold red")
    yield ""
    yield _answer(evaluation)
    if change := since(evaluation):
        yield Text(change, "bold", overflow="fold")
    yield ""
    yield attack_table(without_guards(evaluation), width)
    if found := guards(evaluation):
        yield Text(found, overflow="fold")
    if evaluation.rejection is not None:
        yield ""
        yield from share_tables(evaluation.rejection, width)
    if evaluation.distances is not None:
        yield ""
        yield size_table(evaluation, width)
        if (fall := descent(evaluation, "1")) is not None:
            yield ""
            yield descent_table(evaluation, fall, width)
    for attack in evaluation.attacks:
        if attack.failure:
            yield Text(f"{attack.text} failed: {attack.failure}", "red", overflow="fold")
    yield ""


def _answer(evaluation: Evaluation) -> RenderableType:
    """The summary: a row for every figure that has one."""
    if robust(evaluation) is None:
        return Text(headline(evaluation), "bold red")
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(2):
        grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    for figure in registered():
        row = None if figure.row is None else figure.row(evaluation)
        if row is not None:
            cells = (row.label, *_shown(row.value))
            grid.add_row(*(Text(cell, "bold" if row.bold else "") for cell in cells), row.words)
    if not is_minimal(evaluation):
        return grid
    return Group(Text(headline(evaluation), "bold"), grid)


def _shown(value: Rate | Spread | float | str) -> tuple[str, str]:
    """A value and its interval or deviation."""
    if isinstance(value, Rate):
        return share(value).rjust(7), interval(value)
    if isinstance(value, Spread):
        mean, deviation = str(value).rsplit(" ", 1)
        return mean.rjust(7), deviation
    return (value if isinstance(value, str) else number(value)).rjust(7), ""

"""How far a run is, while it is going on: a bar with the time left, or plain lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

from besiege.core.errors import Finding
from besiege.report.console import Harmless
from besiege.report.formats import seconds, sentence

if TYPE_CHECKING:  # slow to import
    from besiege.bench.work_estimate import Event, Stage


@contextmanager
def bar(title: str, console: Console | None = None) -> Iterator[Callable[[Event], None]]:
    """Show how far the work is, on standard error.

    Parameters
    ----------
    title : str
        What is evaluated.
    console : Console, optional
        Where to show it. On a terminal bars that go away at the end, for the attack that runs
        and for everything, and lines that stay for the attacks that are over; else a line
        whenever something begins or ends.

    Yields
    ------
    callable
        To be told an event: ``done`` of ``total``, and a ``text``.

    Examples
    --------
    >>> import io
    >>> from rich.console import Console
    >>> from besiege.bench.work_estimate import Event
    >>> from besiege.report import bar
    >>> with bar("zoo:digits-natural", Console(file=io.StringIO())) as tell:
    ...     tell(Event(100, 400, "pgd"))
    """
    shown = Harmless(stderr=True) if console is None else console
    if not shown.is_terminal:
        yield _lines(title, shown)
        return
    columns = (
        TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
        BarColumn(bar_width=20 if shown.width >= 76 else 8),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=shown, transient=True, expand=True) as progress:
        yield _Shown(title, progress).tell


class _Shown:
    """The bars on a terminal: the attack that runs, and all the work; above them, what is over."""

    def __init__(self, title: str, progress: Progress) -> None:
        self.title = title
        self.progress = progress
        self.running = progress.add_task("", total=1.0, visible=False)
        self.whole = progress.add_task(title, total=None)
        self.attack = ""
        self.begun = False

    def tell(self, event: Event) -> None:
        for finding in event.findings:
            self.progress.console.print(_told(finding))
        stage = event.stage
        about = f"{self.title}: {event.text}" if stage is None else self.title
        self.progress.update(self.whole, completed=event.done, total=event.total, description=about)
        if stage is None or stage.share >= 1:
            self.attack = ""
            self.progress.update(self.running, visible=False)
        if stage is None:
            return
        if stage.share < 1:
            about = f"{stage.attack}: {stage.left:,} of {stage.before:,} left"
            if stage.attack != self.attack:
                self.attack = stage.attack
                self.progress.reset(self.running, total=1.0, visible=True)
            self.progress.update(
                self.running, completed=stage.share, description=about, refresh=True
            )
            return
        width = self.progress.console.width
        if not self.begun:
            self.begun = True
            self.progress.console.print(_row("attack", "standing", "left", "time", width, "dim"))
        self.progress.console.print(_over(stage, width))


def _over(stage: Stage, width: int) -> Table:
    """A line about an attack that is over: what stood before it, what it left, how long it took."""
    left = "FAILED" if stage.failed else f"{stage.left:,}"
    style = "bold red" if stage.failed else ""
    return _row(stage.attack, f"{stage.before:,}", left, seconds(stage.seconds), width, style)


def _row(name: str, before: str, left: str, took: str, width: int, style: str) -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=max(8, width - 35), overflow="fold")
    for size in (9, 9, 12):
        grid.add_column(width=size, justify="right", no_wrap=True)
    grid.add_row(*(Text(text, style) for text in (name, before, left, took)))
    return grid


def _told(finding: Finding) -> Text:
    """What was found out before the attacks, as loud as it is bad."""
    style = {"error": "bold red", "warning": "yellow"}.get(finding.level, "dim")
    return Text(f"{finding.id} {finding.level}: ", style).append(
        f"{sentence(finding.seen)} {finding.advice}", "not bold"
    )


def _lines(title: str, console: Console) -> Callable[[Event], None]:
    """A line when something new begins or ends, so that a log says how far the work came."""
    begin = time.monotonic()
    last = ""

    def tell(event: Event) -> None:
        nonlocal last
        for finding in event.findings:
            console.print(_told(finding), soft_wrap=True)
        stage = event.stage
        if event.text != last:
            last = event.text
            share = 100 * event.done / event.total if event.total else 0.0
            passed = seconds(time.monotonic() - begin)
            console.print(
                Text(f"{title}: {event.text}, {share:.0f} % done after {passed}"), soft_wrap=True
            )
        if stage is not None and stage.share >= 1:
            what = "failed on some of" if stage.failed else f"left {stage.left:,} of"
            took = seconds(stage.seconds)
            said = f"{title}: {stage.attack} {what} the {stage.before:,} standing, in {took}"
            console.print(Text(said), soft_wrap=True)

    return tell

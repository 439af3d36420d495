"""The progress of a run: bars on a terminal, one line in a notebook, plain lines elsewhere."""

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

from besiege.core import notebook
from besiege.core.errors import Finding
from besiege.report.console import Harmless
from besiege.report.formats import seconds, sentence

if TYPE_CHECKING:  # slow to import
    from besiege.bench.work_estimate import Event, Stage

_BEFORE = "done before"
"""In place of the time of an attack whose records were there already."""
_SILENCE = 60.0
"""Seconds after which a log gets another line about what still runs."""


@contextmanager
def bar(title: str, console: Console | None = None) -> Iterator[Callable[[Event], None]]:
    """Show the progress of the work on standard error.

    Parameters
    ----------
    title : str
        The name of the evaluated model.
    console : Console, optional
        Where to show it; by default below the cell of a notebook, or on standard error. A terminal
        has one bar for the running attack and one for all the work, which disappear at the end,
        and a line for every finished attack. A notebook has one line that is replaced. Elsewhere a
        line is printed whenever an attack begins or ends, and every minute in between.

    Yields
    ------
    callable
        To be called with an event: ``done`` of ``total``, and a ``text``.

    Examples
    --------
    >>> import io
    >>> from rich.console import Console
    >>> from besiege.bench.work_estimate import Event
    >>> from besiege.report import bar
    >>> with bar("zoo:digits-natural", Console(file=io.StringIO())) as tell:
    ...     tell(Event(100, 400, "pgd"))
    """
    if console is None and (cell := notebook.line()) is not None:
        with _below(cell, title) as tell:
            yield tell
        return
    shown = Harmless(stderr=True) if console is None else console
    if not shown.is_terminal:
        yield _lines(title, shown)
        return
    wide = shown.width >= 76
    columns = (
        TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
        BarColumn(bar_width=12 if wide else 8),
        TextColumn("{task.percentage:>3.0f} %"),
        *((TimeElapsedColumn(), TextColumn("so far,")) if wide else ()),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=shown, transient=True, expand=True) as progress:
        yield _Shown(title, progress).tell


@contextmanager
def _below(cell: notebook.Line, title: str) -> Iterator[Callable[[Event], None]]:
    """Show the progress below the cell of a notebook, with the findings made before the attacks."""
    begin, findings = time.monotonic(), dict[str, None]()

    def said(text: str) -> str:
        return "\n".join([*findings, f"{title}: {text}"])

    def tell(event: Event) -> None:
        findings.update({_line(finding).plain: None for finding in event.findings})
        share = event.done / event.total if event.total else None
        about = event.text
        if event.stage is not None and event.stage.share < 1:
            about += f", {event.stage.left:,} of {event.stage.before:,} images left"
        cell.show(said(about), share, last=bool(event.findings))

    yield tell
    cell.show(said(f"done in {seconds(time.monotonic() - begin)}"), last=True)


class _Shown:
    """The bars on a terminal: the running attack and all the work, below the finished attacks."""

    def __init__(self, title: str, progress: Progress) -> None:
        self.title = title
        self.progress = progress
        self.running = progress.add_task("", total=1.0, visible=False)
        self.whole = progress.add_task(title, total=None)
        self.attack = ""
        self.begun = False
        self.kept = _Kept()

    def tell(self, event: Event) -> None:
        for finding in event.findings:
            self.progress.console.print(_line(finding))
        before = self.kept.line(event)
        if before is not None and before.plain:
            self.progress.console.print(before)
        stage, title = None if before is None else event.stage, event.title or self.title
        about = f"{title}: {event.text}" if stage is None else title
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
            self.progress.console.print(_row("attack", "before", "left", "time", width, "dim"))
        self.progress.console.print(_over(stage, width))


class _Kept:
    """Counts what earlier runs have done: of many evaluations, it has one line."""

    def __init__(self) -> None:
        self._attacks: list[str] = []
        """For each attack the title of its evaluation."""

    def line(self, event: Event) -> Text | None:
        """None for an event that is only counted; otherwise a line about those before it."""
        if event.kept and event.title:
            if event.stage is not None and event.stage.share >= 1:
                self._attacks.append(event.title)
            return None
        attacks, evaluations = len(self._attacks), len(set(self._attacks))
        self._attacks = []
        if not attacks:
            return Text()
        what = "an attack" if attacks == 1 else f"{attacks:,} attacks"
        of = "an evaluation" if evaluations == 1 else f"{evaluations:,} evaluations"
        were = "was" if attacks == 1 else "were"
        return Text(f"{what} of {of} {were} {_BEFORE}", "dim")


def _over(stage: Stage, width: int) -> Table:
    """A line about a finished attack: unbroken images before and after it, and its time."""
    left = "FAILED" if stage.failed else f"{stage.left:,}"
    style = "bold red" if stage.failed else ""
    took = _BEFORE if stage.kept else seconds(stage.seconds)
    return _row(stage.attack, f"{stage.before:,}", left, took, width, style)


def _row(name: str, before: str, left: str, took: str, width: int, style: str) -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=max(8, width - 35), overflow="fold")
    for size in (9, 9, 12):
        grid.add_column(width=size, justify="right", no_wrap=True)
    grid.add_row(*(Text(text, style) for text in (name, before, left, took)))
    return grid


def _line(finding: Finding) -> Text:
    """A finding made before the attacks, in the style of its level."""
    style = {"stop": "bold red", "warning": "yellow"}.get(finding.level, "dim")
    return Text(f"{finding.id} {finding.level}: ", style).append(
        f"{sentence(finding.seen)} {finding.advice}", "not bold"
    )


def _lines(title: str, console: Console) -> Callable[[Event], None]:
    """Print a line whenever an attack begins or ends, and after a minute without one, for logs."""
    begin = latest = time.monotonic()
    begun: set[tuple[str, str]] = set()  # workers go from one attack to another and back
    kept = _Kept()

    def tell(event: Event) -> None:
        nonlocal latest
        for finding in event.findings:
            console.print(_line(finding), soft_wrap=True)
        before = kept.line(event)
        if before is None:
            return
        if before.plain:
            console.print(before, soft_wrap=True)
        stage, about, now = event.stage, event.title or title, time.monotonic()
        ended = stage is not None and stage.share >= 1
        if (about, event.text) not in begun or (not ended and now - latest >= _SILENCE):
            begun.add((about, event.text))
            latest = now
            share = 100 * event.done / event.total if event.total else 0.0
            line = f"{about}: {event.text}, {share:.0f} % done after {seconds(now - begin)}"
            if stage is not None and not ended:
                line += f", {stage.left:,} of {stage.before:,} images left"
            console.print(Text(line), soft_wrap=True)
        if stage is not None and ended:
            latest = now
            broken = f"broke {stage.before - stage.left:,}"
            what = "failed on some" if stage.failed else broken
            took = f"({_BEFORE})" if stage.kept else f"in {seconds(stage.seconds)}"
            line = f"{about}: {stage.attack} {what} of {stage.before:,} images {took}"
            console.print(Text(line), soft_wrap=True)

    return tell

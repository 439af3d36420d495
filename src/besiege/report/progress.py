"""How far a run is, while it is going on: a bar with the time left, or plain lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from besiege.report.formats import seconds


class Event(Protocol):
    """How much of the work is done, and what is going on."""

    @property
    def done(self) -> float: ...

    @property
    def total(self) -> float: ...

    @property
    def text(self) -> str: ...


@contextmanager
def bar(title: str, console: Console | None = None) -> Iterator[Callable[[Event], None]]:
    """Show how far the work is, on standard error.

    Parameters
    ----------
    title : str
        What is evaluated.
    console : Console, optional
        Where to show it; on a terminal a bar that goes away at the end, else a line whenever
        something new begins.

    Yields
    ------
    callable
        To be told an event: ``done`` of ``total``, and a ``text``.

    Examples
    --------
    >>> import io
    >>> from types import SimpleNamespace
    >>> from rich.console import Console
    >>> from besiege.report import bar
    >>> with bar("zoo:digits-natural", Console(file=io.StringIO())) as tell:
    ...     tell(SimpleNamespace(done=100, total=400, text="pgd"))
    """
    shown = Console(stderr=True) if console is None else console
    if not shown.is_terminal:
        yield _lines(title, shown)
        return
    columns = (
        TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=shown, transient=True, expand=True) as progress:
        task = progress.add_task(title, total=None)

        def tell(event: Event) -> None:
            about = f"{title}: {event.text}"
            progress.update(task, completed=event.done, total=event.total, description=about)

        yield tell


def _lines(title: str, console: Console) -> Callable[[Event], None]:
    """A line when something new begins, so that a log says how far the work came."""
    begin = time.monotonic()
    last = ""

    def tell(event: Event) -> None:
        nonlocal last
        if event.text == last:
            return
        last = event.text
        share = 100 * event.done / event.total if event.total else 0.0
        passed = seconds(time.monotonic() - begin)
        console.print(
            Text(f"{title}: {event.text}, {share:.0f} % done after {passed}"), soft_wrap=True
        )

    return tell

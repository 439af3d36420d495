"""Where commands write: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.containers import Lines
from rich.table import Table
from rich.text import Text

from besiege.core.text import broken_up
from besiege.report.console import Harmless

_LONGEST = 6000
"""Longest error message, in characters: all problems of a benchmark are one message."""


class Screen(Harmless):
    """A console without markup that raises BrokenPipeError when its reader is gone."""

    def print(self, *objects: Any, **options: Any) -> None:
        if self.is_terminal:
            super().print(*objects, **options)
            return
        # In a file, the spaces that pad a table to its width are useless.
        with self.capture() as held:
            super().print(*objects, **options)
        lines = held.get().split("\n")
        self.file.write("\n".join(line.rstrip() for line in lines))

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


_results: TextIO | None = None


def results() -> TextIO:
    """The stream of results: the real standard output, also inside `apart`."""
    return sys.stdout if _results is None else _results


@contextmanager
def apart() -> Iterator[None]:
    """Send what a user's code prints to standard error: standard output has results only."""
    global _results
    if _results is not None or sys.stdout is None:  # a command within a command; closed
        yield
        return
    before = sys.stdout
    own, number = _own_output(before)
    _results, sys.stdout = own, sys.stderr
    try:
        yield
    finally:
        _results, sys.stdout = None, before
        if number is not None:
            os.dup2(own.fileno(), number)
            with suppress(OSError):  # such as a full disk, reported when it was written to
                own.close()


def _own_output(stream: TextIO) -> tuple[TextIO, int | None]:
    """A copy of standard output, and its file descriptor, which then leads to standard error.

    C code and other processes write to the descriptor. A stream that replaces standard output (in
    tests) has none.
    """
    if stream is not sys.__stdout__:
        return stream, None
    try:
        number = stream.fileno()
        stream.flush()
        copy = os.dup(number)
    except (OSError, ValueError, AttributeError):
        return stream, None
    own = os.fdopen(copy, "w", 1 if stream.isatty() else -1, stream.encoding, "replace")
    try:
        os.dup2(sys.stderr.fileno(), number)
    except (OSError, ValueError, AttributeError):  # standard error is closed
        own.close()
        return stream, None
    return own, number


def out() -> Screen:
    """Standard output: results."""
    return Screen(file=results(), markup=False, emoji=False, highlight=False)


def err() -> Screen:
    """Standard error: progress, notes and errors."""
    return Screen(stderr=True, markup=False, emoji=False, highlight=False)


def note(text: str) -> None:
    """Print a note to standard error."""
    say(err(), Text(text, "dim"))


def complain(text: str, advice: str = "") -> None:
    """Print an error, with long words shortened, and an advice if there is one."""
    brief = re.sub(r"(\S{80})\S{400,}", r"\1...", text)
    brief = brief if len(brief) <= _LONGEST else brief[:_LONGEST] + "..."
    say(err(), Text("error: ", "bold red").append(brief, "not bold default"))
    if advice:
        note(advice)


def say(console: Console, text: Text) -> None:
    """Print a text wrapped between words; long paths are not broken, so that they can be copied."""
    for line in text.split("\n", allow_blank=True):
        for part in line.divide(_breaks(line.plain, console.width)):
            part.rstrip()
            verbatim(console, part)


def _breaks(line: str, width: int) -> list[int]:
    """Where to break a line: before words only, while rich would break long words, too."""
    places, start = [], 0
    for word in re.finditer(r"\S+", line):
        full = cell_len(line[start : word.end()]) > width
        if full and line[start : word.start()].strip():
            places.append(start := word.start())
    return places


def verbatim(console: Console, text: Text) -> None:
    """Print a text without wrapping its lines, so that it can be copied."""
    console.print(text, soft_wrap=True)


def name_pages(run: Path, page: Path) -> None:
    """Print where the page of a run is, and its site where it was written with it."""
    site = run / "site" / "index.html"
    written = [page]
    if page != site and page.parent.resolve() == run.resolve() and site.is_file():
        written.append(site)
    for path in written:
        verbatim(out(), Text(f"{'site' if path == site else 'page'}  {path}"))


def print_json(value: Any) -> None:
    """Write a value as JSON to standard output."""
    results().write(json.dumps(value, indent=1, default=str) + "\n")


class Spelled(Text):
    """A text such as ``minimal(pgd(steps=20))``, whose lines end after punctuation."""

    def wrap(self, console: Console, width: int, *args: Any, **options: Any) -> Lines:
        broken = Text(broken_up(self.plain, width), self.style, end=self.end)
        return broken.wrap(console, width, *args, **options)


def columns(*names: str, right: tuple[str, ...] = ()) -> Table:
    """A table without a frame, in which long cells are folded, but for numbers to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in names:
        if name in right:
            table.add_column(name, overflow="fold", justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold")
    return table


def whole_names(table: Table, width: int) -> Table:
    """A table whose first column is not folded where it takes half of the width or less."""
    first = table.columns[0]
    longest = max((cell_len(str(cell)) for cell in first.cells), default=0)
    if 2 * longest <= width:
        first.no_wrap = True
    return table


def tolerate(stream: TextIO) -> None:
    """Let a stream write a question mark for a character that its terminal lacks."""
    reconfigure = getattr(stream, "reconfigure", None)
    if callable(reconfigure):
        reconfigure(errors="replace")


def let_go(stream: TextIO) -> None:
    """Discard the rest of a closed stream, or Python prints an error at exit."""
    try:
        number = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)

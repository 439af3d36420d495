"""Where commands write: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from besiege.report.console import Harmless

_LONGEST = 2000
"""Letters of a message."""


class Screen(Harmless):
    """A console that takes texts as they are, and tells its caller when nobody reads any more."""

    def print(self, *objects: Any, **options: Any) -> None:
        if self.is_terminal:
            super().print(*objects, **options)
            return
        # In a file, what fills a table up to its width is only in the way.
        with self.capture() as held:
            super().print(*objects, **options)
        lines = held.get().split("\n")
        self.file.write("\n".join(line.rstrip() for line in lines))

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


_results: TextIO | None = None


def results() -> TextIO:
    """The stream that results go to: standard output, while what others print goes elsewhere."""
    return sys.stdout if _results is None else _results


@contextmanager
def apart() -> Iterator[None]:
    """Send what a user's code prints to standard error: standard output holds results alone."""
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
            with suppress(OSError):  # a full disk, say, which was told when it was written to
                own.close()


def _own_output(stream: TextIO) -> tuple[TextIO, int | None]:
    """A stream of our own to where standard output goes, and the number that now leads elsewhere.

    What is written in C, or by another process, knows the number alone. A stream that stands in for
    standard output has none.
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
    except (OSError, ValueError, AttributeError):  # nobody listens there
        own.close()
        return stream, None
    return own, number


def out() -> Screen:
    """Standard output: what was asked for."""
    return Screen(file=results(), markup=False, emoji=False, highlight=False)


def err() -> Screen:
    """Standard error: progress, notes and errors."""
    return Screen(stderr=True, markup=False, emoji=False, highlight=False)


def note(text: str) -> None:
    """Say something that is no result."""
    say(err(), Text(text, "dim"))


def complain(text: str, advice: str = "") -> None:
    """Say what went wrong, and how to go on where that is known; what was typed is not repeated."""
    brief = re.sub(r"(\S{80})\S{400,}", r"\1...", text)
    brief = brief if len(brief) <= _LONGEST else brief[:_LONGEST] + "..."
    say(err(), Text("error: ", "bold red").append(brief, "not bold default"))
    if advice:
        note(advice)


def say(console: Console, text: Text) -> None:
    """Print a text wrapped between words; a long path stays whole, so that it can be copied."""
    for line in text.split("\n", allow_blank=True):
        for part in line.divide(_breaks(line.plain, console.width)):
            part.rstrip()
            verbatim(console, part)


def _breaks(line: str, width: int) -> list[int]:
    """Where a line is broken, always before a word: rich would break long words too."""
    places, start = [], 0
    for word in re.finditer(r"\S+", line):
        full = cell_len(line[start : word.end()]) > width
        if full and line[start : word.start()].strip():
            places.append(start := word.start())
    return places


def verbatim(console: Console, text: Text) -> None:
    """Print a text with its own lines, however long they are: it is there to be copied."""
    console.print(text, soft_wrap=True)


def print_json(value: Any) -> None:
    """Write a value as JSON, and nothing else, to standard output."""
    results().write(json.dumps(value, indent=1, default=str) + "\n")


def columns(*names: str, right: tuple[str, ...] = ()) -> Table:
    """A plain table: no frame, long cells folded."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, overflow="fold", justify="right" if name in right else "left")
    return table


def tolerate(stream: TextIO) -> None:
    """Let a stream write a question mark for a letter its terminal does not have."""
    reconfigure = getattr(stream, "reconfigure", None)
    if callable(reconfigure):
        reconfigure(errors="replace")


def let_go(stream: TextIO) -> None:
    """Send what is left of a stream nowhere, or Python would complain of it at its end."""
    try:
        number = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)

"""What is printed: the results, then the warnings, the commands to run next, and the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from besiege.core.shell import wrapped
from besiege.metrics.values import RunFigures
from besiege.report.findings import example, next_steps
from besiege.report.formats import checked
from besiege.report.grouping import ranked
from besiege.report.terminal.attacks import legend
from besiege.report.terminal.details import detailed
from besiege.report.terminal.several import compared
from besiege.report.terminal.warnings import explained, signs

_STEPS = 3
"""Largest number of commands to run next in brief; more are counted."""


def table(
    figures: RunFigures,
    page: Path | str | None = None,
    details: bool | None = None,
    head: RenderableType | None = None,
) -> RenderableType:
    """The result of evaluations, to be printed with rich.

    Parameters
    ----------
    figures : RunFigures
        The figures of a run, or of one evaluation: ``RunFigures.of(found.figures)``.
    page : path, optional
        The HTML page, named in the last line. Print with ``soft_wrap=True`` to keep a path that
        is longer than a line in one piece.
    details : bool, optional
        Whether to list the attacks of every evaluation, and all findings; by default the attacks
        only where there is one evaluation, and no findings that follow from a fault of the model.
    head : RenderableType, optional
        Stands in place of the table of several evaluations: the cells of a benchmark.

    Returns
    -------
    RenderableType
        The table, fitted to the width of the console; plain text if that is not a terminal.

    Examples
    --------
    >>> import besiege
    >>> from besiege.metrics import RunFigures
    >>> from rich.console import Console
    >>> found = besiege.evaluate(
    ...     "zoo:digits-natural", "digits", threat="linf:0.15", attacks="fgsm", count=20
    ... )
    >>> Console(width=80).print(table(RunFigures.of(found.figures)))  # doctest: +ELLIPSIS
    zoo:digits-natural against linf:0.15
    on 20 of the 397 images of digits (test), chosen with seed 0
    ...
    """
    several = len(checked(figures).evaluations) > 1
    shown = not several if details is None else details
    return _Report(figures, None if page is None else str(page), shown, bool(details), head)


@dataclass(frozen=True)
class _Report:
    figures: RunFigures
    page: str | None
    details: bool
    every: bool
    head: RenderableType | None = None

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        evaluations = ranked(self.figures.evaluations)
        if not self.figures.complete:
            again = "Run the same command again to resume."
            yield Text(f"NOT COMPLETE: records are missing or damaged. {again}", "bold red")
            yield ""
        fired = signs(evaluations)
        if len(evaluations) > 1:
            yield from fired
            yield from [""] * bool(fired)
            if self.head is None:
                yield from compared(evaluations, options.max_width, brief=not self.details)
            else:
                yield self.head
            yield ""
        if self.details:
            above = fired if len(evaluations) == 1 else []
            for evaluation in evaluations:
                yield from detailed(evaluation, options.max_width, above)
            yield Text(legend(evaluations, options.max_width), "dim")
            yield ""
        if any(evaluation.warnings for evaluation in evaluations):
            yield from explained(evaluations, self.every)
            yield ""
        if steps := next_steps(evaluations):
            shown = steps if self.details else steps[:_STEPS]
            for ids, first, command in shown:
                yield Text(f"To run next ({ids}):" if not first else f"{first} ({ids}):")
                yield Text(wrapped(command, options.max_width), overflow="fold")
            if more := len(steps) - len(shown):
                left = f"{more:,} more command{'s' if more > 1 else ''}"
                yield Text(f"{left}: besiege report RUN --details", "dim")
            yield ""
        if code := example(evaluations):
            yield Text(code, "dim", overflow="fold")
        if self.page is not None:
            yield from _page(self.page, options)


def _page(path: str, options: ConsoleOptions) -> Iterator[RenderableType]:
    """The path of the page, in its own line if it is long.

    A console cuts lines wider than itself, so a longer path is folded, except where the console
    does not wrap lines.
    """
    if options.overflow == "ignore" or len("page  ") + cell_len(path) <= options.max_width:
        yield Text("page  ", "dim", no_wrap=True).append(path, "not dim underline")
        return
    yield Text("page", "dim")
    yield Text(path, "underline", no_wrap=cell_len(path) <= options.max_width, overflow="fold")

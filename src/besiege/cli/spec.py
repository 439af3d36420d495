"""``besiege spec``: checks the file of a benchmark, and shows what it would run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from besiege.bench.benchmark import Benchmark, Cell
from besiege.bench.benchmark_files import read_benchmark
from besiege.cli import screen
from besiege.cli.grammar import AsJson, Count, Device, Place, Threads, examples, flowing
from besiege.core.errors import InputError
from besiege.core.text import short
from besiege.report.formats import seconds as duration

if TYPE_CHECKING:
    from besiege.bench.expanding import Declared
    from besiege.bench.forecast import CellForecast, Forecast
    from besiege.bench.preparing import Prepared

command = App(
    name="spec",
    help_epilogue=examples("besiege spec check digits.toml", "besiege spec show digits.toml"),
)
_WIDE = 100
"""Characters in which three columns of names have room."""
Spec = Annotated[Place, Parameter(metavar="SPEC")]


@command.default
def spec() -> int:
    """Check the file of a benchmark, or show what it would run."""
    from besiege.cli.app import APP

    APP.help_print(["spec"], console=screen.out())
    return 0


@command.command(help_epilogue=examples("besiege spec check digits.toml"))
@flowing
def check(spec: Spec, /, *, device: Device = None, threads: Threads = None) -> int:
    """Check the file of a benchmark: every name, every file, and whether the attacks fit.

    All problems are printed at once, each with its place. Every model answers a few images.

    Parameters
    ----------
    spec
        TOML file of the benchmark.
    """
    declared = read_spec(spec, problems=[])  # an error names them with those of the models
    prepared = prepared_spec(declared, device, threads)
    counts = f"{len(prepared.entries)} evaluations of {len(declared.benchmark.models)} models"
    if prepared.trainings:
        counts += f", of which {len(prepared.trainings)} are trained first"
    screen.say(screen.out(), Text(f"{spec} is a benchmark: {counts}."))
    _print_unfit(prepared)
    return 0


@command.command(
    help_epilogue=examples("besiege spec show digits.toml", "besiege spec show digits.toml --json")
)
@flowing
def show(
    spec: Spec,
    /,
    *,
    count: Count = None,
    device: Device = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> int:
    """Show what a benchmark would run: its cells and models, tasks, hours and gigabytes.

    Hours follow from a few timed passes of every model, in one process; nothing is written.

    Parameters
    ----------
    spec
        TOML file of the benchmark.
    count
        Number of images, in place of that in the file.
    """
    return shown(read_spec(spec, count), device, threads, as_json)


def shown(
    declared: Declared, device: str | None, threads: int | None, as_json: bool = False
) -> int:
    """Print the forecast of a benchmark."""
    from besiege.bench.forecast import forecast

    prepared = prepared_spec(declared, device, threads)
    found = forecast(prepared)
    if as_json:
        screen.print_json(found.plain())
        return 0
    _print(declared.benchmark, found)
    _print_unfit(prepared)
    return 0


def read_spec(path: Path, count: int | None = None, problems: list[str] | None = None) -> Declared:
    """The benchmark of a file with its evaluations, all of them on at most `count` images.

    Problems are raised, or added to a list.
    """
    benchmark = read_benchmark(path, problems)
    if count is not None:
        cells = tuple(_shortened(cell, count) for cell in benchmark.cells)
        benchmark = benchmark.model_copy(update={"count": count, "cells": cells})
    from besiege.bench.expanding import declared

    return declared(benchmark, path.parent, str(path), problems)


def _shortened(cell: Cell, count: int) -> Cell:
    return cell.model_copy(update={"count": None if cell.count is None else min(cell.count, count)})


def prepared_spec(declared: Declared, device: str | None, threads: int | None) -> Prepared:
    """The plans of a benchmark; nothing is written."""
    from tempfile import TemporaryDirectory

    from besiege.bench.preparing import prepare_benchmark
    from besiege.bench.spec import Machine
    from besiege.cli.machine import prepare

    how = Machine(prepare(device, threads))
    # A model behind HTTP keeps its answers in a run folder, and there is none.
    with TemporaryDirectory(prefix="besiege-") as folder:
        return prepare_benchmark(declared, Path(folder), None, how)


def _print(benchmark: Benchmark, found: Forecast) -> None:
    out = screen.out()
    out.print(Text(benchmark.name, "bold"))
    number = "all" if benchmark.count is None else f"{benchmark.count:,}"
    screen.say(out, Text(f"{number} images of {benchmark.data} ({benchmark.split})", "dim"))
    out.print()
    models = screen.columns("model", "text", "a pass", "with gradient", right=("a pass",))
    for name, text in benchmark.models.items():
        if name in found.paces:
            pace = found.paces[name]
            words = text if isinstance(text, str) else text.text
            paces = map(_milliseconds, (pace.forward, pace.both))
            models.add_row(name, screen.Spelled(short(words)), *paces)
    out.print(models)
    out.print()
    if found.trainings:
        first = screen.columns(
            "trained first", "recipe", "epochs", "time", right=("epochs", "time")
        )
        for training in found.trainings:
            time = _duration(training.seconds)
            recipe = screen.Spelled(short(training.recipe))
            first.add_row(training.model, recipe, str(training.epochs), time)
        out.print(first)
        out.print()
    cells = _cells(benchmark, found, ("cell", "threat", "attacks"))
    whole = out.measure(cells, options=out.options.update(max_width=1000)).maximum
    if out.width < min(whole, _WIDE):
        cells = _cells(benchmark, found, ("cell",))
    out.print(cells)
    out.print()
    kept = {"all": "all stay", "shown": "24 an evaluation stay", "none": "none stays"}
    screen.say(
        out,
        Text(
            "Tasks that cells share are counted once. Times are those of one process, at most: "
            "images that are broken early take less. Images take at most this much while the "
            f"benchmark runs; {kept[benchmark.store.images]}.",
            "dim",
        ),
    )


def _cells(benchmark: Benchmark, found: Forecast, names: tuple[str, ...]) -> Table:
    """A row for each cell; with one column of names, what a cell is stands below its name."""
    headings = ("models", "tasks", "time", "images")
    table = screen.columns(*names, *headings, right=headings)
    for one in found.cells:
        name, *about, models, tasks, time, size = _row(benchmark.cell(one.cell), one)
        table.add_row(*_named(name, about, len(names)), models, tasks, time, size)
    total = (f"{found.tasks:,}", _duration(found.seconds), gigabytes(found.image_bytes))
    table.add_row("in all", *[""] * len(names), *total)
    return table


def _named(name: str, about: list[str], columns: int) -> list[RenderableType]:
    if columns > 1:
        return [Text(name), *map(screen.Spelled, about)]
    below = [Padding(screen.Spelled(one, "dim"), (0, 0, 0, 2)) for one in about]
    return [Group(name, *below)]


def _row(declared: Cell, found: CellForecast) -> list[str]:
    attacks = declared.suite or ", ".join(declared.attacks or ())
    budgets = f" at {', '.join(declared.budgets)}" if declared.budgets else ""
    how = f"search for {attacks}" if declared.searches else attacks
    how += " on a substitute" if declared.substitute else ""
    return [
        declared.name,
        declared.threat + budgets,
        short(how),
        str(found.models),
        f"{found.tasks:,}",
        _duration(found.seconds),
        gigabytes(found.image_bytes),
    ]


def _print_unfit(prepared: Prepared) -> None:
    for left in prepared.unfit:
        screen.note(f'{left.model} is left out of "{left.cell}": {left.reason}')


def _duration(value: float | None) -> str:
    return "unknown" if value is None else duration(value)


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{1000 * value:.2f} ms"


def gigabytes(count: int) -> str:
    """A number of bytes in words.

    Examples
    --------
    >>> gigabytes(6_500_000), gigabytes(2_340_000_000)
    ('6.5 MB', '2.3 GB')
    """
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def part_of(text: str) -> tuple[int, int]:
    """The part ``I/N`` of a run, from 1 to N.

    Examples
    --------
    >>> part_of("2/4")
    (2, 4)
    """
    first, slash, last = text.partition("/")
    if slash and first.isascii() and last.isascii() and first.isdigit() and last.isdigit():
        number, count = int(first), int(last)
        if 1 <= number <= count <= 1_000_000:
            return number, count
    raise InputError(f"--part is '{short(text)}': write I/N with I from 1 to N, such as 2/4")

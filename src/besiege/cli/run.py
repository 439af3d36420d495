"""``besiege run``: runs a benchmark, declared in a TOML file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.text import Text

from besiege.bench.folder import run_folder
from besiege.bench.spec import Machine
from besiege.cli import screen
from besiege.cli.evaluate import RUNS
from besiege.cli.gates import gating
from besiege.cli.grammar import (
    AsJson,
    Choice,
    Count,
    Device,
    Flag,
    Place,
    Threads,
    examples,
    flowing,
)
from besiege.cli.resuming import Beginning, resumable
from besiege.cli.spec import Spec, part_of, read_spec, shown
from besiege.core.shell import shell
from besiege.report.progress import bar

if TYPE_CHECKING:
    from besiege.bench.evaluations import Evaluations
    from besiege.bench.expanding import Declared

command = App(
    name="run",
    help_epilogue=examples(
        "besiege run digits.toml",
        "besiege run digits.toml --count 20 --out tried",
        "besiege run digits.toml --dry-run",
        "besiege run digits.toml --workers 8 --out my-run",
    ),
)


@command.default
@flowing
def run(
    spec: Spec,
    /,
    *,
    out: Annotated[Place | None, Parameter(metavar="FOLDER")] = None,
    count: Count = None,
    workers: Count = None,
    part: Annotated[str | None, Parameter(metavar="I/N")] = None,
    ray: Annotated[str | None, Parameter(metavar="ADDRESS")] = None,
    devices: Literal["all"] | None = None,
    batch: Count = None,
    compile: Choice = None,
    device: Device = None,
    threads: Threads = None,
    dry_run: Flag = False,
    as_json: AsJson = False,
) -> int:
    """Run a benchmark: many models under many threats, declared in one TOML file.

    Prints a table of models by cells. Finished work is kept in a run folder: run the same command
    again to resume an interrupted run. Cells and models may be added to the file later; anything
    else that changes needs another folder.

    Parameters
    ----------
    spec
        TOML file of the benchmark.
    out
        Run folder; by default one in besiege-runs, named after the benchmark.
    count
        Number of images, in place of that in the file.
    workers
        Number of processes that work on it.
    part
        Take part in a run that N processes share, on a shared disk, as the Ith of them.
    ray
        Address of a Ray cluster that works on it.
    devices
        all: one worker for every GPU.
    batch
        Images per call of the model; changes no result.
    compile
        On a GPU, search on a compiled copy of the model: up to a minute at first, then faster. By
        default where there is enough work to pay for it.
    dry_run
        Run nothing; show tasks, hours and gigabytes, as besiege spec show does.
    """
    crew: dict[str, Any] = {
        "workers": workers,
        "part": None if part is None else part_of(part),
        "ray": ray,
        "devices": devices,
    }
    declared = read_spec(spec, count)
    if dry_run:
        return shown(declared, device, threads, as_json)
    named = declared.benchmark.name + ("" if count is None else f"-{count}")
    folder = run_folder(RUNS / named if out is None else out)
    again = shell(["besiege", "run", spec, *([] if count is None else ["--count", count])])
    if out is not None:
        again += f" {shell(['--out', folder])}"
    done = carried_out(declared, folder, again, Machine(device, batch, compile, threads), crew, run)
    if isinstance(done, int):
        return done
    return _concluded(done, folder, as_json)


def carried_out(
    declared: Declared,
    folder: Path,
    again: str,
    how: Machine,
    crew: dict[str, Any],
    command: Callable[..., Any],
) -> Evaluations | int:
    """Run a benchmark into a folder; the exit code where the command `again` would resume it."""
    commanded = _commanded(declared, again)
    return resumable(lambda: _measured(commanded, folder, how, crew), folder, command)


def _commanded(declared: Declared, command: str) -> Declared:
    """The benchmark with the command that reports name to reproduce it."""
    entries = tuple(
        replace(entry, request=entry.request.model_copy(update={"command": command}))
        for entry in declared.entries
    )
    return replace(declared, entries=entries)


def _measured(declared: Declared, folder: Path, how: Machine, crew: dict[str, Any]) -> Evaluations:
    with bar(declared.benchmark.name, screen.err()) as watch:
        from besiege.bench.single import measure
        from besiege.cli.machine import prepare

        prepare(how.device, how.threads)
        beginning = Beginning(folder, watch)
        accept, tell = beginning.accept, beginning.tell
        return measure(declared, out=folder, how=how, watch=tell, accept=accept, **crew)


def _concluded(done: Evaluations, folder: Path, as_json: bool) -> int:
    from besiege.bench.overview import open_run
    from besiege.report.cells import cells_table
    from besiege.report.terminal import signs

    figures, (_, run) = done[0]._run, open_run(folder)
    names = {entry.plan for entry in run.entries}
    mine = tuple(one for one in figures.evaluations if one.name in names)
    if as_json:
        shown = replace(figures, evaluations=mine, complete=all(one.complete for one in mine))
        entries = [entry.model_dump() for entry in run.entries]
        screen.print_json({**shown.plain(), "entries": entries})
    else:
        screen.out().print(cells_table(run, figures))
        screen.out().print()
        fired = signs(mine, "by besiege report")
        for line in fired:
            screen.say(screen.out(), line)
        following = {"Pages and warnings" if fired else "Pages": "report"}
        if len({entry.model for entry in run.entries}) > 1:
            following["Which model is more robust"] = "compare"
        for words, command in following.items():
            text = Text(f"{words}: {shell(['besiege', command, folder])}")
            screen.verbatim(screen.out(), text)
    return gating(None, [], folder).conclude(folder, mine)

"""``besiege study``: lists studies, runs them, and answers their claims."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from rich.text import Text

from besiege.bench.folder import run_folder
from besiege.bench.spec import Machine
from besiege.cli import screen
from besiege.cli.answers import print_answers
from besiege.cli.evaluate import RUNS
from besiege.cli.exits import FINE, INCOMPLETE
from besiege.cli.grammar import (
    AsJson,
    Count,
    Device,
    Flag,
    Place,
    Threads,
    examples,
    flowing,
)
from besiege.core.errors import InputError
from besiege.core.shell import shell

if TYPE_CHECKING:
    from besiege.bench.benchmark import Benchmark
    from besiege.bench.expanding import Declared
    from besiege.studies.study import Study

command = App(
    name="study",
    help_epilogue=examples(
        "besiege study",
        "besiege study digits",
        "besiege study realsafe --data digits --size smoke --show",
        "besiege study realsafe --data digits --size smoke --out my-run",
        "besiege study realsafe --run my-run --page realsafe.md",
    ),
)


@command.default
@flowing
def study(
    name: Annotated[str | None, Parameter(metavar="NAME")] = None,
    /,
    *,
    run: Annotated[Place | None, Parameter(metavar="RUN")] = None,
    data: Annotated[str | None, Parameter(metavar="DATA")] = None,
    size: Annotated[str | None, Parameter(metavar="SIZE")] = None,
    models: Annotated[str | None, Parameter(metavar="A,B,C")] = None,
    count: Count = None,
    queries: Count = None,
    only: Annotated[str | None, Parameter(metavar="GLOB")] = None,
    show: Flag = False,
    out: Annotated[Place | None, Parameter(metavar="FOLDER")] = None,
    page: Annotated[Place | None, Parameter(metavar="FILE")] = None,
    workers: Count = None,
    part: Annotated[str | None, Parameter(metavar="I/N")] = None,
    batch: Count = None,
    device: Device = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> int:
    """List the studies, run one, or answer its claims from a run.

    A study is a benchmark and claims declared before its run. With --data, --size or another
    choice its benchmark is run, like any other, into a folder, where the same command resumes it.
    Then its claims are answered: yes, no, cannot tell, or not run. Yes: the interval of the effect
    excludes no effect. No: it excludes the smallest effect that the claim means. Of m claims, each
    interval has the level 1 - 0.05/m, such that any answer is false in at most 5 % of all
    experiments. The exit code is 3 where a claim was not run.

    Parameters
    ----------
    name
        Study; without it, all are listed.
    run
        Run folder of the study's benchmark: answer from it, and run nothing.
    data
        Data set, of a study with several.
    size
        Numbers of images and queries, by the names that besiege study NAME lists.
    models
        Models in place of those of the study: names of it, texts, or NAME=TEXT.
    count
        Number of images, at most, in every cell.
    queries
        Number of queries, at most, of a try of every attack that is limited.
    only
        Run only the cells whose name matches, such as "white*"; those that the folder has stay.
    show
        Run nothing; show cells, tasks, hours and gigabytes.
    out
        Run folder; by default one in besiege-runs, named after study, data and size.
    page
        Also write answers and tables as a page in Markdown.
    workers
        Number of processes that work on it.
    part
        Take part in a run that N processes share, on a shared disk, as the Ith of them.
    batch
        Images per call of the model; changes no result.
    """
    from besiege.studies.choosing import Choice
    from besiege.studies.study import STUDIES

    words = () if models is None else _listed(models)
    choice = Choice(data, size, words, count, queries, only)
    asked = show or out is not None or choice != Choice()
    if name is None:
        if run is not None:
            raise InputError("the run of which study? Name it before --run: `besiege study` lists")
        if asked or page is not None:
            raise InputError("which study? Name it first: `besiege study` lists them")
        return _list([one for _, one in STUDIES.items()], as_json)
    study_ = STUDIES.get(name)
    if run is not None:
        if asked:
            raise InputError("--run only reads a run: leave it out to run the study, into --out")
        return _answered(study_, run, page, as_json)
    if not asked:
        return _explain(study_, as_json)
    declared = _declared(study_, choice, out)
    if show:
        return _shown(declared, device, threads, as_json)
    folder = run_folder(_folder(study_, choice) if out is None else out)
    again = _command(name, choice, models, folder)
    crew: dict[str, Any] = {"workers": workers, "part": _part(part)}
    return _run(study_, declared, folder, again, Machine(device, batch, None, threads), crew, page,
                as_json)  # fmt: skip


def _listed(models: str) -> tuple[str, ...]:
    from besiege.attacks.attack import split

    return tuple(split(models))


def _part(part: str | None) -> tuple[int, int] | None:
    from besiege.cli.spec import part_of

    return None if part is None else part_of(part)


def _declared(chosen_study: Study, choice: Any, out: Path | None) -> Declared:
    """The benchmark that is asked for, with what its folder already has."""
    from besiege.bench.expanding import declared
    from besiege.studies.choosing import chosen, joined

    benchmark, path = chosen(chosen_study, choice)
    if (before := _before(chosen_study, out)) is not None:
        benchmark = joined(before, benchmark)
    return declared(benchmark, path.parent, f"the study '{chosen_study.name}'")


def _before(chosen_study: Study, out: Path | None) -> Benchmark | None:
    """The benchmark of a run folder that is there."""
    from besiege.bench.run import read_run
    from besiege.bench.store import Store

    if out is None or not (out / "run.json").is_file():
        return None
    run = read_run(Store(out))
    benchmark = None if run is None else run.benchmark
    chosen_study.must_be_of(benchmark, str(out))
    return benchmark


def _folder(chosen_study: Study, choice: Any) -> Path:
    words = (chosen_study.name, choice.data, choice.size)
    return RUNS / "-".join(word for word in words if word is not None)


def _command(name: str, choice: Any, models: str | None, folder: Path) -> str:
    """The command that resumes a run."""
    words = ["besiege", "study", name]
    for option, value in (
        ("--data", choice.data),
        ("--size", choice.size),
        ("--models", models),
        ("--count", choice.count),
        ("--queries", choice.queries),
        ("--only", choice.only),
        ("--out", folder),
    ):
        words += [] if value is None else [option, str(value)]
    return shell(words)


def _shown(declared: Declared, device: str | None, threads: int | None, as_json: bool) -> int:
    from besiege.cli.spec import shown

    code = shown(declared, device, threads, as_json)
    if not as_json:
        for name, why in declared.benchmark.absent.items():
            screen.note(f"{name} is absent: {why}")
    return code


def _run(
    chosen_study: Study,
    declared: Declared,
    folder: Path,
    again: str,
    how: Machine,
    crew: dict[str, Any],
    page: Path | None,
    as_json: bool,
) -> int:
    from besiege.cli.run import carried_out

    done = carried_out(declared, folder, again, how, crew, study)
    if isinstance(done, int):
        return done
    code = _answered(chosen_study, folder, page, as_json)
    if not as_json:
        screen.out().print()
        screen.verbatim(screen.out(), Text(f"Pages: {shell(['besiege', 'report', folder])}"))
    return code if done.complete else INCOMPLETE


def _answered(chosen_study: Study, run: Path, page: Path | None, as_json: bool) -> int:
    """The answers of a run, on the screen and as a page."""
    from besiege.bench.board_reading import board_of
    from besiege.bench.overview import open_run

    chosen_study.must_be_of(open_run(run)[1].benchmark, str(run))
    board = board_of(run)
    answers, tables = chosen_study.answers(board), chosen_study.shown(board)
    readings = chosen_study.readings(board)
    if as_json:
        told = {
            "answers": [one.plain() for one in answers],
            "tables": [{"name": key, **grid.plain()} for key, grid in tables.items()],
            "readings": list(readings),
            "absent": dict(board.absent),
        }
        screen.print_json({"study": chosen_study.name, "level": chosen_study.level, **told})
    else:
        print_answers(chosen_study, answers, tables, readings)
        for name, why in board.absent.items():
            screen.say(screen.out(), Text(f"absent: {name}: {why}", "dim"))
    if page is not None:
        from besiege.core.files import replacing
        from besiege.report.study import study_page

        with replacing(page) as file:
            file.write(study_page(chosen_study, board).encode())
        if not as_json:
            screen.verbatim(screen.out(), Text(f"page  {page}"))
    return INCOMPLETE if any(one.verdict == "not run" for one in answers) else FINE


def _list(studies: list[Study], as_json: bool) -> int:
    if as_json:
        found = [
            {"name": one.name, "title": one.title, "claims": len(one.claims)} for one in studies
        ]
        screen.print_json({"studies": found})
        return FINE
    rows = screen.columns("study", "claims", "title", right=("claims",))
    for one in studies:
        rows.add_row(Text(one.name, "bold"), str(len(one.claims)), one.title)
    console = screen.out()
    console.print(rows)
    console.print()
    screen.say(console, Text("`besiege study NAME` shows its claims and how to run it."))
    return FINE


def _explain(chosen_study: Study, as_json: bool) -> int:
    """The claims of a study, and the commands that answer them."""
    specs = {name: str(path) for name, path in chosen_study.specs.items()}
    if as_json:
        claims = [
            {"id": one.id, "claim": one.text, "paper": one.paper, "data": list(one.data)}
            for one in chosen_study.claims
        ]
        told: dict[str, Any] = {
            "specs": specs,
            "sizes": {k: v.about for k, v in chosen_study.sizes.items()},
        }
        told |= {"tables": [one.name for one in chosen_study.tables]}
        screen.print_json(
            {"study": chosen_study.name, "spec": str(chosen_study.spec), **told, "claims": claims}
        )
        return FINE
    console = screen.out()
    console.print(Text(chosen_study.title, "bold"))
    screen.say(console, Text(chosen_study.source, "dim"))
    for claim in chosen_study.claims:
        where = f" (on {', '.join(claim.data)})" if claim.data else ""
        screen.say(console, Text(f"{claim.id}  ", "bold").append(claim.text + where, "not bold"))
    console.print()
    if len(specs) > 1:
        screen.say(console, Text("--data  ", "bold").append(", ".join(specs), "not bold"))
    for size, about in chosen_study.sizes.items():
        screen.say(console, Text(f"--size {size}  ", "bold").append(about.about, "not bold"))
    for benchmark in chosen_study.benchmarks():
        for name, why in benchmark.absent.items():
            screen.say(console, Text(f"absent on {benchmark.data}: {name}: {why}", "dim"))
    if names := ", ".join(one.name for one in chosen_study.tables):
        screen.say(console, Text(f"Tables for besiege export RUN FILE --table NAME: {names}"))
    console.print()
    folder = f"study-{chosen_study.name}"
    if chosen_study.sizes:
        data, size = next(iter(specs)), next(iter(chosen_study.sizes))
        words = [
            "besiege",
            "study",
            chosen_study.name,
            *(["--data", data] if len(specs) > 1 else []),
        ]
        screen.verbatim(console, Text(shell([*words, "--size", size, "--out", folder])))
    else:
        console.print(Text(f"besiege run {chosen_study.spec} --out {folder}", overflow="fold"))
    console.print(f"besiege study {chosen_study.name} --run {folder}")
    return FINE

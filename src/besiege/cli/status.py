"""``besiege status``: prints how much of a run is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from rich.text import Text

from besiege.cli import screen
from besiege.cli.grammar import AsJson, Place, examples, flowing
from besiege.report.formats import seconds as duration

if TYPE_CHECKING:
    from besiege.bench.overview import Progress, Status, Trained
    from besiege.bench.run import Run

command = App(
    name="status",
    help_epilogue=examples("besiege status my-run", "besiege status my-run --json"),
)


@command.default
@flowing
def status(run: Annotated[Place, Parameter(metavar="RUN")], /, *, as_json: AsJson = False) -> int:
    """Print how much of a run is done, also while it is running.

    Of a benchmark it prints a table of models by cells, with the share of the work that is done.
    The exit code is 0 for a complete run and 3 where records are missing.

    Parameters
    ----------
    run
        Run folder.
    """
    from besiege.bench.overview import open_run, trained
    from besiege.bench.overview import status as read

    found, (_, written), models = read(run), open_run(run), trained(run)
    complete = bool(found) and all(evaluation.complete for evaluation in found)
    complete &= all(model.done for model in models)
    if as_json:
        screen.print_json(
            {
                "complete": complete,
                "evaluations": [_as_json(evaluation) for evaluation in found],
                **(
                    {"entries": [e.model_dump() for e in written.entries]}
                    if written.entries
                    else {}
                ),
                **({"trainings": [vars(model) for model in models]} if models else {}),
            }
        )
    elif written.benchmark is not None:
        _print_cells(written, found, models)
    else:
        _print(found)
    return 0 if complete else 3


def _print_cells(run: Run, found: list[Status], models: list[Trained]) -> None:
    """A benchmark: the share of the work of every model in every cell, and what went wrong."""
    assert run.benchmark is not None, "the caller knows"
    console, by_plan = screen.out(), {one.plan.name: one for one in found}
    entries = [entry for entry in run.entries if entry.plan in by_plan]
    cells = [cell.name for cell in run.benchmark.cells]
    console.print(Text(run.benchmark.name, "bold"))
    shares = {
        model: [
            _share([by_plan[e.plan] for e in entries if (e.model, e.cell) == (model, cell)])
            for cell in cells
        ]
        for model in run.benchmark.models
    }
    for places in _side_by_side(cells, shares, console.width):
        names = [cells[place] for place in places]
        table = screen.columns("", *names, right=tuple(names))
        for model, mine in shares.items():
            table.add_row(model, *(mine[place] for place in places))
        console.print(table, Text())
    for entry in entries:
        for problem in _problems(by_plan[entry.plan]):
            console.print(Text(f'{entry.model} in "{entry.cell}": {problem}', "bold red"))
    for one in models:
        if one.done:
            text = f"{one.model}: trained in {duration(one.seconds)}, {one.record}"
        else:
            state = f"failed: {one.failure}" if one.failure else "is not complete"
            text = f"{one.model}: its training {state}"
        console.print(Text(text, "bold red" if one.failure else "dim"), soft_wrap=True)
    complete = bool(found) and all(one.complete for one in found)
    complete &= all(one.done for one in models)
    console.print(
        Text("complete", "green")
        if complete
        else Text("incomplete: run its command again to resume", "yellow")
    )
    for command in dict.fromkeys(one.plan.request.command for one in found):
        console.print(Text(command, "dim"), soft_wrap=True)


def _side_by_side(cells: list[str], shares: dict[str, list[str]], width: int) -> list[list[int]]:
    """The places of the cells, split so that each table fits the width with the models' names."""
    tables: list[list[int]] = [[]]
    left = room = width - max(map(len, shares), default=0) - 2
    for place, cell in enumerate(cells):
        wide = max(len(cell), *(len(mine[place]) for mine in shares.values())) + 2
        if wide > left and tables[-1]:
            tables.append([])
            left = room
        tables[-1].append(place)
        left -= wide
    return tables


def _share(evaluations: list[Status]) -> str:
    """The share of the shards of all attacks that are done."""
    if not evaluations:
        return "-"
    if all(one.complete for one in evaluations):
        return "complete"
    stages = [progress for one in evaluations for progress in one.attacks]
    done, total = sum(one.done for one in stages), sum(one.shards for one in stages)
    return f"{100 * done // max(total, 1)} %"


def _print(found: list[Status]) -> None:
    from besiege.bench.work_estimate import WORDS

    console = screen.out()
    for evaluation in found:
        plan = evaluation.plan
        console.print(Text(f"{plan.model.name} against {plan.threat}", "bold"))
        console.print(Text(f"on {plan.data.count:,} images of {plan.data.name}", "dim"))
        headings = ("shards", "images", "correct", "broken", "time")
        rows = screen.columns("", *headings, right=headings)
        for progress in evaluation.attacks:
            rows.add_row(
                WORDS.get(progress.attack, progress.attack),
                f"{progress.done} of {progress.shards}",
                f"{progress.samples:,}",
                f"{progress.right:,}",
                "" if progress.attack == "clean" else f"{progress.broken:,}",
                f"{progress.seconds:.1f} s",
            )
        console.print(rows)
        for problem in _problems(evaluation):
            console.print(Text(problem, "bold red"))
        console.print(
            Text("complete", "green")
            if evaluation.complete
            else Text("incomplete: run its command again to resume", "yellow")
        )
        console.print(Text(plan.request.command, "dim"), soft_wrap=True)
        console.print()


def _problems(evaluation: Status) -> list[str]:
    failed = [
        f"{progress.attack} failed: {failure}"
        for progress in evaluation.attacks
        for failure in progress.failures
    ]
    return [*failed, *(f"damaged: {text}" for text in evaluation.damaged)]


def _as_json(evaluation: Status) -> dict[str, Any]:
    plan = evaluation.plan
    return {
        "model": plan.model.name,
        "data": plan.data.name,
        "threat": plan.threat,
        "command": plan.request.command,
        "complete": evaluation.complete,
        "damaged": list(evaluation.damaged),
        "attacks": [_stage(progress) for progress in evaluation.attacks],
    }


def _stage(progress: Progress) -> dict[str, Any]:
    return {**vars(progress), "failures": list(progress.failures)}

"""``besiege history``: lists the results of a run over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.text import Text

from besiege.cli import screen
from besiege.cli.grammar import AsJson, Place, examples, flowing

if TYPE_CHECKING:
    from besiege.metrics.values import EvaluationFigures

command = App(
    name="history",
    help_epilogue=examples("besiege history my-run", "besiege history my-run --json"),
)


@command.default
@flowing
def history(run: Annotated[Place, Parameter(metavar="RUN")], /, *, as_json: AsJson = False) -> int:
    """List the results of a run over time: the current ones, and what they replaced.

    A run keeps every evaluation. When the same command runs again after the model or the data
    changed, the new result is the current one, and the earlier ones are listed here.

    Parameters
    ----------
    run
        Run folder.
    """
    from besiege.bench.results import summarise

    figures = summarise(run)
    if as_json:
        content = figures.plain()
        kept = ("name", "model", "data", "threat", "made", "commit", "clean", "robust", "history")
        screen.print_json([{name: one[name] for name in kept} for one in content["evaluations"]])
        return 0
    for evaluation in figures.evaluations:
        _print(evaluation)
    return 0


def _print(evaluation: EvaluationFigures) -> None:
    from besiege.report import answer
    from besiege.report.formats import budget_unit, distance, interval, moment, points, share

    console, minimal = screen.out(), answer.is_minimal(evaluation)
    unit = budget_unit(evaluation.threat)
    title = f"{evaluation.model.name} against {evaluation.threat.text}"
    console.print(Text(title, "bold"))
    console.print(Text(f"on {answer.sample_choice(evaluation)}", "dim"))
    right = ("clean", "median" if minimal else "robust")
    rows = screen.columns("made", "model", "commit", *right, "95 %", "since then", right=right)
    median = answer.median_change(evaluation)
    rows.add_row(
        Text(moment(evaluation.made) if evaluation.made else "unknown", "bold"),
        evaluation.model.digest[:10],
        evaluation.commit or "",
        share(evaluation.clean),
        distance(median, unit) if minimal else share(answer.robust(evaluation)),
        "" if minimal else interval(answer.robust(evaluation)),
        "current",
    )
    for old in evaluation.history:
        change = answer.verdict(old.change) if old.complete else "not complete"
        if old.complete and old.change is not None and not minimal:
            change = f"{points(old.change)}: {change}"
        rows.add_row(
            moment(old.made) if old.made else "unknown",
            old.model[:10],
            old.commit or "",
            share(old.clean),
            distance(old.median, unit) if minimal else share(old.robust),
            "" if minimal else interval(old.robust),
            change,
        )
    console.print(rows)
    console.print()

"""``besiege history``: lists the results of a run over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.text import Text

from besiege.cli import screen
from besiege.cli.grammar import AsJson, Place, examples, flowing

if TYPE_CHECKING:
    from besiege.metrics.values import Earlier, EvaluationFigures

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
    console.print(Text(evaluation.title, "bold"))
    console.print(Text(f"on {answer.sample_choice(evaluation)}", "dim"))
    commits = (
        ["commit"] if any((evaluation.commit, *(o.commit for o in evaluation.history))) else []
    )
    right = ("clean", "median" if minimal else "robust")
    # The zone in the heading: in every row it would not fit 80 columns.
    made = [evaluation.made, *(old.made for old in evaluation.history)]
    zone = " UTC" if all(moment(one).endswith(" UTC") for one in made if one) else ""
    rows = screen.columns(
        "made (UTC)" if zone else "made", "model", *commits, *right, "95 %", "", right=right
    )

    def add(one: EvaluationFigures | Earlier, digest: str, median: float | None, word: str) -> None:
        found = one.robust
        rows.add_row(
            moment(one.made).removesuffix(zone) if one.made else "unknown",
            digest[:10],
            *([one.commit or ""] if commits else []),
            share(one.clean),
            distance(median, unit) if minimal else share(found),
            "" if minimal else interval(found),
            word,
        )

    add(evaluation, evaluation.model.digest, answer.median_change(evaluation), "current")
    for old in evaluation.history:
        add(old, old.model, old.median, "" if old.complete else "not complete")
    console.print(rows)
    for old in (old for old in evaluation.history if old.complete):
        since = moment(old.made) if old.made else "an unknown date"
        change = "" if old.change is None or minimal else f"{points(old.change)}, "
        screen.say(console, Text(f"since {since}: {change}{answer.verdict(old)}"))
    console.print()

"""``besiege study``: lists studies, and answers their claims from a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.table import Table
from rich.text import Text

from besiege.cli import screen
from besiege.cli.exits import FINE, INCOMPLETE
from besiege.cli.grammar import AsJson, Place, examples, flowing

if TYPE_CHECKING:
    from besiege.studies.answers import Answer
    from besiege.studies.study import Grid, Study

command = App(
    name="study",
    help_epilogue=examples(
        "besiege study", "besiege study digits", "besiege study digits --run my-run"
    ),
)
_STYLES = {"yes": "bold green", "no": "bold red"}


@command.default
@flowing
def study(
    name: Annotated[str | None, Parameter(metavar="NAME")] = None,
    /,
    *,
    run: Annotated[Place | None, Parameter(metavar="RUN")] = None,
    as_json: AsJson = False,
) -> int:
    """List the studies, or answer the claims of one from a run of its benchmark.

    The answer to a claim is yes, no, cannot tell, or not run. Yes: the interval of the effect
    excludes no effect. No: it excludes the smallest effect that the claim means. Of m claims, each
    interval has the level 1 - 0.05/m, such that any answer is false in at most 5 % of all
    experiments. The exit code is 3 where a claim was not run.

    Parameters
    ----------
    name
        Study; without it, all are listed.
    run
        Run folder of the study's benchmark.
    """
    from besiege.core.errors import InputError
    from besiege.studies.study import STUDIES

    if name is None:
        if run is not None:
            raise InputError("the run of which study? Name it before --run: `besiege study` lists")
        return _list([one for _, one in STUDIES.items()], as_json)
    chosen = STUDIES.get(name)
    if run is None:
        return _explain(chosen, as_json)
    from besiege.bench.board import board_of
    from besiege.bench.overview import open_run

    chosen.must_be_of(open_run(run)[1].benchmark, str(run))
    board = board_of(run)
    answers, tables = chosen.answers(board), chosen.shown(board)
    if as_json:
        told = {"answers": [one.plain() for one in answers], "tables": [*map(asdict, tables)]}
        screen.print_json({"study": name, "level": chosen.level, **told})
    else:
        _print(chosen, answers, tables)
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


def _explain(chosen: Study, as_json: bool) -> int:
    """The claims of a study, and the commands that answer them."""
    if as_json:
        claims = [{"id": one.id, "claim": one.text, "paper": one.paper} for one in chosen.claims]
        screen.print_json({"study": chosen.name, "spec": str(chosen.spec), "claims": claims})
        return FINE
    console = screen.out()
    console.print(Text(chosen.title, "bold"))
    screen.say(console, Text(chosen.source, "dim"))
    for claim in chosen.claims:
        screen.say(console, Text(f"{claim.id}  ", "bold").append(claim.text, "not bold"))
    console.print()
    folder = f"study-{chosen.name}"
    console.print(Text(f"besiege run {chosen.spec} --out {folder}", overflow="fold"))
    console.print(f"besiege study {chosen.name} --run {folder}")
    return FINE


def _print(chosen: Study, answers: tuple[Answer, ...], tables: Sequence[Grid]) -> None:
    console = screen.out()
    console.print(Text(chosen.title, "bold"))
    console.print()
    rows = Table.grid(padding=(0, 2, 0, 0))
    shared = {one.caveat for one in answers} if len(answers) > 1 else set()
    for one in answers:
        below = _sentences(one, caveat=len(shared) != 1)
        text = Text(one.claim).append("".join(f"\n{each}" for each in below), "dim")
        verdict = Text(one.verdict, _STYLES.get(one.verdict, "bold"), no_wrap=True)
        rows.add_row(Text(one.id, "bold", no_wrap=True), verdict, text)
    console.print(rows)
    if any(one.effect is not None for one in answers):
        console.print()
        screen.say(console, Text(_caption(chosen), "dim"))
    for grid in tables:
        console.print()
        screen.say(console, Text(grid.title, "bold"))
        table = screen.columns(*grid.columns, right=grid.columns[1:])
        for row in grid.rows:
            table.add_row(*row)
        console.print(table)
    if len(shared) == 1 and (caveat := shared.pop()):
        console.print()
        screen.say(console, Text(caveat, "dim"))


def _caption(chosen: Study) -> str:
    """What the intervals are."""
    number, level = len(chosen.claims), f"{100 * chosen.level:.4g} %"
    if number == 1:
        return f"The interval is that of {level}; the answer follows from it."
    return (
        f"Each interval is that of {level}, and the answers follow from them: any of the "
        f"{number} is false in at most 5 % of all experiments (Bonferroni)."
    )


def _sentences(answer: Answer, caveat: bool) -> list[str]:
    """What an answer rests on."""
    found = []
    if answer.effect is not None:
        value, low, high = (
            100 * each for each in (answer.effect.value, answer.effect.low, answer.effect.high)
        )
        count = f"{answer.effect.count:,} images"
        found.append(f"{value:+.1f} points [{low:.1f}, {high:.1f}], on the same {count}.")
    if answer.needed is not None:
        found.append(f"These images cannot tell; about {answer.needed:,} would.")
    if answer.paper:
        found.append(f"Published: {answer.paper}")
    return [*found, answer.caveat] if caveat and answer.caveat else found

"""``besiege export``: writes the results of a run into a file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.text import Text

from besiege.cli import screen
from besiege.cli.grammar import Count, Flag, Place, examples, flowing
from besiege.core.errors import InputError

if TYPE_CHECKING:
    from besiege.bench.display import Grid

command = App(
    name="export",
    help_epilogue=examples(
        "besiege export my-run results.csv",
        "besiege export my-run table.tex",
        "besiege export my-run board.csv --board",
        "besiege export my-run table3.csv --table table3",
        "besiege export my-run images.npz --model zoo:digits-natural --threat linf:0.1",
    ),
)


@command.default
@flowing
def export(
    run: Annotated[Place, Parameter(metavar="RUN")],
    file: Annotated[Place, Parameter(metavar="FILE")],
    /,
    *,
    model: Annotated[str | None, Parameter(metavar="NAME")] = None,
    threat: Annotated[str | None, Parameter(metavar="THREAT")] = None,
    attack: Annotated[str | None, Parameter(metavar="ATTACK")] = None,
    board: Flag = False,
    table: Annotated[str | None, Parameter(metavar="NAME")] = None,
    earlier: Count = None,
    force: Flag = False,
) -> int:
    """Write the results of a run into a file for other programs.

    The suffix of the file decides what is written. csv, parquet and json: a row for each image and
    attack. tex and md: the table of results, for a paper or a README. npz: the adversarial images
    with ids, labels and predictions.

    Parameters
    ----------
    run
        Run folder.
    file
        File to write.
    model
        Only the evaluations of this model, by its name in the benchmark or its text.
    threat
        Only the evaluations against this threat.
    attack
        npz: the images of this attack; by default those of the first attack that broke each image,
        and of the smallest perturbations where the threat has no budget.
    board
        The board of the whole run: a row for each cell, model and attack; tex and md: the ranked
        models under each threat.
    table
        A table of the study that the run belongs to: besiege study NAME lists them.
    earlier
        Instead of the current result, the one that it replaced (1), or an earlier one (2, ...):
        besiege history lists them.
    force
        Replace an existing file.
    """
    from besiege.bench.evaluations import Evaluations
    from besiege.bench.opening import read_evaluations

    if (board or table) and (model, threat, earlier, attack) != (None, None, None, None):
        raise InputError("the board has all models and threats: leave the other choice out")
    if board and table is not None:
        raise InputError("--board and --table are two tables: write each into a file of its own")
    found = read_evaluations(run)
    if (model, threat) != (None, None):
        found = found.of(model, threat)
    if earlier is not None:
        found = Evaluations([one.earlier(earlier) for one in found])
    wanted = None if table is None else _table(run, table)
    path = found.export(file, attack=attack, force=force, board=board, table=wanted)
    screen.verbatim(screen.out(), Text(f"file  {path}"))
    if not found.complete:
        screen.note("The run is not complete: the file has the results so far.")
    return 0 if found.complete else 3


def _table(run: Path, name: str) -> Grid:
    """A table of the study that a run belongs to."""
    from besiege.bench.board_reading import board_of
    from besiege.bench.overview import open_run
    from besiege.studies.study import STUDIES, study_of

    benchmark = open_run(run)[1].benchmark
    study = study_of(benchmark)
    if study is None:
        if benchmark is not None and benchmark.name in STUDIES:
            STUDIES.get(benchmark.name).must_be_of(benchmark, str(run))
        raise InputError(
            f"{run} is the run of no study, and --table names a table of one: `besiege study` "
            "lists the studies; --board writes the table of any run"
        )
    return study.table(name, board_of(run))

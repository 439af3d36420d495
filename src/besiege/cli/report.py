"""``besiege report``: prints the table of a run and writes its pages, from its records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from besiege.cli import screen
from besiege.cli.gates import GateOptions, gating
from besiege.cli.grammar import AsJson, Flag, Place, examples, flowing

if TYPE_CHECKING:
    from besiege.metrics.values import RunFigures

command = App(
    name="report",
    help_epilogue=examples(
        "besiege report my-run --open",
        "besiege report my-run --out page.html",
        "besiege report my-run --json > figures.json",
        "besiege report my-run --fail-under 45 --junit robustness.xml",
    ),
)


@command.default
@flowing
def report(
    run: Annotated[Place, Parameter(metavar="RUN")],
    /,
    *,
    out: Annotated[Place | None, Parameter(metavar="FILE")] = None,
    show: Annotated[Flag, Parameter(name="--open")] = False,
    details: Flag = False,
    gates: GateOptions | None = None,
    as_json: AsJson = False,
) -> int:
    """Print the table of a run and write its pages again, from its records.

    A run with several models also gets a site in its folder: leaderboard, curves, and a page for
    each model, attack and cell.

    Parameters
    ----------
    run
        Run folder.
    out
        File of the page; by default report.html in the run folder.
    show
        Open the page in a browser.
    details
        List the attacks of every evaluation, also where there are several.
    """
    from besiege.bench.results import summarise

    figures = summarise(run)
    checks = gating(gates, [one.threat.text for one in figures.evaluations], run)
    checks.must_fit(run, figures.evaluations)
    if as_json:
        screen.print_json(figures.plain())
    else:
        from besiege.bench.overview import open_run
        from besiege.report import table
        from besiege.report.cells import cells_table

        _, written = open_run(run)
        head = None if written.benchmark is None else cells_table(written, figures)
        screen.out().print(table(figures, details=details or None, head=head))
    page = _page(run, out, figures, needed=show) if not as_json or out or show else None
    if page is not None and not as_json:
        screen.name_pages(run, page)
    if show and page is not None:
        import webbrowser

        if not webbrowser.open(page.resolve().as_uri()):
            screen.note("No browser could be opened: open the page yourself.")
    return checks.conclude(run, figures.evaluations, page)


def _page(run: Path, out: Path | None, figures: RunFigures, needed: bool) -> Path | None:
    """Write the page; a read-only run has none, unless `out` names a file elsewhere."""
    from besiege.bench.folder import ReadOnlyError
    from besiege.report import write_page

    try:
        return Path(write_page(run, out, figures))
    except ReadOnlyError:
        if out is not None or needed:
            raise
        screen.note(
            f"{run} cannot be written, so there is no page: --out FILE writes one elsewhere."
        )
        return None

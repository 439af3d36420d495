"""``besiege compare``: says which of several models is more robust, and how sure that is."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from besiege.cli import screen
from besiege.cli.exits import FINE, INCOMPLETE, STOP
from besiege.cli.grammar import AsJson, Flag, Place, examples, flowing

command = App(
    name="compare",
    help_epilogue=examples(
        "besiege compare my-run",
        "besiege compare before after",
        "besiege compare my-run --model digits-natural --model digits-pgd-at --images",
        "besiege compare my-run --history",
    ),
)


@command.default
@flowing
def compare(
    run: Annotated[Place, Parameter(metavar="RUN")],
    /,
    *runs: Place,
    model: Annotated[list[str] | None, Parameter(metavar="NAME", negative="")] = None,
    common: Flag = False,
    history: Flag = False,
    images: Flag = False,
    as_json: AsJson = False,
) -> int:
    """Compare models on the same images: which withstands more, and is that certain?

    All evaluations of the run folders that have the same threat and the same images are compared
    with each other: the difference in percentage points with its 95 % interval, the p-value of
    McNemar's exact test, corrected for the number of pairs (Holm), and about how many images would
    show such a difference. A table shows what each model does to clean images, against the one
    named before it. The exit code is 3 where results are missing, and 4 where figures must not be
    quoted. Of a benchmark only the pairs that it declares in [compare] are tested.

    Parameters
    ----------
    run
        Run folder.
    runs
        More run folders.
    model
        Compare only this model, by its name in the benchmark or its text; repeat it for several.
    common
        Compare evaluations on other images of the same data, on the images that all have.
    history
        Include earlier results, which newer ones of the same command replaced.
    images
        List the images on which models differ, by id, or by file.
    """
    from besiege.bench.comparison import compare_runs

    found = compare_runs([run, *runs], models=model or (), common=common, history=history)
    if as_json:
        screen.print_json(found.plain(images))
    else:
        from besiege.report.comparison import ComparisonTable

        screen.out().print(ComparisonTable(found, images))
    if not all(one.complete for one in found.evaluations):
        return INCOMPLETE
    return STOP if any(one.stops for one in found.evaluations) else FINE

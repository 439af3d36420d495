"""``besiege merge``: joins run folders."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from cyclopts import App, Parameter
from rich.text import Text

from besiege.cli import screen
from besiege.cli.exits import FINE, INCOMPLETE
from besiege.cli.grammar import AsJson, Place, examples, flowing

command = App(
    name="merge",
    help_epilogue=examples(
        "besiege merge all machine-1 machine-2",
        "besiege merge all machine-3 && besiege report all",
    ),
)


@command.default
@flowing
def merge(
    run: Annotated[Place, Parameter(metavar="RUN")],
    *others: Annotated[Place, Parameter(metavar="OTHER")],
    as_json: AsJson = False,
) -> int:
    """Join run folders into one: of machines that share no disk, or of runs that were made apart.

    Every record is compared with its digests. The exit code is 3 where damaged ones were left out.

    Parameters
    ----------
    run
        Run folder that receives the others; it is made if there is none.
    others
        Run folders to join; they stay as they are.
    """
    from besiege.bench.merging import merge as join
    from besiege.core.errors import InputError

    if not others:
        raise InputError("no other run folder is named: write besiege merge RUN OTHER [OTHER ...]")
    found = join(run, others)
    if as_json:
        screen.print_json([{**asdict(one), "folder": str(one.folder)} for one in found])
    else:
        for one in found:
            line = f"{one.folder}: {one.records:,} records and {one.plans:,} evaluations joined"
            more = {"known already": one.known, "failures left out": one.failures}
            words = [f"{count:,} {what}" for what, count in more.items() if count]
            screen.verbatim(screen.out(), Text(", ".join([line, *words])))
            for problem in one.damaged:
                text = Text(f"left out: {problem}", "bold red")
                screen.verbatim(screen.out(), text)
    return INCOMPLETE if any(one.damaged for one in found) else FINE

"""``besiege serve``: shows the pages of a run in a browser, also while it is running."""

from __future__ import annotations

import contextlib
from typing import Annotated

from cyclopts import App, Parameter
from rich.text import Text

from besiege.cli import screen
from besiege.cli.exits import FINE
from besiege.cli.grammar import Flag, Place, examples, flowing

command = App(
    name="serve",
    help_epilogue=examples("besiege serve my-run --open", "besiege serve my-run --port 8080"),
)


@command.default
@flowing
def serve(
    run: Annotated[Place, Parameter(metavar="RUN")],
    /,
    *,
    port: Annotated[int, Parameter(metavar="N")] = 0,
    show: Annotated[Flag, Parameter(name="--open")] = False,
) -> int:
    """Show the pages of a run in a browser, also while it is running.

    Only this machine can see them. Pages are built again when records arrive, and reload
    themselves until the run is complete. Press Ctrl+C to end.

    Parameters
    ----------
    run
        Run folder.
    port
        Port of the server; by default a free one.
    show
        Open the pages in a browser.
    """
    from besiege.report.site.serving import ADDRESS, server

    with server(run, port) as found:
        address = f"http://{ADDRESS}:{found.server_address[1]}/"
        screen.verbatim(screen.out(), Text(f"site  {address}"))
        screen.results().flush()
        screen.note("Press Ctrl+C to end.")
        if show:
            import webbrowser

            webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):
            found.serve_forever()
    return FINE

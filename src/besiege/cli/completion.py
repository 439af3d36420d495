"""``besiege completion``: the script with which a shell completes commands, options and names."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter
from rich.text import Text

from besiege.cli import screen
from besiege.cli.grammar import Flag, Place, examples, flowing
from besiege.core.errors import InputError

command = App(
    name="completion",
    help_epilogue=examples(
        "besiege completion --install",
        "besiege completion bash > ~/.local/share/bash-completion/completions/besiege",
    ),
)


@command.default
@flowing
def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish", "powershell"] | None, Parameter(metavar="SHELL")
    ] = None,
    /,
    *,
    install: Flag = False,
    out: Annotated[Place | None, Parameter(metavar="FILE")] = None,
) -> None:
    """Print or install the script with which your shell completes commands and names.

    Parameters
    ----------
    shell
        Shell; by default the one you are in.
    install
        Write the script where the shell looks for it, and load it in the start-up file.
    out
        File to write the script to.
    """
    from cyclopts.completion.detect import ShellDetectionError, detect_shell

    from besiege.cli.app import loaded

    try:
        chosen = shell or detect_shell()
    except ShellDetectionError:
        raise InputError(
            "your shell is not known: write besiege completion bash, zsh, fish or powershell"
        ) from None
    app = loaded()
    if install or out is not None:
        path = app.install_completion(shell=chosen, output=out, add_to_startup=install)
        done = Text(f"The {chosen} completion is in {path}; open a new shell to use it.")
        screen.verbatim(screen.out(), done)
    else:
        screen.results().write(app.generate_completion(shell=chosen))

"""``besiege completion``: what a shell needs to complete commands, options and names."""

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
    """Let the shell complete what you type: prints a script for it, or installs it.

    Parameters
    ----------
    shell
        Which shell; the one you are in by default.
    install
        Write the script where the shell looks for it, and let its start-up file load it.
    out
        Write the script to this file instead.
    """
    from cyclopts.completion.detect import ShellDetectionError, detect_shell

    from besiege.cli.app import APP

    try:
        chosen = shell or detect_shell()
    except ShellDetectionError:
        raise InputError(
            "it is not clear which shell this is: write besiege completion bash, zsh, fish or "
            "powershell"
        ) from None
    if install or out is not None:
        path = APP.install_completion(shell=chosen, output=out, add_to_startup=install)
        done = Text(f"The {chosen} completion is in {path}; open a new shell to use it.")
        screen.verbatim(screen.out(), done)
    else:
        screen.results().write(APP.generate_completion(shell=chosen))

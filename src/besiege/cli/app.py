"""``besiege``: finds the command, and turns what goes wrong into one calm line and an exit code."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Group, Parameter, UnknownOptionError
from rich.text import Text

import besiege
from besiege.cli import (
    attack,
    attacks,
    completion,
    data,
    evaluate,
    models,
    report,
    screen,
    show,
    status,
    substitute,
    train,
    version,
)
from besiege.cli.grammar import WRITTEN, as_options
from besiege.core.errors import BesiegeError, near

FINE, USAGE, INCOMPLETE, UNEXPECTED, INTERRUPTED, UNREAD = 0, 2, 3, 70, 130, 141
"""Exit codes; the last is what a shell says of a program whose reader has gone."""

_MEASURE, _READ, _LOOK, _OTHER, _ALWAYS = (
    Group.create_ordered(title)
    for title in ("Measure", "Read results", "Look up", "Other", "Always")
)
_COMMANDS = {
    _MEASURE: (evaluate, attack, train, substitute),
    _READ: (status, report),
    _LOOK: (attacks, show, models, data),
    _OTHER: (completion, version),
}

_BY_NAME = {m.command.name[0]: m.command.default_command for ms in _COMMANDS.values() for m in ms}


def _app() -> App:
    app = App(
        name="besiege",
        help="Measures how robust image classifiers really are.",
        help_format="plaintext",
        help_epilogue=(
            f"{WRITTEN}\n\n"
            "`besiege COMMAND --help` explains a command, with examples.\n"
            "`besiege completion --install` lets your shell complete commands and names.\n"
            "Exit codes: 0 fine, 1 an unexpected error, 2 wrong input, 3 incomplete,\n"
            "130 interrupted."
        ),
        version=besiege.__version__,
        default_parameter=Parameter(show_default=_shown),
        suppress_keyboard_interrupt=False,
    )
    for group, commands in _COMMANDS.items():
        for place, module in enumerate(commands):
            module.command.group, module.command.sort_key = group, place
            app.command(module.command)
    for flag in ("--help", "--version"):
        app[flag].group = (_OTHER,)
    app.meta.suppress_keyboard_interrupt = False
    app.meta.default(_launch)
    return app


def _shown(default: Any) -> str | None:
    """Defaults worth showing: what is off or absent needs no words."""
    return None if default is None or default is False else str(default)


def _launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    debug: Annotated[
        bool,
        Parameter(
            negative="",
            group=_ALWAYS,
            help="Show where an error came from; so does BESIEGE_DEBUG=1.",
        ),
    ] = False,
) -> Any:
    """Take what every command understands, and pass on the rest."""
    if not tokens:
        _overview()
        return FINE
    if tokens[0] == "help":
        tokens = (*tokens[1:], "--help")
    return APP(tokens, exit_on_error=False, print_error=False, result_action="return_value")


APP = _app()


def main(tokens: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    tokens : sequence of str, optional
        What was typed after ``besiege``; of this process by default.

    Returns
    -------
    int
        The exit code: 0 fine, 2 wrong input, 3 incomplete, 70 unexpected (a bug of
        besiege), 130 interrupted.

    Examples
    --------
    >>> from besiege.cli import main
    >>> main(["version"])  # doctest: +ELLIPSIS
    besiege ...
    0
    """
    given = list(sys.argv[1:] if tokens is None else tokens)
    debug = "--debug" in given or os.environ.get("BESIEGE_DEBUG", "0") not in ("", "0")
    for stream in (sys.stdout, sys.stderr):
        screen.tolerate(stream)
    # What completes names is printed by cyclopts, where a shell looks for it.
    with nullcontext() if given[:1] == ["__complete"] else screen.apart():
        return _run(given, debug)


def _run(given: list[str], debug: bool) -> int:
    try:
        result = APP.meta(
            given,
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
            console=screen.out(),
        )
        screen.results().flush()
        return result if isinstance(result, int) else FINE
    except BrokenPipeError:
        screen.let_go(screen.results())
        return UNREAD
    except KeyboardInterrupt:
        screen.note("Interrupted.")
        return INTERRUPTED
    except SystemExit as problem:  # a model, an attack or a layer cannot decide our exit code
        screen.complain(
            f"code that was run here called sys.exit({problem.code!r}), and nothing was finished: "
            "remove that call"
        )
        return USAGE
    except Exception as problem:
        if debug:
            traceback.print_exc()
        return _explain(problem, debug, given)


def _explain(problem: Exception, debug: bool, given: Sequence[str]) -> int:
    """Say what went wrong, in the words of the command line; the exit code."""
    if isinstance(problem, CycloptsError):
        problem.verbose = False
        chain = " ".join(problem.command_chain or ())
        page = f"besiege {chain} --help" if chain else "besiege --help"
        screen.complain(f"{problem}{_meant(problem)}", f"`{page}` shows how it is written.")
        return USAGE
    full = INCOMPLETE if _is_full(problem) else USAGE
    if isinstance(problem, BesiegeError):
        command = _BY_NAME.get(next((word for word in given if not word.startswith("-")), ""))
        screen.complain(as_options(str(problem), command) if command else str(problem))
        return full
    if isinstance(problem, UnicodeError):
        screen.complain(f"what was typed or read is not UTF-8 ({problem}): write it in UTF-8.")
        return USAGE
    if isinstance(problem, OSError) and problem.filename is not None:
        screen.complain(f"{problem.filename}: {problem.strerror}.")
        return full
    if full == INCOMPLETE:
        screen.complain("the disk is full: free some space, and run the same command again.")
        return full
    screen.complain(
        f"{type(problem).__name__}: {problem}",
        "This was not expected."
        if debug
        else "This was not expected. Add --debug to see where it happened.",
    )
    return UNEXPECTED


def _is_full(problem: BaseException | None) -> bool:
    """Whether a full disk is behind it, in the words of whichever library wrote."""
    while problem is not None:
        said = getattr(problem, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        if said or re.search(r"No space left on device|database or disk is full", str(problem)):
            return True
        problem = problem.__cause__ or problem.__context__
    return False


def _meant(problem: CycloptsError) -> str:
    """A near match among what every command understands."""
    if not isinstance(problem, UnknownOptionError) or "Did you mean" in str(problem):
        return ""
    close = near(problem.token.keyword or problem.token.value, ["--debug", "--help", "--version"])
    return " Did you mean" + close.removeprefix("did you mean") if "did you mean" in close else ""


def _overview() -> None:
    """One screen for somebody who has just installed it."""
    console = screen.out()
    console.print(Text("besiege", "bold").append(f" {besiege.__version__}", "not bold"))
    console.print("Measures how robust image classifiers really are.\n")
    for told, line in (
        (
            "See it work, on a small model that comes with it (a few seconds):",
            "besiege evaluate zoo:digits-natural --data digits --threat linf:0.15",
        ),
        (
            "Measure your own model on your own images:",
            "besiege evaluate model.py:make --data path/to/images --threat linf:8/255",
        ),
        (
            "Make adversarial images:",
            "besiege attack zoo:digits-natural --images digits --count 20 "
            "--attack pgd \\\n    --threat linf:0.15 --out adversarial",
        ),
    ):
        console.print(told)
        console.print(Text(f"  {line}\n", "bold"))
    console.print("`besiege --help` lists the commands and how things are written;")
    console.print("`besiege models`, `data` and `attacks` list what there is.")

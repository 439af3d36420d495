"""``besiege``: runs the command, and turns errors into one line and an exit code."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Group, MissingArgumentError, Parameter, UnknownOptionError
from rich.text import Text

import besiege
from besiege.cli import screen
from besiege.cli.exits import FINE, INCOMPLETE, INTERRUPTED, TOLD, UNEXPECTED, UNREAD, USAGE
from besiege.cli.grammar import WRITTEN, as_options
from besiege.cli.missing import missing
from besiege.core.errors import BesiegeError, near

_MEASURE, _READ, _LOOK, _OTHER, _ALWAYS = (
    Group.create_ordered(title)
    for title in ("Measure", "Read results", "Look up", "Other", "Always")
)
# A command is a module of this package, imported when it is called: importing all of them takes
# longer than printing help. The text is the first sentence of its own help page.
_COMMANDS = {
    _MEASURE: {
        "evaluate": "Measure how robust a model is: attack it, judge every image again, keep the "
        "records.",
        "run": "Run a benchmark: many models under many threats, declared in one TOML file.",
        "slurm": "Write the script of a SLURM job array that runs a benchmark on a shared disk.",
        "examine": "Check a model before it is attacked: are its gradients and its answers what "
        "they seem?",
        "clever": "Estimate the distance of images to the decision boundary by CLEVER.",
        "certify": "Prove which images no perturbation within the budget can break.",
        "attack": "Attack images and write the adversarial images.",
        "train": "Train a model, naturally or adversarially, and write its weights with a card.",
        "substitute": "Train a substitute from a model's labels only, and write its weights with a "
        "card.",
        "detector": "Fit a detector to a model, calibrate it, and write it with a card.",
    },
    _READ: {
        "status": "Print how much of a run is done, also while it is running.",
        "report": "Print the table of a run and write its pages again, from its records.",
        "serve": "Show the pages of a run in a browser, also while it is running.",
        "history": "List the results of a run over time: the current ones, and what they replaced.",
        "compare": "Compare models on the same images: which withstands more, and is that certain?",
        "study": "List the studies, run one, or answer its claims from a run.",
        "merge": "Join run folders into one: of machines that share no disk, or of runs that were "
        "made apart.",
        "export": "Write the results of a run into a file for other programs.",
        "import": "Judge adversarial images made elsewhere as part of a run.",
        "replay": "Judge a run's successful images on another model, or after a transformation.",
    },
    _LOOK: {
        "spec": "Check the file of a benchmark, or show what it would run.",
        "attacks": "List the attacks: norms, goals and the access to the model that they need.",
        "defenses": "List the defenses: layers that transform an image before the model sees it.",
        "show": "Explain one attack, model, data set, warning rule or other name.",
        "models": "List the models and architectures, and how a model is written.",
        "data": "List the named data sets, and where they are stored.",
    },
    _OTHER: {
        "completion": "Print or install the script with which your shell completes commands and "
        "names.",
        "version": "Print the installed versions, for a bug report.",
    },
}
_MODULES = {"import": "importing"}
"""Commands whose word cannot be the name of a module."""
_NAMES = [name for commands in _COMMANDS.values() for name in commands]


def _app() -> App:
    app = App(
        name="besiege",
        help="Measures how robust image classifiers really are.",
        help_format="plaintext",
        help_epilogue=(
            f"{WRITTEN}\n\n"
            "`besiege COMMAND --help` explains a command, with examples.\n"
            "`besiege completion --install` lets your shell complete commands and names.\n"
            f"{TOLD}"
        ),
        version=besiege.__version__,
        default_parameter=Parameter(show_default=_shown),
        suppress_keyboard_interrupt=False,
    )
    for group, commands in _COMMANDS.items():
        for place, (name, help) in enumerate(commands.items()):
            app.command(
                f"besiege.cli.{_MODULES.get(name, name)}:command",
                name=name,
                help=help,
                group=group,
                sort_key=place,
            )
    for flag in ("--help", "--version"):
        app[flag].group = (_OTHER,)
    app.meta.suppress_keyboard_interrupt = False
    app.meta.default(_launch)
    return app


def _shown(default: Any) -> str | None:
    """The default as help shows it; options that are off or absent show none."""
    return None if default is None or default is False else str(default)


def _launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    debug: Annotated[
        bool,
        Parameter(
            negative="",
            group=_ALWAYS,
            help="Print the traceback of an error; BESIEGE_DEBUG=1 does the same.",
        ),
    ] = False,
) -> Any:
    """Read the options that every command has, and pass on the rest."""
    if not tokens:
        _overview()
        return FINE
    if tokens[0] == "help":
        tokens = (*tokens[1:], "--help")
    return APP(tokens, exit_on_error=False, print_error=False, result_action="return_value")


APP = _app()


def loaded(names: Iterable[str] = _NAMES) -> App:
    """The app with some commands imported, by default all: their help is then their own."""
    for name in names:
        APP[name].help = None
    return APP


def main(tokens: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    tokens : sequence of str, optional
        The arguments after ``besiege``; by default those of this process.

    Returns
    -------
    int
        The exit code: 0 fine, 1 a gate failed, 2 wrong input, 3 incomplete, 4 figures that must
        not be quoted, 70 unexpected (a bug of besiege), 130 interrupted.

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
    # cyclopts prints completions, and a shell reads them from standard output.
    with nullcontext() if given[:1] == ["__complete"] else screen.apart():
        return _run(given, debug)


def _run(given: list[str], debug: bool) -> int:
    try:
        result = loaded([word for word in given if word in _NAMES][:1]).meta(
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
    except SystemExit as problem:  # raised by a user's model, attack or layer
        screen.complain(
            f"your code called sys.exit({problem.code!r}), which ended the command before it was "
            "finished: remove that call"
        )
        return USAGE
    except Exception as problem:
        if debug:
            traceback.print_exc()
        return _explain(problem, debug, given)


def _explain(problem: Exception, debug: bool, given: Sequence[str]) -> int:
    """Print an error in the terms of the command line, and return the exit code."""
    if isinstance(problem, CycloptsError):
        problem.verbose = False
        chain = " ".join(problem.command_chain or ())
        page = f"besiege {chain} --help" if chain else "besiege --help"
        if isinstance(problem, MissingArgumentError) and chain in _NAMES:
            text = missing(problem, APP[chain], given)
            screen.complain(f"{text}.", f"`{page}` shows how it is written.")
            return USAGE
        screen.complain(f"{problem}{_meant(problem)}", f"`{page}` shows how it is written.")
        return USAGE
    full = INCOMPLETE if _is_full(problem) else USAGE
    if isinstance(problem, BesiegeError):
        name = next((word for word in given if not word.startswith("-")), "")
        command = APP[name].default_command if name in _NAMES else None
        screen.complain(as_options(str(problem), command) if command else str(problem))
        return full
    if isinstance(problem, UnicodeError):
        screen.complain(f"a text is not UTF-8 ({problem}): write it in UTF-8.")
        return USAGE
    if isinstance(problem, OSError) and problem.filename is not None:
        screen.complain(f"{problem.filename}: {problem.strerror}.")
        return full
    if full == INCOMPLETE:
        screen.complain("the disk is full: free some space, and run the same command again.")
        return full
    advice = "" if debug else " Add --debug to see where it happened."
    screen.complain(f"{type(problem).__name__}: {problem}", f"This was not expected.{advice}")
    return UNEXPECTED


def _is_full(problem: BaseException | None) -> bool:
    """Whether a full disk caused the error; libraries report it in different ways."""
    while problem is not None:
        code = getattr(problem, "errno", None)
        text = re.search(r"No space left on device|database or disk is full", str(problem))
        if text or code in (errno.ENOSPC, errno.EDQUOT):
            return True
        problem = problem.__cause__ or problem.__context__
    return False


def _meant(problem: CycloptsError) -> str:
    """A near match among the options that every command has."""
    if not isinstance(problem, UnknownOptionError) or "Did you mean" in str(problem):
        return ""
    close = near(problem.token.keyword or problem.token.value, ["--debug", "--help", "--version"])
    return " Did you mean" + close.removeprefix("did you mean") if "did you mean" in close else ""


def _overview() -> None:
    """One screen for a new user."""
    console = screen.out()
    console.print(Text("besiege", "bold").append(f" {besiege.__version__}", "not bold"))
    console.print("Measures how robust image classifiers really are.\n")
    for title, line in (
        (
            "Try it on a small model that comes with it (a few seconds):",
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
        console.print(title)
        console.print(Text(f"  {line}\n", "bold"))
    console.print("`besiege --help` lists the commands and explains how things are written;")
    console.print("`besiege models`, `data`, `attacks` and `defenses` list what is available.")

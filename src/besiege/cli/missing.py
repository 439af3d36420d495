"""The message about an argument that a command needs and was not given."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import pairwise

from cyclopts import App, MissingArgumentError

from besiege.core.shell import shell


def missing(problem: MissingArgumentError, app: App, given: Sequence[str]) -> str:
    """What is missing, with an example from the command's own help page.

    An option is missing, or only its value; a positional argument has no option to be named by.
    """
    assert problem.argument is not None
    example = _example(app)
    name = problem.argument.name
    if problem.argument.field_info.is_positional:
        shown = f", as in: {shell(example)}" if example else ""
        return f"{name.lstrip('-').upper()} is missing{shown}"
    value = next((b for a, b in pairwise(example) if a == name), None)
    shown = "" if value is None else f" {shell([name, value])}"
    if any(word == name or word.startswith(f"{name}=") for word in given):
        return f"{name} needs a value" + (f", such as{shown}" if shown else "")
    return f"{name} is missing" + (f": write for example{shown}" if shown else "")


def _example(app: App) -> list[str]:
    """The words of the first example of a help page, empty without one."""
    text = app.help_epilogue or ""
    found = re.search(r"Examples:\n((?:.*\\\n)*.*)", text)
    return [] if found is None else shlex.split(found[1].replace("\\\n", " "))

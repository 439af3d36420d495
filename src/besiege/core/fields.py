"""Checks of single dataclass fields, declared at the field: ``steps: int = whole_number(100)``.

`check_fields` runs them all. A check that relates two fields stays in the class's own
`__post_init__`, which calls the inherited one first.

A parameter that an attack gets after a release is marked ``added=True``. While it has its default
it is left out of the attack's identity, so that older records are still found under their keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field, fields
from numbers import Real
from typing import Any, TypeVar

from besiege.core.text import is_whole, quoted, whole_range

T = TypeVar("T")

MOST_STEPS = 10**9
"""The largest count of anything: a billion steps take longer than any user waits."""


def checked(default: T, holds: Callable[[Any], bool], problem: str, **marks: bool) -> T:
    """A field whose value must pass a test; None passes where the annotation allows it.

    Parameters
    ----------
    default
        The default of the field.
    holds : callable
        Whether a value is accepted.
    problem : str
        The end of the error message: ``but a number above 0 is needed``.
    **marks
        Further metadata of the field, such as ``positional=True``.
    """
    return field(default=default, metadata={"check": (holds, problem), **marks})


def whole_number(default: T, least: int = 1, **marks: bool) -> T:
    """A whole number: too small a count does nothing and looks like robustness."""

    def holds(value: object) -> bool:
        return is_whole(value, least, MOST_STEPS)

    return checked(default, holds, f"but {whole_range(least, MOST_STEPS)} is needed", **marks)


def number(
    default: T,
    *,
    above: float | None = None,
    least: float = 0,
    most: float | None = None,
    below: float | None = None,
    what: str = "a number",
    **marks: bool,
) -> T:
    """A finite number in a range: ``above`` and ``below`` leave the bound itself out."""

    def holds(value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            return False
        enough = float(value) >= least if above is None else float(value) > above
        return enough and (most is None or value <= most) and (below is None or value < below)

    low = f" from {least}" if above is None else f" above {above}"
    high = "" if most is None else f" to {most}" if above is None else f" up to {most}"
    high = high if below is None else f" and below {below}"
    return checked(default, holds, f"but {what}{low}{high} is needed", **marks)


def one_of(default: T, *others: T, **marks: bool) -> T:
    """One of some values, of which the default comes first."""
    known = (default, *others)
    names = " or ".join(map(repr, known))
    return checked(default, known.__contains__, f"but {names} is needed", **marks)


def yes_or_no(default: bool, **marks: bool) -> bool:
    """True or False."""
    return checked(default, lambda value: isinstance(value, bool), "but a bool is needed", **marks)


def of_kind(default: T, kind: type, name: str = "", **marks: bool) -> T:
    """An instance of a class."""
    name = name or kind.__name__.lower()
    article = "an" if name[0] in "aeiou" else "a"
    problem = f"which is not {article} {name}"
    return checked(default, lambda value: isinstance(value, kind), problem, **marks)


def a_loss(default: T) -> T:
    """A function of logits and aims."""
    return checked(default, callable, "which is not a loss")


def check_fields(value: Any) -> None:
    """Refuse the first field whose value fails its check."""
    for f in fields(value):
        given = getattr(value, f.name)
        if "check" not in f.metadata or (given is None and "None" in str(f.type).split(" | ")):
            continue
        holds, problem = f.metadata["check"]
        if not holds(given):
            raise ValueError(f"{f.name} is {quoted(given)}, {problem}")

"""The error for a law that did not hold, and the line of an attack that raised an exception."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from types import FunctionType

from besiege.attacks.attack import Attack


class LawViolation(AssertionError):
    """A law that did not hold, or could not be tried because the attack raised.

    Parameters
    ----------
    tried : str
        The law and what it was tried on.
    seen : str
        What was seen.
    """

    def __init__(self, tried: str, seen: str) -> None:
        super().__init__(f"{tried}: {seen}")
        self.seen = seen


def raised(problem: BaseException, attacks: Iterable[Attack]) -> str:
    """An exception, with the innermost line of the attacks' own files in its traceback."""
    frames = traceback.extract_tb(problem.__traceback__)
    own = _files(attacks)
    frame = next((f for f in reversed(frames) if f.filename in own), frames[-1])
    return f"{type(problem).__name__} at {frame.filename}:{frame.lineno}: {problem}"


def _files(attacks: Iterable[Attack]) -> set[str]:
    """The files of the attacks and of those they inherit from."""
    return {
        thing.__code__.co_filename
        for attack in attacks
        for kind in type(attack).__mro__
        if issubclass(kind, Attack) and kind is not Attack
        for thing in vars(kind).values()
        if isinstance(thing, FunctionType)
    }


def number(value: object) -> str:
    """A number as messages print it: whole ones in full, others to six digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)

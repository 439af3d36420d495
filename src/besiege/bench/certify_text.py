"""The text of a certification's method: a name, and the votes of smoothing."""

from __future__ import annotations

from typing import Any, NamedTuple

from besiege.bounds.votes import Poll
from besiege.core.errors import InputError
from besiege.core.registry import Registry
from besiege.core.text import read
from besiege.core.vocabulary import Vocabulary

SMOOTHING = "smoothing"
_POLLS: Registry[Any] = Registry("method with options")
_POLLS.add(SMOOTHING, Poll)
_WORDS = Vocabulary(_POLLS)


class Asked(NamedTuple):
    """A method by its name; ``poll`` has the votes of smoothing, and is None for others."""

    method: str
    poll: Poll | None = None


def read_certify(text: str) -> Asked:
    """The method of a text.

    Examples
    --------
    >>> read_certify("crown")
    Asked(method='crown', poll=None)
    >>> read_certify("smoothing(n=1000)").poll
    Poll(n=1000, n0=100, alpha=0.001)
    """
    name = text.partition("(")[0].strip()
    if name == SMOOTHING:
        found = read(text, _WORDS.make)
        assert isinstance(found, Poll), "it is registered under this name"
        return Asked(name, found)
    if name != text.strip():
        raise InputError(
            f"'{text}' gives options to a method that has none: write {name}, or "
            "smoothing(n=1000), whose options are n, n0 and alpha"
        )
    return Asked(name)

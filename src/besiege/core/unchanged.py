"""Results that are computed once while models, data and code stay as they are, such as in planning.

A benchmark asks the same of the same objects hundreds of times: the digest of a model, whether it
takes the images. Only the caller knows that no model changes meanwhile: hence a block.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

_block = threading.local()
_BY_VALUE = (str, bytes, int, float, bool, type(None))


@contextmanager
def unchanged() -> Iterator[None]:
    """Inside the block nothing that `once` is given changes, in this thread."""
    outer: dict[Any, Any] | None = getattr(_block, "kept", None)
    _block.kept = {} if outer is None else outer
    try:
        yield
    finally:
        _block.kept = outer


def once(work: Callable[P, T], /, *given: P.args, **named: P.kwargs) -> T:
    """The result of a function; in a block of `unchanged` it is computed once and kept.

    Texts, numbers and tuples of these are told apart by value, all other arguments by identity.
    What raises is not kept, and is tried again.

    Examples
    --------
    >>> with unchanged():
    ...     once(sorted, given := [2, 1]) is once(sorted, given), once(sorted, [2, 1]) == [1, 2]
    (True, True)
    """
    kept: dict[Any, tuple[Any, T]] | None = getattr(_block, "kept", None)
    if kept is None:
        return work(*given, **named)
    key = (work, *map(_mark, given), *((name, _mark(named[name])) for name in sorted(named)))
    if key not in kept:
        # The arguments are kept, too: another object may otherwise live at the same address.
        kept[key] = (given, named), work(*given, **named)
    return kept[key][1]


def _mark(value: object) -> object:
    if type(value) in _BY_VALUE:
        return type(value), value
    if type(value) is tuple:
        return tuple(map(_mark, value))
    return id(value)

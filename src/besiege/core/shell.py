"""Quoting words for a shell."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from pathlib import Path


def shell(words: Iterable[object]) -> str:
    r"""A command line that a shell splits into these words.

    Paths that look like options and characters that cannot be printed are quoted, too.

    Examples
    --------
    >>> print(shell(["besiege", "report", Path("-x"), Path("my run"), "two\nlines"]))
    besiege report ./-x 'my run' $'two\x0alines'
    """
    return " ".join(map(_quoted, words))


def _quoted(word: object) -> str:
    text = str(word)
    if isinstance(word, Path) and text.startswith(("-", "~")):
        text = f"./{text}"
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(map(_escaped, text)) + "'"


def _escaped(letter: str) -> str:
    if letter.isprintable():
        return f"\\{letter}" if letter in "\\'" else letter
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(letter))

"""Quoting words for a shell."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path


def shell(words: Iterable[object]) -> str:
    r"""A command line that a shell splits into these words.

    Paths that look like options and characters that cannot be printed are quoted, too.

    Examples
    --------
    >>> print(shell(["besiege", "report", Path("-x"), Path("my run"), "two\nlines"]))
    besiege report ./-x 'my run' $'two\x0alines'
    >>> print(shell(["joint(of='resnet20')", "it's $5"]))
    "joint(of='resnet20')" 'it'"'"'s $5'
    """
    return " ".join(map(_quoted, words))


def broken(*groups: Sequence[str], width: int = 78) -> str:
    r"""A shell command, with long lines broken between groups of words.

    A group that is longer than a line is broken between its words.

    Examples
    --------
    >>> print(broken(["besiege", "show"], ["--one", "a b"], ["--two", "c"], width=26))
    besiege show --one 'a b' \
      --two c
    >>> print(broken(["besiege", "show", "a-name-of-some-length"], ["--one"], width=26))
    besiege show \
      a-name-of-some-length \
      --one
    """
    lines = [""]
    for group in groups:
        whole = shell(group)
        for words in [whole] if len(f"{whole} \\") <= width else map(_quoted, group):
            if lines[-1] and len(f"{lines[-1]} {words} \\") > width:
                lines.append("  " + words)
            else:
                lines[-1] = f"{lines[-1]} {words}" if lines[-1] else words
    return " \\\n".join(lines)


def wrapped(command: str, width: int) -> str:
    r"""A command of ours with long lines broken before options; other texts stay as they are.

    Examples
    --------
    >>> print(wrapped("besiege show --one 'a b' --two c", 26))
    besiege show --one 'a b' \
      --two c
    >>> wrapped("besiege.evaluate(<net>, <x>)", 10)
    'besiege.evaluate(<net>, <x>)'
    """
    if not command.startswith("besiege ") or not command.isprintable():
        return command
    groups: list[list[str]] = [[]]
    for word in shlex.split(command):
        if word.startswith("--"):
            groups.append([])
        groups[-1].append(word)
    return broken(*groups, width=width)


def _quoted(word: object) -> str:
    text = str(word)
    if isinstance(word, Path) and text.startswith(("-", "~")):
        text = f"./{text}"
    if text.isprintable():
        # Texts of models have single quotes: joint(of='resnet20') reads better in double ones.
        plain = "'" in text and not set(text) & set('"$`\\!')
        return f'"{text}"' if plain else shlex.quote(text)
    return "$'" + "".join(map(_escaped, text)) + "'"


def _escaped(letter: str) -> str:
    if letter.isprintable():
        return f"\\{letter}" if letter in "\\'" else letter
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(letter))

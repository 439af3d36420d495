"""The Markdown that the generated pages need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def code(text: str) -> str:
    """A short text as code; empty for an empty text."""
    return f"`{text}`" if text else ""


def block(text: str, language: str = "text") -> str:
    """Lines as a block of code."""
    return f"```{language}\n{text.rstrip()}\n```\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; empty without rows."""
    lines = [_line(row) for row in rows]
    if not lines:
        return ""
    return "\n".join([_line(heads), "|" + " --- |" * len(heads), *lines]) + "\n"


def facts(known: Mapping[str, Any]) -> str:
    """Facts as a list, one line each."""
    return "\n".join(f"- **{name}:** {_shown(value)}" for name, value in known.items())


def joined(*parts: str) -> str:
    """Parts of a page with an empty line between them."""
    return "\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"


def contents(names: Iterable[str], *options: str) -> str:
    """A table of contents of pages."""
    return block("\n".join([*(f":{option}:" for option in options), "", *names]), "{toctree}")


def first_sentence(text: str) -> str:
    """The first sentence of a docstring on one line, in Markdown."""
    whole = " ".join(text.partition("\n\n")[0].split()).replace("``", "`")
    # "et al. 2018" and "e.g. x" do not end a sentence.
    return re.split(r"(?<=[^.]{2}\.)(?<!et al\.)\s+(?=[A-Z])", whole)[0]


def _line(cells: Sequence[str]) -> str:
    # A bar inside a cell would start another cell.
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(part)}" for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) and value >= 10_000 else str(value)

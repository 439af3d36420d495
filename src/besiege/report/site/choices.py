"""Choices of a page: radio buttons that show and hide its parts with style rules only.

A part that depends on a choice names the value it belongs to: ``data-norm="linf"``. It is shown
unless another value of that choice is checked. In a browser that does not know ``:has`` all parts
are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product


def token(text: str) -> str:
    """A text as a word that can stand in addresses, attributes and style rules.

    Examples
    --------
    >>> token("linf 8/255"), token("zoo:digits+bits(depth=3)")
    ('linf-8-255', 'zoo-digits-bits-depth-3')
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-") or "x"


def tokens(texts: Iterable[str]) -> dict[str, str]:
    """A different token for each text."""
    found: dict[str, str] = {}
    for text in dict.fromkeys(texts):
        word = base = token(text)
        number = 1
        while word in found.values():
            number += 1
            word = f"{base}-{number}"
        found[text] = word
    return found


@dataclass(frozen=True)
class Choice:
    """A choice of a page: its name, its legend, its values with their tokens, and one of them."""

    name: str
    legend: str
    values: dict[str, str]
    checked: str = ""

    @classmethod
    def of(cls, name: str, legend: str, texts: Iterable[str], checked: str = "") -> Choice:
        """The choice between these texts; one is checked at first, by default the first of them."""
        values = tokens(texts)
        return cls(name, legend, values, values.get(checked, next(iter(values.values()), "")))

    @property
    def shown(self) -> bool:
        """Whether there is anything to choose."""
        return len(self.values) > 1


def rules(choices: Sequence[Choice]) -> str:
    """The style rules of these choices."""
    return "\n".join(
        f":root:has(#{one.name}-{word}:checked) [data-{one.name}]"
        f':not([data-{one.name}~="{word}"]){{display:none}}'
        for one in choices
        if one.shown
        for word in one.values.values()
    )


def lacking(choices: Sequence[Choice], parts: Iterable[Sequence[str]]) -> list[dict[str, str]]:
    """The combinations of values for which a page has no part, by the names of the choices."""
    known = {tuple(part) for part in parts}
    return [
        {one.name: one.values[text] for one, text in zip(choices, texts, strict=True)}
        for texts in product(*(one.values for one in choices))
        if texts not in known
    ]

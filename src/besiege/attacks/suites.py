"""Suites: attacks one after the other, each on what the ones before left standing.

A suite is a fixed list of texts, so that its figure means the same for everybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from besiege.core.errors import UnknownNameError, near


@dataclass(frozen=True)
class Suite:
    """A list of attacks and what it is for."""

    attacks: tuple[str, ...]
    told: str


SUITES: Mapping[str, Suite] = MappingProxyType(
    {
        "quick": Suite(
            (
                "pgd(steps=20)",
                "pgd(steps=20, loss=margin)",
                "each_target(pgd(steps=20, loss=margin), 3)",
            ),
            "gradient ascent on three losses, for a first figure in a minute",
        ),
    }
)


def suite(name: str) -> Suite:
    """The suite of a name."""
    if name not in SUITES:
        raise UnknownNameError(f"no suite is called '{name}': {near(name, SUITES)}")
    return SUITES[name]

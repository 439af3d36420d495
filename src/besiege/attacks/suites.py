"""Suites: attacks one after the other, each on what the ones before left standing.

A suite is a fixed list of texts for each norm, so that its figure means the same for everybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from besiege.core.errors import UnknownNameError, near
from besiege.core.threat import L1, Norm


@dataclass(frozen=True)
class Suite:
    """A list of attacks and what it is for.

    Attributes
    ----------
    attacks : tuple of str
        The attacks in their order.
    told : str
        What the suite is for.
    others : mapping
        The list for norms that have one of their own.
    """

    attacks: tuple[str, ...]
    told: str
    others: Mapping[Norm, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def attacks_for(self, norm: Norm) -> tuple[str, ...]:
        """The attacks in a norm."""
        return self.others.get(norm, self.attacks)


# The nearest classes, a loss that does not saturate, fresh starts rather than long climbs: of
# about thirty lists run on the cells of benchmarks/README.md, the one nearest to standard overall.
_MANY_STARTS = "apgdt(steps=60, targets=3, order='distance', loss=probability_margin, restarts=3)"

SUITES: Mapping[str, Suite] = MappingProxyType(
    {
        "quick": Suite(
            ("apgd(steps=20)", "fabt(steps=50, targets=2)", _MANY_STARTS),
            "nearly the verdict of standard for a fifth of its passes",
            MappingProxyType({L1: ("apgd", _MANY_STARTS)}),
        ),
        "standard": Suite(
            ("apgd", "apgdt", "fabt", "square"),
            "AutoAttack, the figure every paper reports (Croce and Hein 2020; in l1 2021)",
            MappingProxyType({L1: ("apgd(restarts=5)", "apgdt(targets=5)", "fabt", "square")}),
        ),
        "plus": Suite(
            (
                "apgd(restarts=5)",
                "apgd(restarts=5, loss=dlr)",
                "fab(restarts=5)",
                "square",
                "apgdt",
                "fabt",
            ),
            "AutoAttack with more of everything, for a figure that is doubted",
        ),
        "rand": Suite(
            (
                "averaged(apgd, 20)",
                "averaged(apgd(loss=dlr), 20)",
                "averaged(square(steps=1000), 20)",
            ),
            "AutoAttack for models that answer by chance: every answer a mean of 20",
        ),
    }
)


def suite(name: str) -> Suite:
    """The suite of a name."""
    if name not in SUITES:
        raise UnknownNameError(f"no suite is called '{name}': {near(name, SUITES)}")
    return SUITES[name]

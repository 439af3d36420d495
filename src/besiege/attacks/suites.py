"""Suites: attacks run one after the other, each on the images that are not broken yet.

A suite is a fixed list of attack texts for each norm, so that its results are comparable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from besiege.core.errors import UnknownNameError, near
from besiege.core.threat import L0, L1, L2, Linf, Norm


@dataclass(frozen=True)
class Suite:
    """A list of attacks and what it is for.

    Attributes
    ----------
    attacks : tuple of str
        The attacks, in order.
    told : str
        What the suite is for.
    others : mapping
        Lists of norms that have their own.
    """

    attacks: tuple[str, ...]
    told: str
    others: Mapping[Norm, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def attacks_for(self, norm: Norm) -> tuple[str, ...]:
        """The attacks for a norm."""
        return self.others.get(norm, self.attacks)


# The nearest classes, a loss that does not saturate, and many starts rather than many steps. Of
# about thirty lists run on the cells of benchmarks/README.md, this is overall nearest to standard.
_MANY_STARTS = "apgdt(steps=60, targets=3, order='distance', loss=probability_margin, restarts=3)"

# Different short searches, since one finds what another misses. Chosen among those recorded on a
# natural ResNet-20, within 1000 forward and backward passes in total (benchmarks/README.md).
_STEERED = "each_target(fmn(steps=50), 3)"
_SMALL_STEPS = "fmn(schedule=falling(0.3, 0.003))"

SUITES: Mapping[str, Suite] = MappingProxyType(
    {
        "quick": Suite(
            ("apgd(steps=20)", "fabt(steps=50, targets=2)", _MANY_STARTS),
            "close to the result of standard at a fifth of its cost",
            MappingProxyType({L1: ("apgd", _MANY_STARTS)}),
        ),
        "standard": Suite(
            ("apgd", "apgdt", "fabt", "square"),
            "AutoAttack, the standard of the literature (Croce and Hein 2020; in l1 2021)",
            MappingProxyType({L1: ("apgd(restarts=5)", "apgdt(targets=5)", "fabt", "square")}),
        ),
        "standard@reference": Suite(
            ("apgd@croce", "apgdt@croce", "fabt@croce", "square@croce-code"),
            "standard with every attack as the reference code of AutoAttack runs it",
            MappingProxyType(
                {
                    L1: (
                        "apgd@croce(restarts=5)",
                        "apgdt@croce(targets=5)",
                        "fabt@croce",
                        "square@croce-code",
                    )
                }
            ),
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
            "AutoAttack with more restarts and losses, to double-check a result",
        ),
        "rand": Suite(
            (
                "averaged(apgd, 20)",
                "averaged(apgd(loss=dlr), 20)",
                "averaged(square(steps=1000), 20)",
            ),
            "AutoAttack for stochastic models: every answer is a mean of 20",
        ),
        "score": Suite(
            ("square", "nattack"),
            "for models that return scores only: at most 24,900 queries an image",
            MappingProxyType({L1: ("square",)}),
        ),
        "decision": Suite(
            ("rays", "hopskipjump"),
            "for models that return labels only: at most 42,500 queries an image",
            # GeoDA gains most in the first queries, above all on robust models; evolutionary then
            # finds smaller perturbations.
            MappingProxyType({L2: ("geoda", "evolutionary"), L1: ("geoda",)}),
        ),
        "minimum": Suite(
            (
                "superdeepfool",
                "ddn",
                "ddn(loss=cross_entropy)",
                "alma",
                "fabt(steps=30, targets=3)",
            ),
            "the smallest perturbation of several attacks, at 1000 passes a sample",
            MappingProxyType(
                {
                    Linf: ("fmn", _SMALL_STEPS, "fabt(steps=30, targets=3)", _STEERED),
                    L1: (_STEERED, "each_target(alma(steps=50), 3)", "alma(steps=150)"),
                    L0: ("fmn", "sigmazero(steps=200)"),
                }
            ),
        ),
    }
)


def suite(name: str) -> Suite:
    """Look up a suite by name."""
    if name not in SUITES:
        raise UnknownNameError(f"no suite is called '{name}': {near(name, SUITES)}")
    return SUITES[name]

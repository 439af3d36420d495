"""Suites: attacks run one after the other, each on the images that are not broken yet.

A suite is a fixed list of attack texts for each norm, so that its results are comparable. It may
have another list for stochastic models, and attacks that ignore a defense (`oblivious`) are left
out where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from besiege.core.attack_registry import ignores_defense
from besiege.core.errors import UnknownNameError, near
from besiege.core.threat import L0, L1, L2, Linf, Norm

DEFAULT = ("fgsm", "pgd", "each_target(pgd(loss=margin), 3)")
"""Default attacks: one step, many steps, and many steps with another loss to each of the likeliest
wrong classes. On the shipped digits models they break all but a sample or two of what twenty
restarts break."""
DEFAULT_TARGETED = ("fgsm", "pgd", "pgd(loss=margin)")
DEFAULT_TRANSFER = ("pgd", "dim", "sinifgsm")
"""Default attacks on a substitute: of three attacks, these broke most together
(docs/transfer.md)."""


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
    origin : str
        Whose code it is, and where it differs from the published one.
    stochastic : tuple of str
        The list for stochastic models; empty where it is the same one.
    pooled : tuple of str
        The list for those whose answers pool several draws; empty where it is that of stochastic
        models.
    rejecting, rounding : tuple of str
        What is added to each list for models that may reject images, and in linf for models with a
        layer that rounds pixels; averaged over 20 draws where the list is that of stochastic
        models.
    """

    attacks: tuple[str, ...]
    told: str
    others: Mapping[Norm, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    origin: str = ""
    stochastic: tuple[str, ...] = ()
    pooled: tuple[str, ...] = ()
    rejecting: tuple[str, ...] = ()
    rounding: tuple[str, ...] = ()

    def attacks_for(
        self,
        norm: Norm,
        *,
        stochastic: bool = False,
        pooled: bool = False,
        rejects: bool = False,
        rounds: bool = False,
        defended: bool = True,
    ) -> tuple[str, ...]:
        """The attacks for a norm, on a model with these traits.

        `rounds` says that it has a layer with cells of pixel values (`Victim.cells`).
        """
        usual = self.others.get(norm, self.attacks)
        listed = self.stochastic if stochastic and self.stochastic else usual
        listed = self.pooled if pooled and self.pooled else listed
        averages = listed is self.stochastic and bool(self.stochastic)
        more = self.rejecting if rejects else ()
        more += self.rounding if rounds and norm is Linf else ()
        listed += tuple(f"averaged({text}, 20)" if averages else text for text in more)
        return tuple(text for text in listed if defended or not ignores_defense(text))

    @property
    def lists(self) -> Mapping[str, tuple[str, ...]]:
        """All its lists, by where they apply; the usual one has no words."""
        norms = {f"in {norm}": attacks for norm, attacks in self.others.items()}
        drawn = {"on stochastic models": self.stochastic} if self.stochastic else {}
        drawn |= {"on pooled models": self.pooled} if self.pooled else {}
        drawn |= {"also on models that may reject": self.rejecting} if self.rejecting else {}
        rounding = {"also in linf on models that round pixels": self.rounding}
        drawn |= rounding if self.rounding else {}
        return {"": self.attacks, **norms, **drawn}

    @property
    def ignores(self) -> str | None:
        """Its attack that ignores a defense, if it has one."""
        return next(filter(ignores_defense, self.attacks), None)


# The nearest classes, a loss that does not saturate, and many starts rather than many steps. Of
# about thirty lists run on the cells of benchmarks/README.md, this is overall nearest to standard.
_MANY_STARTS = "apgdt(steps=60, targets=3, order='distance', loss=probability_margin, restarts=3)"

# Different short searches, since one finds what another misses. Chosen among those recorded on a
# natural ResNet-20, within 1000 forward and backward passes in total (benchmarks/README.md).
_STEERED = "each_target(fmn(steps=50), 3)"
_SMALL_STEPS = "fmn(schedule=falling(0.3, 0.003))"

# A rejection that weighs less than the label: what the sieges' fold and sign steps leave of MagNet
# on MNIST, Adam breaks towards one of nine targets (docs/detectors.md).
_WEIGHED = (
    "each_target(pgd(steps=300, loss=weighed, start=origin, direction=adam, schedule=cosine(0.1)))"
)

_INDEPENDENT = "An independent implementation of AutoAttack, not its authors' code."
_FAB = (
    "FAB takes one forward pass fewer in every step, shrinks its perturbation strongly at first "
    "and not at all at last, and ends with a final search."
)
_SQUARE = (
    "Square draws windows and signs for every image separately, reaches the last row and column, "
    "and draws again where a window would change nothing."
)
_APGD = "APGD follows the papers where the code differs from them."
_AS_CODED = "standard@reference runs every attack as the reference code does."

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
            " ".join((_INDEPENDENT, _FAB, _SQUARE, _APGD, _AS_CODED)),
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
            f"{_INDEPENDENT} `besiege show fabt@croce` and its other attacks say what still "
            "differs, which is mostly rounding.",
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
            origin=" ".join((_INDEPENDENT, _FAB, _SQUARE, _APGD)),
        ),
        "rand": Suite(
            (
                "averaged(apgd, 20)",
                "averaged(apgd(loss=dlr), 20)",
                "averaged(square(steps=1000), 20)",
            ),
            "AutoAttack for stochastic models: every answer is a mean of 20",
            origin=" ".join((_INDEPENDENT, _SQUARE, _APGD)),
        ),
        "adaptive": Suite(
            (
                "oblivious(pgd)",
                "pgd(steps=100, loss=margin)",
                "apgd(loss=dlr)",
                "apgdt",
                "square",
            ),
            "for defenses: an attack that ignores the defense, then attacks through it",
            stochastic=(
                "oblivious(pgd)",
                "averaged(pgd(steps=100, loss=margin), 20)",
                "averaged(apgd(loss=dlr), 20)",
                "averaged(apgdt, 20)",
                "averaged(square(steps=1000), 20)",
            ),
            # Their answers are means or votes already.
            pooled=(
                "oblivious(pgd)",
                "pgd(steps=100, loss=margin)",
                "apgd(loss=dlr)",
                "apgdt",
                "square(steps=1000)",
            ),
            # Classifier and detector are attacked together by each, by opgd in turns, and at last
            # with another weight.
            rejecting=("opgd", _WEIGHED),
            # Rounding has no gradient, and few bits can change: they are searched one by one.
            rounding=("beam",),
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


OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {"autoattack": "standard", "aa": "standard", "autoattack+": "plus", "aa+": "plus"}
)
"""What other libraries call a suite, without capitals, hyphens and underscores."""


def suite_name(text: str) -> str:
    """The name of a suite as it is listed here; any other text is returned as it is.

    Examples
    --------
    >>> suite_name("AutoAttack"), suite_name("quick"), suite_name("fgsm, pgd")
    ('standard', 'quick', 'fgsm, pgd')
    """
    return OTHER_NAMES.get(text.casefold().replace("-", "").replace("_", ""), text)


def suite(name: str) -> Suite:
    """Look up a suite by name."""
    known = suite_name(name)
    if known not in SUITES:
        names = [*SUITES, *OTHER_NAMES]
        raise UnknownNameError(f"no suite is called '{name}': {near(name, names)}")
    return SUITES[known]

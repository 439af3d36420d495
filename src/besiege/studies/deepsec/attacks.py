"""The 16 attacks of DEEPSEC in the 19 forms of its tables, as presets, with their threats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from besiege.core.errors import UnknownNameError, near

DataName = Literal["cifar10", "mnist", "digits"]


@dataclass(frozen=True)
class Form:
    """One row of the tables.

    Attributes
    ----------
    name : str
        As DEEPSEC has it.
    attack, threat : str
        The preset, and the threat it is run under.
    iterative : bool
        Whether it takes several steps.
    """

    name: str
    attack: str
    threat: str
    iterative: bool

    @property
    def norm(self) -> str:
        """The norm of its threat."""
        return self.threat.partition(" ")[0].partition(":")[0]

    def runs_as(self, text: str) -> bool:
        """Whether an attack of a board is this one, possibly with fewer steps."""
        return text == self.attack or text.startswith(f"{self.attack}(")

    @property
    def targeted(self) -> bool:
        """Whether it has a target."""
        return "targeted" in self.threat


_BUDGETS: Mapping[DataName, tuple[str, str]] = {
    "cifar10": ("0.1", "0.2"),
    "mnist": ("0.3", "0.5"),
    "digits": ("0.3", "0.5"),
}


def forms(data: DataName) -> Mapping[str, Form]:
    """The rows of the tables, by name and in their order.

    Examples
    --------
    >>> found = forms("cifar10")
    >>> len(found), found["ILLC"].attack, found["ILLC"].threat
    (19, 'illc@deepsec-cifar10', 'linf:0.1 targeted:least-likely')
    """
    eps, larger = _BUDGETS[data]
    # Digits have the presets for MNIST and its budgets.
    here, least = f"@deepsec-{'mnist' if data == 'digits' else data}", "targeted:least-likely"
    drawn = "targeted:random"
    rows = (
        ("FGSM", f"fgsm{here}", f"linf:{eps}", False),
        ("FGSM, larger", f"fgsm{here}", f"linf:{larger}", False),
        ("R+FGSM", f"rfgsm{here}", f"linf:{eps}", False),
        ("BIM", f"bim{here}", f"linf:{eps}", True),
        ("PGD", f"pgd{here}", f"linf:{eps}", True),
        ("U-MI-FGSM", f"mim{here}", f"linf:{eps}", True),
        ("UAP", f"uap{here}", f"linf:{eps}", False),
        ("DF", "deepfool@deepsec", "l2", True),
        ("OM", f"optmargin{here}", "l2", True),
        ("LLC", f"llc{here}", f"linf:{eps} {least}", False),
        ("R+LLC", f"rllc{here}", f"linf:{eps} {least}", False),
        ("ILLC", f"illc{here}", f"linf:{eps} {least}", True),
        ("T-MI-FGSM", f"mim{here}", f"linf:{eps} {drawn}", True),
        ("JSMA", "jsma@deepsec", f"l0 {drawn}", True),
        ("BLB", "blb@deepsec", f"l2 {drawn}", True),
        ("CW2", "cw@deepsec", f"l2 {drawn}", True),
        ("CW2, kappa 20", "cw@deepsec-20", f"l2 {drawn}", True),
        ("EAD-EN", "ead@deepsec-en", f"l2 {drawn}", True),
        ("EAD-L1", "ead@deepsec-l1", f"l2 {drawn}", True),
    )
    return {row[0]: Form(*row) for row in rows}


def form(data: DataName, name: str) -> Form:
    """The row of a name; an error with near matches for another one."""
    known = forms(data)
    if name not in known:
        raise UnknownNameError(f"DEEPSEC has no attack '{name}': {near(name, known)}")
    return known[name]


SAME_BUT_GOAL = (
    ("FGSM", "LLC"),
    ("R+FGSM", "R+LLC"),
    ("BIM", "ILLC"),
    ("U-MI-FGSM", "T-MI-FGSM"),
)
"""Untargeted attacks, and the targeted ones that differ from them in the goal only."""

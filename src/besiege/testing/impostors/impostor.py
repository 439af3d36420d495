"""`Impostor`: one model in disguise, with what is true of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torch import nn

from besiege.data import Data
from besiege.data import load as load_data
from besiege.models.classifier import Classifier
from besiege.testing.impostors.parts import CLASSES, bare

THREAT = "linf:0.15"
"""The threat that every impostor is made for."""
TRUTHS = Path(__file__).with_name("truths.json")
"""The true accuracies; ``python benchmarks/examination.py --truths`` computes them again."""
COUNT = 60

Wrap = Callable[[nn.Module], nn.Module]


@dataclass(frozen=True)
class Impostor:
    """A natural network that only looks robust.

    Attributes
    ----------
    name, family : str
        The family is the file that its disguise is in.
    about : str
        The disguise, in one sentence.
    wrap : callable
        Puts the disguise on a network.
    surrogates : tuple of callable
        Smooth versions of the disguise, on which the adaptive attack crafts as well.
    stochastic : bool
        Whether it draws at random, without declaring it. A success is then one in most draws.
    """

    name: str
    family: str
    about: str
    wrap: Wrap
    surrogates: tuple[Wrap, ...] = ()
    stochastic: bool = False
    threat: str = THREAT

    def make(self) -> Classifier:
        """A new, untouched copy; copies share no state."""
        return Classifier(self.wrap(bare()).eval(), classes=CLASSES, name=self.name)

    @property
    def truth(self) -> float:
        """Its true robust accuracy on `data`; the module `adaptive` defines it."""
        return _truths()[self.name]["robust"]

    @property
    def clean(self) -> float:
        """Its true accuracy on the same images without an attack."""
        return _truths()[self.name]["clean"]


def data(count: int = COUNT) -> Data:
    """The samples that the truths are about: the first 60 of the test set of digits."""
    return load_data("digits", count=count)


@cache
def _truths() -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = json.loads(TRUTHS.read_text())["impostors"]
    return found

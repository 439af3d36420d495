"""What an attacker has besides the victim: images to start from, and a model of its own."""

from __future__ import annotations

from dataclasses import dataclass

from besiege.core.oracle import Oracle
from besiege.core.samples import Samples


@dataclass(frozen=True)
class Knowledge:
    """What an attack may use that is not the victim's answer.

    Attributes
    ----------
    starts : Samples, optional
        Images of known classes. An attack that must begin beyond the boundary may begin at one of
        them; they are the same for every sample and every batch, and each that is shown to the
        victim is a query of the sample it is shown for.
    substitute : Oracle, optional
        A model whose gradients are free: what it computes is counted apart, and is no query.
    """

    starts: Samples | None = None
    substitute: Oracle | None = None

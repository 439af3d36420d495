"""What an attacker has besides the victim: images to start from, and other models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from besiege.core.oracle import Oracle
from besiege.core.samples import Samples
from besiege.core.victim import Victim


@dataclass(frozen=True)
class Knowledge:
    """What an attack may use that is not the victim's answer.

    Attributes
    ----------
    starts : Samples, optional
        Images of known classes, for attacks that must start beyond the boundary. They are the same
        for every sample and every batch. Each one that is sent to the victim is a query of the
        sample it is sent for.
    substitute : Victim, optional
        A model whose gradients are free: its passes are counted separately and are no queries.
    bare : Victim, optional
        The undefended model behind the victim's layers, on which oblivious attacks are crafted.
    """

    starts: Samples | None = None
    substitute: Victim | None = None
    bare: Victim | None = None

    @cached_property
    def oracle(self) -> Oracle | None:
        """The substitute, as the attack queries it."""
        return None if self.substitute is None else Oracle(self.substitute)

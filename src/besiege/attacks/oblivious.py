"""`oblivious`: an attack that ignores a defense, crafted on the undefended model."""

from __future__ import annotations

from dataclasses import dataclass

from besiege.attacks.attack import Attack
from besiege.attacks.combine import Single
from besiege.core.attack_registry import OBLIVIOUS, register
from besiege.core.siege import Siege


@register(OBLIVIOUS)
@dataclass(frozen=True)
class Oblivious(Single):
    """The attack without knowledge of the defense: crafted on the undefended model (transfer).

    The victim gets each image once. Where it breaks fewer images than attacks on the victim itself,
    the defense hides from attacks that ignore it only (Carlini and Wagner 2017).
    """

    attack: Attack

    oblivious = True

    def run(self, siege: Siege) -> None:
        self._launch(self.attack, siege)

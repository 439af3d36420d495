"""The attacks by name: those of besiege, and those that other packages add."""

from __future__ import annotations

from typing import Any, Final

from besiege.core.registry import Registry
from besiege.core.threat import Access

_MODULES = (
    "alma ascent apgd bandits beam blb boundary combine deepfool cw ead evolutionary fab geoda "
    "hopskipjump jsma lspga nattack nes noise oblivious prgf opgd opt optmargin partial rays "
    "sigmazero square superdeepfool universal zoo"
)
ATTACKS: Registry[Any] = Registry(
    "attack", tuple(f"besiege.attacks.{name}" for name in _MODULES.split()), group="besiege.attacks"
)
register = ATTACKS.register
OBLIVIOUS: Final = "oblivious"
"""The attack that ignores a defense, which reports label without loading any attack."""


def ignores_defense(text: str) -> bool:
    """Whether the text of an attack is that of one that ignores a defense."""
    return text.startswith(f"{OBLIVIOUS}(")


def fitting(access: Access) -> list[str]:
    """Names of the registered attacks that need no more than this access."""
    return [
        name
        for name, attack in ATTACKS.items()
        if isinstance(getattr(attack, "access", None), Access) and attack.access <= access
    ]

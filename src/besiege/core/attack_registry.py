"""The attacks by name: those of besiege, and those that other packages add."""

from __future__ import annotations

from typing import Any

from besiege.core.registry import Registry
from besiege.core.threat import Access

ATTACKS: Registry[Any] = Registry(
    "attack",
    (
        "besiege.attacks.alma",
        "besiege.attacks.ascent",
        "besiege.attacks.apgd",
        "besiege.attacks.bandits",
        "besiege.attacks.blb",
        "besiege.attacks.boundary",
        "besiege.attacks.combine",
        "besiege.attacks.deepfool",
        "besiege.attacks.cw",
        "besiege.attacks.ead",
        "besiege.attacks.evolutionary",
        "besiege.attacks.fab",
        "besiege.attacks.geoda",
        "besiege.attacks.hopskipjump",
        "besiege.attacks.jsma",
        "besiege.attacks.nattack",
        "besiege.attacks.nes",
        "besiege.attacks.prgf",
        "besiege.attacks.opt",
        "besiege.attacks.optmargin",
        "besiege.attacks.partial",
        "besiege.attacks.rays",
        "besiege.attacks.sigmazero",
        "besiege.attacks.square",
        "besiege.attacks.universal",
        "besiege.attacks.zoo",
    ),
    group="besiege.attacks",
)
register = ATTACKS.register


def fitting(access: Access) -> list[str]:
    """Names of the registered attacks that need no more than this access."""
    return [
        name
        for name, attack in ATTACKS.items()
        if isinstance(getattr(attack, "access", None), Access) and attack.access <= access
    ]

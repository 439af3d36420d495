"""Attacks: values made of pieces, and combinators that make attacks of attacks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from besiege.attacks.ascent import Ascent
    from besiege.attacks.attack import Attack, names, parse, split

__all__ = ["Ascent", "Attack", "names", "parse", "split"]

_LAZY = {
    "Ascent": "ascent",
    "Attack": "attack",
    "names": "attack",
    "parse": "attack",
    "split": "attack",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"besiege.attacks.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'besiege.attacks' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__

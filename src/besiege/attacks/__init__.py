"""Attacks: values made of pieces, and combinators that make attacks of attacks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from besiege.attacks.ascent import Ascent
    from besiege.attacks.attack import Attack, parse, split

__all__ = ["Ascent", "Attack", "parse", "split"]

_LAZY = {"Ascent": "ascent", "Attack": "attack", "parse": "attack", "split": "attack"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"besiege.attacks.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'besiege.attacks' has no attribute '{name}'")

"""Defenses: layers in front of a victim, with their own surrogate backward."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from besiege.defenses.defended import Defended
    from besiege.defenses.layers import BitDepth, Layer, ResizePad

__all__ = ["BitDepth", "Defended", "Layer", "ResizePad"]

_LAZY = {"BitDepth": "layers", "Defended": "defended", "Layer": "layers", "ResizePad": "layers"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"besiege.defenses.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'besiege.defenses' has no attribute '{name}'")

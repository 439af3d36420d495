"""Defenses: layers in front of a victim, with their own surrogate backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from besiege.core.lazy import lazily

if TYPE_CHECKING:
    from besiege.defenses.adapting import Adapt
    from besiege.defenses.defended import Defended, load
    from besiege.defenses.layers import BitDepth, Layer, ResizePad

__all__ = ["Adapt", "BitDepth", "Defended", "Layer", "ResizePad", "load"]

__getattr__, __dir__ = lazily(
    __name__,
    {"adapting": "Adapt", "defended": "Defended load", "layers": "BitDepth Layer ResizePad"},
)

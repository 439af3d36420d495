"""Bounds that no perturbation within a budget can cross: of a network's answers, and of votes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from besiege.core.lazy import lazily

if TYPE_CHECKING:
    from besiege.bounds.bounding import Bounding

__all__ = ["Bounding"]

__getattr__, __dir__ = lazily(__name__, {"bounding": "Bounding"})

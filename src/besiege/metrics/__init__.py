"""Figures and how sure they are: pure functions of counts, rows and images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from besiege.core.lazy import lazily

if TYPE_CHECKING:
    from besiege.metrics.intervals import Rate, clopper_pearson

__all__ = ["Rate", "clopper_pearson"]

__getattr__, __dir__ = lazily(
    __name__,
    {"Rate": "intervals", "clopper_pearson": "intervals"},
)

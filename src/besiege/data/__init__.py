"""Named data sets: images, labels, stable ids and a digest of the content."""

from __future__ import annotations

from typing import TYPE_CHECKING

from besiege.core.lazy import lazily

if TYPE_CHECKING:
    from besiege.data.dataset import Data
    from besiege.data.named import NAMES, load

__all__ = ["NAMES", "Data", "load"]

__getattr__, __dir__ = lazily(
    __name__,
    {"NAMES": "named", "Data": "dataset", "load": "named"},
)

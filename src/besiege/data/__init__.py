"""Named data sets: images, labels, stable ids and a digest of the content."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from besiege.data.dataset import Data
    from besiege.data.named import NAMES, load

__all__ = ["NAMES", "Data", "load"]

_HOMES = {"NAMES": "named", "Data": "dataset", "load": "named"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__

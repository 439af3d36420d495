"""Figures and how sure they are: pure functions of counts, rows and images."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from besiege.metrics.intervals import Rate, clopper_pearson

__all__ = ["Rate", "clopper_pearson"]

_HOMES = {"Rate": "intervals", "clopper_pearson": "intervals"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__

"""Victims and where they come from: modules with their normalisation, named weights, files."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from besiege.models.architectures import ARCHITECTURES
    from besiege.models.classifier import Classifier
    from besiege.models.public import PUBLIC
    from besiege.models.sources import load, save_zoo, zoo_names
    from besiege.models.twins import twin

__all__ = ["ARCHITECTURES", "PUBLIC", "Classifier", "load", "save_zoo", "twin", "zoo_names"]

_HOMES = {
    "ARCHITECTURES": "architectures",
    "PUBLIC": "public",
    "Classifier": "classifier",
    "load": "sources",
    "save_zoo": "sources",
    "twin": "twins",
    "zoo_names": "sources",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__

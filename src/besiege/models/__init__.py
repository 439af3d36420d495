"""Victims and where they come from: modules with their normalisation, named weights, files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from besiege.core.lazy import lazily

if TYPE_CHECKING:
    from besiege.models.architectures import ARCHITECTURES
    from besiege.models.classifier import Classifier
    from besiege.models.public import PUBLIC
    from besiege.models.sources import load, save_zoo, zoo_names
    from besiege.models.twins import twin

__all__ = ["ARCHITECTURES", "PUBLIC", "Classifier", "load", "save_zoo", "twin", "zoo_names"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "ARCHITECTURES": "architectures",
        "PUBLIC": "public",
        "Classifier": "classifier",
        "load": "sources",
        "save_zoo": "sources",
        "twin": "twins",
        "zoo_names": "sources",
    },
)

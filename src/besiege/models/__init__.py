"""Victims and how they are loaded: modules with normalisation, named weights, files, endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from besiege.core.lazy import lazily

if TYPE_CHECKING:
    from besiege.core.victim import Victim
    from besiege.models.architectures import ARCHITECTURES
    from besiege.models.catalogue import CATALOGUE, FORMS, Architecture, Listed, listing, zoo_names
    from besiege.models.classifier import Classifier
    from besiege.models.endpoint import Endpoint
    from besiege.models.ensemble import Ensemble
    from besiege.models.functions import FunctionModel, function_model
    from besiege.models.onnx_file import OnnxModel
    from besiege.models.public import PUBLIC
    from besiege.models.sizing import Sizing
    from besiege.models.sources import load, save_zoo
    from besiege.models.twins import twin

__all__ = [
    "ARCHITECTURES",
    "CATALOGUE",
    "FORMS",
    "PUBLIC",
    "Architecture",
    "Classifier",
    "Endpoint",
    "Ensemble",
    "FunctionModel",
    "Listed",
    "OnnxModel",
    "Sizing",
    "Victim",
    "function_model",
    "listing",
    "load",
    "save_zoo",
    "twin",
    "zoo_names",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "architectures": "ARCHITECTURES",
        "catalogue": "CATALOGUE FORMS Architecture Listed listing zoo_names",
        "classifier": "Classifier Victim",
        "endpoint": "Endpoint",
        "ensemble": "Ensemble",
        "functions": "FunctionModel function_model",
        "onnx_file": "OnnxModel",
        "public": "PUBLIC",
        "sizing": "Sizing",
        "sources": "load save_zoo",
        "twins": "twin",
    },
)

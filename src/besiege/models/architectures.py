"""The networks besiege can build, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import nn

from besiege.models.preact import preact_resnet18
from besiege.models.residual import (
    BasicBlock,
    CifarResNet,
    resnet2b,
    resnet4b,
    resnet20,
    resnet32,
    resnet44,
    resnet56,
)
from besiege.models.small import (
    cnn_a,
    conv_small,
    deepsec_cnn,
    digits_cnn,
    digits_mlp,
    lenet,
    oval_base,
    oval_deep,
    oval_wide,
)

__all__ = [
    "ARCHITECTURES",
    "BasicBlock",
    "CifarResNet",
    "cnn_a",
    "conv_small",
    "deepsec_cnn",
    "digits_cnn",
    "digits_mlp",
    "lenet",
    "oval_base",
    "oval_deep",
    "oval_wide",
    "preact_resnet18",
    "resnet2b",
    "resnet4b",
    "resnet20",
    "resnet32",
    "resnet44",
    "resnet56",
]

# catalogue.py says of each, without torch, what it is and takes.
ARCHITECTURES: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {
        make.__name__: make
        for make in (
            resnet20,
            resnet32,
            resnet44,
            resnet56,
            preact_resnet18,
            resnet2b,
            resnet4b,
            cnn_a,
            conv_small,
            oval_base,
            oval_wide,
            oval_deep,
            lenet,
            deepsec_cnn,
            digits_cnn,
            digits_mlp,
        )
    }
)

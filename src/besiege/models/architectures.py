"""The networks besiege can build, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import nn

from besiege.models import (
    autoencoders,
    dense,
    depthwise,
    inception,
    joint,
    mobile,
    pixelcnn,
    plain,
    preact,
    residual,
    small,
    squeeze,
    vgg,
    wide,
)
from besiege.models.catalogue import CATALOGUE

_MADE = {
    name: made
    for home in (
        *(residual, preact, wide, vgg, plain, dense, depthwise, inception, small, squeeze, mobile),
        *(joint, autoencoders, pixelcnn),
    )
    for name, made in vars(home).items()
}

# catalogue.py describes each and its arguments, without importing torch.
ARCHITECTURES: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {name: _MADE[name] for name in CATALOGUE}
)

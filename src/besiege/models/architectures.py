"""The networks besiege can build, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import nn

from besiege.models import preact, residual, small
from besiege.models.catalogue import CATALOGUE

_MADE = {**vars(residual), **vars(preact), **vars(small)}

# catalogue.py describes each and its arguments, without importing torch.
ARCHITECTURES: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {name: _MADE[name] for name in CATALOGUE}
)

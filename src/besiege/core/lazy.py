"""Names of a package that are imported on first use.

Therefore ``import besiege`` and commands that only list or print never import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(
    package: str, names: Mapping[str, str], modules: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package.

    Parameters
    ----------
    package : str
        Its name.
    names : mapping
        The names that each of its modules gives it, separated by spaces.
    modules : str
        Modules that are names themselves, separated by spaces.
    """
    homes = {name: module for module, given in names.items() for name in given.split()}

    def find(name: str) -> Any:
        if name in modules.split():
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return find, lambda: sorted([*homes, *modules.split()])

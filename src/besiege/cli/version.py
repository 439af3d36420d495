"""``besiege version``: prints installed versions, without importing the packages."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from cyclopts import App

import besiege
from besiege.cli import screen
from besiege.cli.grammar import AsJson, examples, flowing

command = App(name="version", help_epilogue=examples("besiege version", "besiege --version"))
_STANDS_ON = ("torch", "numpy", "scipy", "safetensors", "duckdb", "pydantic", "cyclopts")


@command.default
@flowing
def versions(*, as_json: AsJson = False) -> None:
    """Print the installed versions, for a bug report."""
    found = {"besiege": besiege.__version__, "python": platform.python_version()}
    found |= {name: _installed(name) for name in _STANDS_ON}
    found["platform"] = f"{platform.system()} {platform.machine()}"
    if as_json:
        screen.print_json(found)
        return
    console = screen.out()
    for name, value in found.items():
        console.print(f"{name} {value}")


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"

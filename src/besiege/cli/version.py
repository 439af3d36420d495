"""``besiege version``: what is installed, without importing it."""

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
    """Which versions are installed: what to write into a bug report."""
    found = {"besiege": besiege.__version__, "python": platform.python_version()}
    found |= {name: _installed(name) for name in _STANDS_ON}
    found["platform"] = f"{platform.system()} {platform.machine()}"
    if as_json:
        screen.print_json(found)
        return
    console = screen.out()
    for name, told in found.items():
        console.print(f"{name} {told}")


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"

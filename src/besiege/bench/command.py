"""The command or call that reproduces an evaluation."""

from __future__ import annotations

from pathlib import Path

from besiege.bench.spec import Request
from besiege.core.shell import shell
from besiege.core.threat import CLASS

_NOT_OPTIONS = ("model", "data", "threat", "across", "apart", "command", "textual")
_SHARD = 100
"""The default shard on a CPU; another one is part of the command."""


_EXAMINED = ("seed", "split", "resize", "crop", "channels", "layout")
"""Options of `besiege examine` besides model, data and threat."""


def examine_command(request: Request) -> str:
    """The command that examines the model of a request."""
    usual = Request(model="", data="", threat="")
    given = {name: getattr(request, name) for name in _EXAMINED}
    options = [
        word
        for name, value in given.items()
        if value is not None and value != getattr(usual, name)
        for word in (f"--{name}", value)
    ]
    words = [request.model, "--data", request.data, "--threat", request.threat]
    return shell(["besiege", "examine", *words, *options])


def command_of(request: Request, out: Path | None = None) -> str:
    """The command that reproduces a request, or the Python call where an object has no name."""
    usual = Request(model="", data="", threat="", shard=_SHARD, examine="short")
    changed = {
        name: value
        for name, value in request
        if name not in _NOT_OPTIONS and value is not None and value != getattr(usual, name)
    }
    if request.suite is not None:
        changed.pop("attacks", None)
    if request.goal is not None and request.goal.startswith(CLASS):
        changed["target_class"] = changed.pop("goal").removeprefix(CLASS)
    if len(request.substitute) < 2:
        changed.pop("fuse", None)
    if not request.textual:
        given = [f"threat={request.threat!r}"]
        given += [
            f"{name}={list(value) if isinstance(value, tuple) else value!r}"
            for name, value in changed.items()
        ]
        return f"besiege.evaluate(<{request.model}>, <{request.data}>, {', '.join(given)})"
    parts: list[object] = ["besiege", "evaluate", request.model]
    parts += ["--data", request.data, "--threat", request.threat]
    for name, value in changed.items():
        if name == "attacks" and not isinstance(value, str):
            value = ", ".join(value)
        for one in value if isinstance(value, tuple) else [value]:
            parts += [f"--{name.replace('_', '-')}", one]
    parts += [] if out is None else ["--out", out]
    return shell(parts)

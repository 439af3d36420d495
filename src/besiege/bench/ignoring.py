"""Attacks that ignore a defense, where one of several models has none: it is spared them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from besiege.attacks.attack import Attack, parse, split
from besiege.bench.attack_lists import Attacks
from besiege.bench.request import Objects
from besiege.core.errors import UndefendedError
from besiege.core.shell import shell

if TYPE_CHECKING:
    from besiege.bench.spec import Request

Asked = tuple["Request", Objects | None]
Result = TypeVar("Result")


def each_fitting(
    requests: Sequence[Asked], work: Callable[[Request, Objects | None], Result]
) -> tuple[list[Asked], list[Result]]:
    """The requests with what `work` makes of each, without attacks that a model has no defense for.

    Models side by side are then measured by one list of attacks: where a model has no defense to
    ignore, the attack itself is what an ignoring attacker runs. If no model has a defense, or none
    of the attacks is left, the list is a mistake and the error stays.
    """
    asked, found = list(requests), [_tried(work, *one) for one in requests]
    bare = [place for place, one in enumerate(found) if isinstance(one, UndefendedError)]
    sound: list[Result] = []
    for place, one in enumerate(found):
        if isinstance(one, UndefendedError):
            fewer = _without(*requests[place]) if len(bare) < len(found) else None
            if fewer is None:
                raise one
            asked[place] = fewer
            one = work(*fewer)
        sound.append(one)
    return asked, sound


def _tried(
    work: Callable[[Request, Objects | None], Result], request: Request, objects: Objects | None
) -> Result | UndefendedError:
    try:
        return work(request, objects)
    except UndefendedError as problem:
        return problem


def _without(request: Request, objects: Objects | None) -> Asked | None:
    """The request without its attacks that ignore a defense; None where no other is left."""
    given = objects or Objects()
    for name in ("attacks", "suite"):
        written: Attacks | None = getattr(given, name) or getattr(request, name)
        if written is None:
            continue
        listed = split(written) if isinstance(written, str) else written
        listed = [listed] if isinstance(listed, Attack) else listed
        kept = [one for one in listed if not parse(one).oblivious]
        if not kept:
            return None
        text = ", ".join(map(str, kept))
        command = request.command
        if isinstance(written, str) and command.startswith("besiege "):
            before, after = (shell([f"--{name}", one]) for one in (written, text))
            command = command.replace(before, after)
        fewer = request.model_copy(update={name: text, "command": command})
        live: dict[str, Any] = {} if getattr(given, name) is None else {name: kept}
        return fewer, replace(given, **live) if live else objects
    return None

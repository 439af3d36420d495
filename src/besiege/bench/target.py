"""The target class of an evaluation: from its number or name to a threat and the images it fits."""

from __future__ import annotations

from dataclasses import replace
from operator import index
from typing import TYPE_CHECKING

from besiege.core.errors import InputError, ThreatError, near
from besiege.core.text import short, whole
from besiege.core.threat import CLASS, Goal, Threat

if TYPE_CHECKING:
    from besiege.data.dataset import Data


def goal_of(goal: str | None, target_class: int | str | None) -> str | None:
    """The goal of a request as text, where its target class is given beside it.

    Examples
    --------
    >>> goal_of(None, "cat"), goal_of("targeted:random", None)
    ('targeted:class=cat', 'targeted:random')
    """
    if target_class is None:
        return goal
    if goal is not None:
        raise InputError(f"goal='{goal}' and target_class='{target_class}' disagree: give one")
    if isinstance(target_class, str):
        return f"{CLASS}{target_class}"
    try:
        return f"{CLASS}{index(target_class)}"
    except TypeError:
        raise InputError(
            f"target_class is a {type(target_class).__name__}: give the number or the name of a "
            "class"
        ) from None


def aimed(threat: Threat, goal: str) -> Threat:
    """The threat with a goal that names a class; one given by name waits for `settled`."""
    try:
        target = whole(goal.removeprefix(CLASS), "the target class", 0)
    except InputError:
        target = None
    if threat.goal is not Goal.UNTARGETED and (threat.target is None or threat.target != target):
        raise ThreatError(f"the threat '{threat}' and the goal '{goal}' disagree: give one")
    return replace(threat, goal=Goal.GIVEN, target=target)


def settled(threat: Threat, goal: str | None, data: Data) -> Threat:
    """The threat with the number of its target class, which must be one of the data."""
    if threat.goal is not Goal.GIVEN:
        return threat
    target = threat.target
    if target is None:
        target = _named((goal or "").removeprefix(CLASS), data)
    if target >= data.classes:
        raise ThreatError(
            f"the target class is {target}, but {data.name} has {data.classes} classes, 0 to "
            f"{data.classes - 1}"
        )
    return replace(threat, target=target)


def _named(name: str, data: Data) -> int:
    """The number of a class by its name; capitals do not matter where that is unambiguous."""
    if name in data.class_names:
        return data.class_names.index(name)
    folded = [known.casefold() for known in data.class_names]
    if folded.count(name.casefold()) == 1:
        return folded.index(name.casefold())
    listed = near(name, data.class_names) if data.class_names else "its classes have no names"
    raise ThreatError(
        f"no class of {data.name} is called '{short(name)}': {short(listed, 300)}; a number from 0 "
        f"to {data.classes - 1} works, too"
    )


def left(data: Data, target: int | None) -> Data:
    """The images that are not of the target class: those have reached the goal already."""
    if target is None:
        return data
    others = data.labels != target
    if not bool(others.any()):
        raise InputError(
            f"all {len(data)} images are of the target class {target}, and such images are left "
            "out: choose another class, or more images"
        )
    return data if bool(others.all()) else data.take(others)

"""How the suites of victims and layers run: every law is tried, then one error lists failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from torch import Tensor

from besiege.core.dice import Dice
from besiege.testing.law_violation import LawViolation
from besiege.testing.surroundings import changed_in, surroundings

Trial = TypeVar("Trial")


def demand(held: bool, seen: str) -> None:
    """Raise a `LawViolation` with what was seen, unless the law held."""
    if not held:
        raise LawViolation("law", seen)


def hold_to(
    laws: Mapping[str, Callable[[Trial], None]], trial: Trial, name: str
) -> tuple[str, ...]:
    """Try every law; raises one `AssertionError` that lists all that are broken."""
    broken = []
    for law, check in laws.items():
        try:
            check(trial)
        except LawViolation as violation:
            broken.append(f"{law}: {violation.seen}")
        except Exception as problem:  # whatever it raises, the other laws are still tried
            broken.append(f"{law}: it raised {type(problem).__name__}: {problem}")
    if broken:
        raise AssertionError(
            "\n".join([f"{name} breaks {len(broken)} of {len(laws)} laws:", *broken])
        )
    return tuple(laws)


def untouched(ask: Callable[[Tensor, Dice], object], images: Tensor, dice: Dice) -> None:
    """Demand that a call changes neither global state nor the images and dice it is given."""
    given, keys = images.clone(), dice.key.clone()
    before = surroundings()
    ask(given, Dice(keys))
    for name, old, new in zip(("random state", "mode"), before, surroundings(), strict=True):
        gone = changed_in(old, new)
        demand(not gone, f"it changed the global {name}: {', '.join(gone)}")
    demand(bool((given == images).all()), "it changed the caller's images in place")
    demand(bool((keys == dice.key).all()), "it changed the caller's dice in place")

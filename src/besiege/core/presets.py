"""Published forms of attacks, by name: ``pgd@madry`` is PGD as its paper ran it.

Defaults are often stronger than what a paper ran. A paper's figures belong to the paper's method,
so that method has a name, its source, and what is known to differ.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from besiege.core.errors import Finding, ThreatError, UnknownNameError, near
from besiege.core.registry import Registry
from besiege.core.text import read
from besiege.core.threat import L0, Access, Goal, Norm, Threat

FREE = ("steps", "rounds", "restarts", "targets")
"""Parameters that may usually be given with a preset: how long it runs, not what it does."""

_CLOSE = 1e-3
"""Budgets that differ by less, relative to each other, are the same one, rounded."""


@dataclass(frozen=True)
class Check:
    """A comparison of a preset with another implementation, run by ``pytest -m peer``.

    Attributes
    ----------
    peer : str
        The other implementation: a library, or ``independent`` for a short one in the tests.
    equal, rows : int
        Rows whose results are equal to 1e-5, and rows compared.
    about : str
        What was compared, where it is not the final points of the whole run in float32.
    """

    peer: str
    equal: int
    rows: int = 48
    about: str = ""

    def __str__(self) -> str:
        about = f" ({self.about})" if self.about else ""
        return f"{self.peer}: {self.equal} of {self.rows} rows equal{about}"


@dataclass(frozen=True)
class Preset:
    """A published form of an attack.

    Attributes
    ----------
    name : str
        The attack and the name of the form: ``pgd@madry``.
    arguments : str
        The attack's parameters: ``steps=20, schedule=constant(0.25)``.
    source : str
        The publication, and what it ran.
    threats : tuple of str
        The threats it was published for; one without a budget stands for any budget, and none at
        all for any threat. Step sizes are fractions of the budget.
    also : tuple of str
        Other norms in which the method is defined and was compared. It is refused in any other.
    free : tuple of str
        The parameters that may be given with it.
    of : str
        The attack it was published with, if it is made of an attack.
    default : str
        How our default differs from it, in one line; of the form of the attack's own paper.
    differs : str
        What differs from the source, and what that costs; empty if it is exact.
    checks : tuple of Check
        Comparisons with other implementations.

    Examples
    --------
    >>> PRESETS.get("pgd@madry").attack
    'pgd'
    """

    name: str
    arguments: str
    source: str
    threats: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    free: tuple[str, ...] = FREE
    of: str = ""
    default: str = ""
    differs: str = ""
    checks: tuple[Check, ...] = ()

    @property
    def attack(self) -> str:
        """The name of the attack."""
        return self.name.partition("@")[0]

    @property
    def text(self) -> str:
        """The attack with its parameters."""
        inside = ", ".join(filter(None, (self.of, self.arguments)))
        return f"{self.attack}({inside})" if inside else self.attack

    @property
    def norms(self) -> set[Norm]:
        """The norms that it may be run in."""
        return {Threat.parse(text).norm for text in (*self.threats, *self.also)}

    def published_for(self, threat: Threat, width: float = 1.0, aimed: bool = False) -> bool:
        """Whether it was published for a threat.

        Parameters
        ----------
        threat : Threat
            Its budget is compared unless it has none. Given targets are those of any targeted goal.
        width : float
            The width of the box; published budgets are those of images in [0, 1].
        aimed : bool
            Whether another attack decides at which class it is aimed: the goal is not compared.
        """
        width = 1.0 if threat.norm is L0 else width
        for text in self.threats:
            one = Threat.parse(text)
            goal = one.goal is threat.goal or (threat.goal is Goal.GIVEN and one.goal.targeted)
            free = one.eps is None or threat.eps is None
            near_it = free or math.isclose(threat.radius, one.radius * width, rel_tol=_CLOSE)
            if one.norm is threat.norm and near_it and (goal or aimed):
                return True
        return not self.threats


_MODULES = ("first_order", "other", "minimum_norm", "weighted", "score", "decision")
PRESETS: Registry[Preset] = Registry(
    "preset",
    tuple(f"besiege.attacks.presets.{name}" for name in _MODULES),
    group="besiege.presets",
)


def publish(*presets: Preset) -> None:
    """Add presets to the registry."""
    for preset in presets:
        PRESETS.add(preset.name, preset)


def presets_of(attack: str) -> list[Preset]:
    """The published forms of an attack."""
    return [preset for _, preset in PRESETS.items() if preset.attack == attack]


def find(name: str) -> Preset:
    """The preset of a name; the error for an unknown one says what there is."""
    if name in PRESETS:
        return PRESETS.get(name)
    attack, _, form = name.partition("@")
    mine = {preset.name.partition("@")[2]: preset.name for preset in presets_of(attack)}
    others = [other for other in PRESETS.names() if other.endswith(f"@{form}")]
    close = near(form, mine)
    if close.startswith("did you mean"):
        raise UnknownNameError(f"{attack} has no preset '{form}': {close}")
    listed = f"it has {', '.join(mine.values())}" if mine else "it has none"
    if others:
        listed = f"that is one of {', '.join(others[:5])}; {attack} has {', '.join(mine) or 'none'}"
    raise UnknownNameError(f"{attack} has no preset '{form}': {listed}")


def named_in(text: str) -> list[Preset]:
    """The presets that the text of an attack names, an outer one before those inside.

    Examples
    --------
    >>> [preset.name for preset in named_in("averaged(pgd@madry, 3)")]
    ['pgd@madry']
    """
    return [PRESETS.get(name) for name in _names(text) if name in PRESETS]


def outermost(text: str) -> tuple[Preset, str] | None:
    """The preset of a text and the arguments written with it; None where it is another attack.

    Examples
    --------
    >>> preset, given = outermost("pgd@madry(steps=100)")
    >>> preset.name, given
    ('pgd@madry', 'steps=100')
    """
    name = next(_names(text), "")
    if "@" not in name or name not in PRESETS:
        return None
    given = text.partition(name)[2].partition("(")[2].rpartition(")")[0]
    return PRESETS.get(name), given.strip()


def described(text: str, threat: Threat | None = None, width: float = 1.0) -> str | None:
    """The source of the preset of a text, and what is not as published; None for other attacks.

    Examples
    --------
    >>> about = described("pgd@madry(steps=2)", Threat.parse("linf:0.3"))
    >>> about.partition("(")[2]
    'here at linf:0.3, steps=2)'
    """
    found = outermost(text)
    if found is None:
        return None
    preset, given = found
    elsewhere = threat is not None and not preset.published_for(threat, width)
    here = ", ".join(filter(None, (f"at {_plain(threat)}" * elsewhere, given)))
    return f"{preset.source} (here {here})" if here else preset.source


def check_norms(text: str, threat: Threat) -> None:
    """Refuse a preset in a norm that it is not defined or was not compared in."""
    for preset in named_in(text):
        if threat.norm in preset.norms or not preset.threats:
            continue
        others = [one.name for one in presets_of(preset.attack) if threat.norm in one.norms]
        instead = f"use {' or '.join(others)}, or write" if others else "write"
        raise ThreatError(
            f"'{preset.name}' was published for {', '.join(preset.threats)}, not for "
            f"{threat.norm}: {instead} {preset.attack} with parameters of your own "
            f"('besiege show {preset.name}' lists those of the preset)"
        )


def findings(text: str, threat: Threat, box: tuple[float, float] = (0.0, 1.0)) -> list[Finding]:
    """W44: presets that run at a threat for which they were not published."""
    aimed = "each_target" in _names(text)
    return [
        Finding(
            "W44",
            f"'{one.name}' was published for {', '.join(one.threats)}, and runs at "
            f"{_plain(threat)}.",
            f"{_step(one)}Compare with figures of its publication only at its own threat.",
            "note",
        )
        for one in dict.fromkeys(named_in(text))
        if not one.published_for(threat, box[1] - box[0], aimed)
    ]


def _names(text: str) -> Iterator[str]:
    """All names of a text, an outer one before those inside."""
    names: list[str] = []
    if "@" in text:
        read(text.rpartition(".py:")[2], lambda name, *_: names.append(name))
    return reversed(names)


def _plain(threat: Threat | None) -> str:
    """The threat without its access."""
    return "" if threat is None else str(replace(threat, access=Access.GRADIENT))


def _step(preset: Preset) -> str:
    step = re.search(r"schedule=constant\(([^)]*)\)", preset.arguments)
    return f"A step is {step[1]} of the budget there as well. " if step else ""

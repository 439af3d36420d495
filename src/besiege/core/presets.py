"""Published forms of attacks, by name: ``pgd@madry`` is PGD as its paper ran it.

Defaults are often stronger than what a paper ran. A paper's figures belong to the paper's method,
so that method has a name, its source, and what is known to differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from besiege.core.errors import UnknownNameError, near
from besiege.core.registry import Registry

FREE = frozenset({"steps", "rounds", "restarts", "targets"})
"""Parameters that may be given with any preset: how long it runs, not what it does."""


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
        The threats it was published with. Step sizes are fractions of the budget.
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
        return f"{self.attack}({self.arguments})" if self.arguments else self.attack


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

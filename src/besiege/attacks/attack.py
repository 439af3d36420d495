"""The base class `Attack`, and attacks from and to text such as ``pgd(steps=20)``."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import is_dataclass
from hashlib import sha256
from typing import Any, ClassVar, TypeVar

from besiege.core.attack_registry import ATTACKS
from besiege.core.errors import AttackError, BesiegeError, InputError, UnknownNameError
from besiege.core.fields import check_fields
from besiege.core.identity import code, plain
from besiege.core.oracle import Access
from besiege.core.registry import Registry
from besiege.core.siege import Siege
from besiege.core.text import bounded, from_file, read, short
from besiege.core.threat import ALL_GOALS, ALL_NORMS, Goal, Norm, Threat
from besiege.core.vocabulary import UnknownParameter, UnknownWord, Vocabulary
from besiege.core.vocabulary import parameters as parameters_of

T = TypeVar("T")
PIECES: Registry[Any] = Registry(
    "piece",
    (
        "besiege.attacks.losses",
        "besiege.attacks.pieces",
        "besiege.attacks.directions",
        "besiege.attacks.radii",
    ),
)
LANGUAGE = Vocabulary(ATTACKS, PIECES)


class Attack(ABC):
    """An attack as a frozen dataclass: fields are its parameters, `run` is what it does.

    Class attributes declare what it needs and can do; they are checked before any work starts.
    """

    access: ClassVar[Access] = Access.GRADIENT
    norms: frozenset[Norm] = ALL_NORMS
    goals: frozenset[Goal] = ALL_GOALS
    minimal: ClassVar[bool] = False
    """Whether it looks for the smallest change, so that a threat without a budget makes sense."""
    needs_substitute: ClassVar[bool] = False
    """Whether it takes advice from a substitute, which must then be given."""
    sends_codes: ClassVar[bool] = False
    """Whether it sends thermometer codes, which only a victim behind that layer takes."""
    needs_cells: ClassVar[bool] = False
    """Whether it chooses among the values of a layer that rounds pixels, which there must be."""
    oblivious: ClassVar[bool] = False
    """Whether it ignores the victim's defense: it is crafted on the undefended model only."""
    revision: ClassVar[int] = 1
    """Part of the identity in content keys: raised when the same text gives other results."""

    __post_init__ = check_fields

    @abstractmethod
    def run(self, siege: Siege) -> None:
        """Attack the rows of the siege."""

    @property
    def draws(self) -> int:
        """Over how many chances of a stochastic victim each answer is averaged."""
        return 1

    @property
    def needs_layer(self) -> bool:
        """Whether it attacks victims behind a certain layer only."""
        return self.sends_codes or self.needs_cells

    @property
    def uses_starts(self) -> bool:
        """Whether it may begin at other images, of known classes, which it is then given.

        What sees labels alone does. Others that do declare it: ``uses_starts = True``.
        """
        return self.access is Access.DECISION

    @property
    def one_step(self) -> bool:
        """Whether success need not grow with the budget, so that a search must scan."""
        return False

    @property
    def mixes_rows(self) -> bool:
        """Whether a sample's result depends on the samples that are attacked with it."""
        return False

    def cost(self, shape: tuple[int, ...], classes: int) -> int | None:
        """The most queries it can use for one image of this shape; None where that is not known."""
        return None

    def passes(self, shape: tuple[int, ...], classes: int) -> int:
        """About how many answers it takes for a sample it does not break, to estimate time."""
        if self.access < Access.GRADIENT and (most := self.cost(shape, classes)) is not None:
            return most
        usual = {"steps": 100, "restarts": 1, "targets": 1}
        return max(1, math.prod(int(getattr(self, name, n)) for name, n in usual.items()))

    def title(self) -> str:
        """The registered name, or the class name of an attack nobody registered."""
        return LANGUAGE.name_of(self)

    def __str__(self) -> str:
        return LANGUAGE.text(self)


def piece(name: str) -> Callable[[type[T]], type[T]]:
    """Register a slot value under a name of the text form."""

    def keep(cls: type[T]) -> type[T]:
        PIECES.add(name, cls)
        cls.__str__ = lambda self: LANGUAGE.text(self)  # type: ignore[method-assign]
        return cls

    return keep


def names() -> list[str]:
    """Names of all registered attacks."""
    return ATTACKS.names()


def parse(source: str | Attack, threat: Threat | None = None) -> Attack:
    """An attack from its text, such as ``pgd(steps=100)`` or ``path/to/file.py:MyAttack``.

    Parameters of other libraries are answered with what replaces them, in terms of the budget
    where a threat is given.

    Examples
    --------
    >>> str(parse("minimal(pgd(steps=20))"))
    'minimal(pgd(steps=20))'
    """
    if isinstance(source, Attack):
        return source
    if not isinstance(source, str):
        raise AttackError(
            f"an attack is a name, a text such as 'pgd(steps=20)' or an Attack value, "
            f"not {type(source).__name__}"
        )
    try:
        value = _from_file(bounded(source)) if ".py:" in source else LANGUAGE.read(source)
    except (InputError, UnknownNameError) as problem:
        if source.partition("(")[0].strip() == "replay":  # what tables call imported images
            raise AttackError(
                "images made elsewhere are not run, but imported: leave replay out, run the other "
                "attacks, then add the images to that run with besiege import RUN FILE, which "
                "judges them like those of an attack"
            ) from None
        raise _answered(problem, threat) from None
    if not isinstance(value, Attack):
        raise AttackError(f"'{short(source)}' is not an attack but a {type(value).__name__}")
    return value


def configured(
    attack: Attack, source: str, parameters: dict[str, Any], threat: Threat | None = None
) -> Attack:
    """The attack with some parameters replaced; unknown names raise an error with near matches."""
    try:
        given = {
            k: LANGUAGE.read(v) if _is_slot(attack, k, v) else v for k, v in parameters.items()
        }
        LANGUAGE.preset_arguments(source.lstrip("( ").partition("(")[0].strip(") "), given)
        changed: Attack = LANGUAGE.call(attack, source, [], given)
    except (InputError, UnknownNameError) as problem:
        raise _answered(problem, threat) from None
    return changed


def _answered(problem: BesiegeError, threat: Threat | None) -> BesiegeError:
    """The error that a user sees: in the words of this library for habits of another one."""
    from besiege.attacks import habits  # it uses this module

    if isinstance(problem, UnknownParameter):
        return AttackError(habits.translated(problem, threat) or str(problem))
    if isinstance(problem, UnknownNameError):
        said = habits.renamed(problem.name) if isinstance(problem, UnknownWord) else None
        return problem if said is None else UnknownNameError(said)
    return AttackError(str(problem))


def spelled(value: object) -> Any:
    """An attack or piece with all its parameters, defaults included, as plain values for JSON.

    Content keys are made of this: the text form leaves defaults out, and defaults may change
    between releases. A class from outside besiege contributes a hash of its source and of the code
    it uses; any other object contributes its content, never its address.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise AttackError(f"an attack has the parameter {value!r}: give finite numbers")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [spelled(part) for part in value]
    kind = type(value)
    ours = kind.__module__.partition(".")[0] == "besiege"
    if not is_dataclass(value) or isinstance(value, type):
        return hashed(plain(value))
    parameters = {
        f.name: spelled(getattr(value, f.name))
        for f in parameters_of(value)
        # A parameter that older records do not know, at its default, is no part of the identity.
        if not (f.metadata.get("added") and getattr(value, f.name) == f.default)
    }
    if isinstance(value, Attack):
        parameters["revision"] = value.revision
    if not ours:
        parameters["source"] = hashed(code(kind))
    return {"name": LANGUAGE.name_of(value), **parameters}


def hashed(text: str) -> str:
    """SHA-256 of a text, as hexadecimal text."""
    return sha256(text.encode(errors="surrogatepass")).hexdigest()


def told(attack: Attack) -> str:
    """One line about an attack: its publication, or the first line of its docstring."""
    source = getattr(attack, "source", "")
    if source:
        return str(source)
    text = (type(attack).__doc__ or "").strip()
    return "" if text.startswith(type(attack).__name__ + "(") else text.partition("\n")[0]


def split(source: str) -> list[str]:
    """Split a list of attacks at its top-level commas.

    Examples
    --------
    >>> split("pgd(steps=20,restarts=2),mim")
    ['pgd(steps=20,restarts=2)', 'mim']
    """
    parts, depth = [""], 0
    for letter in bounded(source):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [p.strip() for p in parts if p.strip()]


def _is_slot(attack: Attack, name: str, value: object) -> bool:
    """Whether text was given where a piece is expected: ``loss="margin"``."""
    return isinstance(value, str) and not isinstance(getattr(attack, name, ""), str)


def _from_file(source: str) -> Any:
    """A class or value of a user's file, perhaps called: ``file.py:MyAttack(steps=3)``."""
    thing, rest = from_file(source)

    def call(name: str, args: list[Any], given: dict[str, Any]) -> Any:
        if name == rest.partition("(")[0].strip():
            return LANGUAGE.call(thing, rest, args, given)
        return LANGUAGE.make(name, args, given)

    return read(rest, call)

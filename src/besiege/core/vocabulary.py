"""Values as text: a small language of names, numbers and calls that reads back what it prints.

Attacks, their pieces and layers of defenses are frozen dataclasses registered under names;
``pgd(steps=100)`` and ``bits(depth=3)`` are such values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from numbers import Real
from typing import Any

from besiege.core import presets
from besiege.core.errors import InputError, UnknownNameError, near
from besiege.core.registry import Registry
from besiege.core.text import WrongWord, read, read_arguments, short

_EXACT, _FLOAT32 = 2**53, 3.4e38
"""The largest whole number that a float represents exactly, and the largest float32 number."""


class UnknownParameter(InputError):
    """A parameter that a named value does not have, and the call that gave it."""

    def __init__(
        self, thing: Any, source: str, args: list[Any], given: dict[str, Any], name: str
    ) -> None:
        known = [f.name for f in parameters(thing)]
        super().__init__(f"'{source}' has no parameter '{name}': {near(name, known)}")
        self.thing, self.source, self.given = thing, source, given
        self.positional, self.name = args, name


class UnknownWord(UnknownNameError):
    """A name that the language does not have."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class Vocabulary:
    """A language of registered names.

    A name stands for a class, whose call makes a value, or for a value, whose call changes some
    of its fields. Fields marked ``positional`` are printed without their names, those marked
    ``each`` as one argument per element.

    Parameters
    ----------
    *registries : Registry
        Where names are looked up, in this order.
    """

    def __init__(self, *registries: Registry[Any]) -> None:
        self.registries = registries

    def names(self) -> list[str]:
        """All names known."""
        return [name for registry in self.registries for name in registry.names()]

    def name_of(self, value: object) -> str:
        """The registered name of a value, or the name of its class if it has none."""
        own = getattr(value, "name", None)
        if isinstance(own, str) and own:
            return own
        for registry in self.registries:
            if (name := registry.name_of(type(value))) is not None:
                return name
        return type(value).__name__

    def text(self, value: object) -> str:
        """The text that `read` turns into an equal value; defaults are left out."""
        if isinstance(value, tuple):
            return "(" + ", ".join(map(self.text, value)) + ("," if len(value) == 1 else "") + ")"
        if not is_dataclass(value) or isinstance(value, type):
            return repr(value)
        name = self.name_of(value)
        standard = self.find(name)
        shown: list[str] = []
        for first, f in enumerate(parameters(value)):
            given = getattr(value, f.name)
            usual = _usual(f, standard)
            if given is None and usual is None:
                continue
            if f.metadata.get("each"):
                shown.extend(map(self.text, given))
            elif f.metadata.get("positional") or (usual is MISSING and first == 0):
                shown.append(self.text(given))
            elif given != usual:
                shown.append(f"{f.name}={self.text(given)}")
        return f"{name}({', '.join(shown)})" if shown else name

    def read(self, source: str) -> Any:
        """The value of a text; a bare name of a class is a call without arguments."""
        return read(source, self.make)

    def call(self, thing: Any, source: str, args: list[Any], given: dict[str, Any]) -> Any:
        """Make a value of a class, or change some fields of a value."""
        has_fields = is_dataclass(thing)  # a name of its own: mypy would narrow the type wrongly
        if not has_fields:
            kind = "class" if isinstance(thing, type) else type(thing).__name__
            raise InputError(
                f"'{source}' names a {kind} that is no dataclass: write @dataclass(frozen=True) "
                "above the class, so that its fields are its parameters"
            )
        known = {f.name: f for f in parameters(thing)}
        for name, value in given.items():
            if name not in known:
                raise UnknownParameter(thing, source, args, given, name)
            if not _is_number(value, known[name]):
                shown = short(self.text(value))
                raise InputError(
                    f"'{source}' cannot be built: {name} is {shown}, but a number is needed"
                )
            words = _words(known[name])
            if words and value is not None and value not in words:
                needed = " or ".join(map(repr, words))
                raise WrongWord(
                    f"'{source}' cannot be built: {name} is {short(self.text(value))}, but "
                    f"{needed} is needed",
                    name,
                )
        try:
            if not isinstance(thing, type):
                if args:
                    raise TypeError("write parameters with their names, such as steps=20")
                return replace(thing, **given)
            if any(f.metadata.get("each") for f in parameters(thing)):
                return thing(tuple(args), **given)
            return thing(*args, **given)
        except (TypeError, ValueError) as problem:
            missing = re.search(r"missing .* argument: '(\w+)'", str(problem))
            reason = f"it needs an {missing[1]}, such as {source}(pgd)" if missing else str(problem)
            raise InputError(f"'{source}' cannot be built: {reason}") from None

    def find(self, name: str) -> Any:
        """The class or value of a registered name; None without one."""
        return next((r.get(name) for r in self.registries if name in r), None)

    def make(self, name: str, args: list[Any], given: dict[str, Any]) -> Any:
        """The value of a call of a registered name, or of a preset such as ``pgd@madry``."""
        name, _, form = name.partition("@")
        thing = self.find(name)
        if thing is None:
            close = near(name, self.names())
            if not close.startswith("did you mean"):
                close = near(name, self.registries[0].names())  # not all names of the language
            kinds = " or ".join(registry.kind for registry in self.registries)
            raise UnknownWord(f"no {kinds} is called '{short(name)}': {close}", name)
        if not form:
            return self.call(thing, name, args, given)
        fixed = self.preset_arguments(f"{name}@{form}", given)
        missing = _required(thing)
        if len(args) > len(missing):
            raise InputError(f"'{name}@{form}' takes parameters by name only, such as steps=20")
        if missing and not args and not set(missing) <= set(given):
            example = f"{name}@{form}({presets.find(f'{name}@{form}').of})"
            raise InputError(f"'{name}@{form}' needs an {missing[0]}, such as {example}")
        return self.call(thing, name, args, {**fixed, **given})

    def preset_arguments(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a preset; an error where one is given that would change the method.

        Any other name has none.
        """
        if "@" not in name:
            return {}
        preset = presets.find(name)
        thing = self.find(preset.attack)
        fixed = read_arguments(preset.arguments, self.make)
        known = {f.name for f in parameters(thing)} - {*preset.free, *_required(thing)}
        for one, value in given.items():
            if one in known and (one not in fixed or value != fixed[one]):
                raise InputError(
                    f"'{name}' fixes {one}: with another value it is no longer the published "
                    f"method. Write {preset.text} with your own {one}"
                )
        return fixed


def parameters(value: Any) -> list[Field[Any]]:
    """The fields that make up a value's identity."""
    return [f for f in fields(value) if f.init and f.compare and f.name != "name"]


def _required(thing: Any) -> list[str]:
    """The parameters without a default."""
    missing = (MISSING, MISSING)
    return [f.name for f in parameters(thing) if (f.default, f.default_factory) == missing]


def _is_number(value: Any, f: Field[Any]) -> bool:
    """Whether a field that takes a number was given one that float32 holds.

    Other fields are checked by their classes.
    """
    kinds = set(str(f.type).split(" | "))  # as it is written in the class
    if "float" not in kinds or not kinds <= {"float", "int", "None"}:
        return True
    if value is None:
        return "None" in kinds
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= _EXACT
    real = isinstance(value, Real)
    return real and bool(-_FLOAT32 <= value <= _FLOAT32)


def _words(f: Field[Any]) -> tuple[str, ...]:
    """The words that a field may be, as `besiege.core.fields.one_of` declares them."""
    holds, _ = f.metadata.get("check", (None, ""))
    known = getattr(holds, "__self__", ())
    words = isinstance(known, tuple) and all(isinstance(one, str) for one in known)
    return known if words else ()


def _usual(f: Field[Any], standard: Any) -> Any:
    if standard is not None and not isinstance(standard, type):
        return getattr(standard, f.name)
    return f.default_factory() if f.default_factory is not MISSING else f.default
